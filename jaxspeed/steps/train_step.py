"""One training step: augmentation, cutmix, selection of hard examples, update."""

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
  """Run one step on this device's part of the global batch.

  The gradient is that of the mean loss over the unmasked examples of all devices. Batch norm sees
  only this device's part, or with `config.accumulate` only one micro-batch, like `ghost_splits`.
  Its running statistics are averaged in the same all-reduce as the gradient.

  Args:
    state: the state, which callers donate.
    batch: the images of this device.
    hyper: this step's row of the plan's table.
    spec: the run's constants.
    kind: the kind of this step.

  Returns:
    The next state, and the metric sums over all devices.
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
