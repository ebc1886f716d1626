"""One training step: augmentation, mixing, selection of hard examples, update."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxspeed.data.augment import Drawn, augment, cutmix
from jaxspeed.data.batch import CUTMIX, MIX, Batch, purpose_key
from jaxspeed.data.mixing import mix, where_paired
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
  row: dict[str, Float[Array, ""]],
  *,
  spec: TrainSpec,
  kind: StepKind,
  drawn: Drawn | None = None,
) -> tuple[TrainState, MetricSums]:
  """Run one step on this device's part of the global batch.

  The gradient is that of the mean loss over the unmasked examples of all devices. Batch norm sees
  only this device's part, or with `config.accumulate` only one micro-batch, like `ghost_splits`.
  Its running statistics are averaged in the same all-reduce as the gradient.

  Args:
    state: the state, which callers donate.
    batch: the images of this device.
    row: this step's row of the plan's table.
    spec: the run's constants.
    kind: the kind of this step.
    drawn: the step's `augment.draw_ahead`, if it is there already.

  Returns:
    The next state, and the metric sums over all devices.
  """
  size = batch.image.shape[0]
  batch, partner, share = augmented(
    functools.partial(purpose_key, state.key, number=state.step),
    batch,
    spec=spec,
    kind=kind,
    first=lax.axis_index(AXIS) * size,
    global_batch=size * spec.devices,
    dtype=precision.DTYPES[spec.config.precision],
    drawn=drawn,
  )
  proxy = state.proxy
  if proxy is not None and spec.proxy is not None:
    keep = spec.config.proxy.keep // spec.devices
    proxy, kept = select_hard_examples(proxy, batch, row, keep=keep, spec=spec.proxy, kind=kind)
    # A number stays one.
    varying = () if isinstance(share, float) else (share,)
    batch, partner, *shares = jax.tree.map(
      lambda x: x.at[kept].get(mode="promise_in_bounds"), (batch, partner, *varying)
    )
    share = shares[0] if shares else share
  state, sums = update(
    state.replace(proxy=None), batch, partner, row, share=share, spec=spec, kind=kind
  )
  return state.replace(proxy=proxy), sums


def augmented(
  keys: Callable[[int], Array],
  batch: Batch,
  *,
  spec: TrainSpec,
  kind: StepKind,
  first: Array | int,
  global_batch: int,
  dtype: DTypeLike,
  drawn: Drawn | None = None,
) -> tuple[Batch, Int[Array, "n"], Float[Array, "n"] | float]:
  """The augmented batch, and the labels of the images mixed into it with their share of the loss.

  The share is a number where it is the same in all steps of a kind.

  Args:
    keys: the step's random key for a purpose.
    batch: the images of this device.
    spec: the run's constants.
    kind: the kind of the step.
    first: the position of the batch in the global batch.
    global_batch: the size of that.
    dtype: that of the result.
    drawn: the step's `augment.draw_ahead`, if it is there already.
  """
  fields, data = spec.config.augment, spec.config.data
  part: dict[str, Any] = dict(first=first, global_batch=global_batch)
  with jax.named_scope("augment"):
    image = augment(
      keys,
      batch.image,
      fields,
      flip=None if fields.flip == "none" else batch.flip,
      mean=data.mean,
      std=data.std,
      dtype=spec.accumulation,
      drawn=drawn,
      **part,
    )
    partner: Array = batch.label
    share: Array | float = 0.0
    if fields.mixup or fields.cutmix_alpha:
      alphas = dict(mixup=fields.mixup, cutmix=fields.cutmix_alpha)
      image, partner, share = mix(keys(MIX), image, batch.label, batch.mask, **alphas)
    image = image.astype(dtype)
    if kind.cutmix:
      mixed, partner, share = cutmix(keys(CUTMIX), image, batch.label, size=fields.cutmix, **part)
      if data.last_batch == "keep":
        mixed, share = where_paired(batch.mask, mixed, image, share)
      image = mixed
  return batch.replace(image=image, flip=None), partner, share
