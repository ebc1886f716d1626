"""The step of a large model that learns from hard examples, which a small proxy model selects."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxspeed.data.augment import Drawn
from jaxspeed.data.batch import Batch
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.losses import MetricSums, cross_entropy, mixed_labels
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState
from jaxspeed.steps.train_step import Row, augmented_part, dropout_key, forward, update


def hard_example_step(
  state: TrainState,
  batch: Batch,
  row: Row,
  *,
  spec: TrainSpec,
  kind: StepKind,
  drawn: Drawn | None = None,
) -> tuple[TrainState, MetricSums]:
  """`train_step` on the `config.proxy.keep` images of a batch that the proxy selects."""
  assert spec.proxy is not None and state.proxy is not None
  batch = augmented_part(state, batch, spec=spec, kind=kind, drawn=drawn)
  keep = spec.config.proxy.keep // spec.devices
  proxy, kept = select_hard_examples(state.proxy, batch, row, keep=keep, spec=spec.proxy, kind=kind)
  batch = jax.tree.map(lambda x: x.at[kept].get(mode="promise_in_bounds"), batch)
  state, sums = update(state.replace(proxy=None), batch, row, spec=spec, kind=kind)
  return state.replace(proxy=proxy), sums


def select_hard_examples(
  state: TrainState, batch: Batch, row: Row, *, keep: int, spec: TrainSpec, kind: StepKind
) -> tuple[TrainState, Int[Array, "kept"]]:
  """Select this device's images with the highest loss under the proxy model.

  The proxy's norms see the whole batch; if it trains in this step, it learns from the selected
  images only (KellerJordan/cifar10-airbench, airbench96_faster.py). There the proxy is trained
  completely before the large model; as it does not depend on that model, the result is the same.

  Args:
    state: the proxy's state.
    batch: the augmented images of this device.
    row: this step's row of the plan's table.
    keep: the number of images to select.
    spec: the proxy's spec.
    kind: the kind of this step.

  Returns:
    The proxy's next state, and the indices of the selected images in the batch.
  """
  key = dropout_key(state, lax.axis_index(AXIS))
  logits, stats = forward(state.params, state.batch_stats, batch.image, key, spec=spec)
  target = mixed_labels(batch, logits.shape[-1])
  losses = cross_entropy(logits, target, spec.config.label_smoothing)
  highest, kept = lax.top_k(jnp.where(batch.mask, losses, -jnp.inf), keep)
  if kind.proxy_learns:
    # `update` repeats the forward pass: a small model, in one of four steps.
    hard = batch.replace(mask=batch.mask & (losses >= highest[-1]))
    state, _ = update(state, hard, row, spec=spec, kind=kind)
    return state, kept
  stats = lax.psum(jax.tree.map(lambda x: x / spec.devices, stats), AXIS)
  return state.replace(step=state.step + 1, batch_stats=stats), kept
