"""Selection of a batch's hard examples for a large model, by a small proxy model."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxspeed.data.batch import Batch
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.forward import dropout_keys, forward
from jaxspeed.steps.losses import smoothed_cross_entropy
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState
from jaxspeed.steps.update import update


def select_hard_examples(
  state: TrainState,
  batch: Batch,
  row: dict[str, Float[Array, ""]],
  *,
  keep: int,
  spec: TrainSpec,
  kind: StepKind,
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
  keys = dropout_keys(state, spec=spec)
  key = None if keys is None else keys[0]
  logits, stats = forward(state.params, state.batch_stats, batch.image, key, spec=spec)
  losses = smoothed_cross_entropy(logits, batch.label, spec.config.label_smoothing)
  highest, kept = lax.top_k(jnp.where(batch.mask, losses, -jnp.inf), keep)
  if kind.proxy_learns:
    # `update` repeats the forward pass: a small model, in one of four steps.
    hard = batch.replace(mask=batch.mask & (losses >= highest[-1]))
    state, _ = update(state, hard, batch.label, row, share=0.0, spec=spec, kind=kind)
    return state, kept
  stats = lax.psum(jax.tree.map(lambda x: x / spec.devices, stats), AXIS)
  return state.replace(step=state.step + 1, batch_stats=stats), kept
