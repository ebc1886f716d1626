"""One training step: augmentation, cutmix, the choice of images, the update."""

import jax
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.data.augment import augment, cutmix
from jaxspeed.data.batch import AUGMENT, CUTMIX, Batch, purpose_key
from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.hard_examples import select_hard_examples
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState
from jaxspeed.steps.update import update


def train_step(
  state: TrainState,
  batch: Batch,
  hyper: dict[str, Float[Array, ""]],
  *,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[TrainState, MetricSums]:
  """One step on this device's part of the global batch.

  The gradient is that of the mean loss over the examples of all devices that count. Batch norm
  sees this device's part only, and with `config.accumulate` one of its parts at a time, which is
  what `ghost_splits` does; its running statistics are averaged in the same all-reduce.

  Args:
    state: donated by the callers.
    batch: images of this device.
    hyper: this step's row of the plan's table.
    spec: what does not change.
    kind: what this step does beside the rest.

  Returns:
    The next state, and the sums over the examples of all devices.
  """
  config = spec.config
  size = batch.image.shape[0]
  dtype = precision.DTYPES[config.precision]
  part = dict(first=lax.axis_index(AXIS) * size, global_batch=size * spec.devices)
  with jax.named_scope("augment"):
    image = augment(
      purpose_key(state.key, AUGMENT, state.step),
      batch.image,
      flip=None if config.augment.flip == "none" else batch.flip,
      crop_padding=config.augment.crop_padding,
      cutout=config.augment.cutout,
      brightness=config.augment.brightness,
      contrast=config.augment.contrast,
      mean=config.data.mean,
      std=config.data.std,
      dtype=spec.accumulation,
      **part,
    ).astype(dtype)
    partner, share = batch.label, 0.0
    if kind.cutmix:
      cutmix_key = purpose_key(state.key, CUTMIX, state.step)
      image, partner, share = cutmix(
        cutmix_key, image, batch.label, size=config.augment.cutmix, **part
      )
  batch = batch.replace(image=image, flip=None)
  proxy = state.proxy
  if proxy is not None and spec.proxy is not None:
    proxy, kept = select_hard_examples(proxy, batch, hyper, spec=spec.proxy, kind=kind)
    batch, partner = jax.tree.map(
      lambda x: x.at[kept].get(mode="promise_in_bounds"), (batch, partner)
    )
  state, sums = update(
    state.replace(proxy=None), batch, partner, hyper, share=share, spec=spec, kind=kind
  )
  return state.replace(proxy=proxy), sums
