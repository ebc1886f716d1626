"""The images of a batch from which a large net learns, chosen by a small one."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxspeed.data.batch import Batch
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.losses import smoothed_cross_entropy
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState
from jaxspeed.steps.update import update


def select_hard_examples(
  state: TrainState,
  batch: Batch,
  hyper: dict[str, Float[Array, ""]],
  *,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[TrainState, Int[Array, "kept"]]:
  """The images of this device with the highest loss, as a small net sees them.

  The net's norms see the whole batch, and where it learns, it learns from those images only
  (KellerJordan/cifar10-airbench, airbench96_faster.py, where the small net runs to its end first:
  as it does not depend on the large one, that comes to the same).

  Args:
    state: of the small net.
    batch: augmented images of this device.
    hyper: this step's row of the plan's table.
    spec: of the small net.
    kind: of the step.

  Returns:
    The net's next state and the places of the images in the batch.
  """
  keep = spec.config.proxy.keep // spec.devices
  variables = {"params": state.params, "batch_stats": state.batch_stats}
  logits, updated = spec.model.apply(variables, batch.image, train=True, mutable=["batch_stats"])
  losses = smoothed_cross_entropy(logits, batch.label, spec.config.label_smoothing)
  highest, kept = lax.top_k(jnp.where(batch.mask, losses, -jnp.inf), keep)
  if kind.proxy_learns:
    # The forward pass stands in `update` again: twice in one of four steps of a net that is small.
    hard = batch.replace(mask=batch.mask & (losses >= highest[-1]))
    state, _ = update(state, hard, batch.label, hyper, share=0.0, spec=spec, kind=kind)
    return state, kept
  stats = lax.psum(jax.tree.map(lambda x: x / spec.devices, updated["batch_stats"]), AXIS)
  return state.replace(step=state.step + 1, batch_stats=stats), kept
