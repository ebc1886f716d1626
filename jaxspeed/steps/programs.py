"""Programs built from the training step: with its table row, as an epoch, and on all devices.

The functions here see one device's part of a batch; `on_mesh` runs them on all devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, UInt32

from jaxspeed.data.batch import Batch, Order, carried_order, epoch_order, take_batch
from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import Phase, Segments, StepKind
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry
from jaxspeed.steps.train_step import train_step

Table = dict[str, Float[Array, "steps"]]
# Steps per iteration of an epoch's loop, if they divide its length; a remainder would be compiled
# again. In all but the first of these steps, the kernel that updates a parameter also rounds it for
# the next convolution. cifar10.py on an H100 has 126 kernels per step with 1 and 118.5 with 2; with
# 4 it has 114.5, but takes 2.6 times as long to compile (results/h100_step.json).
_UNROLL = 2
_PLAIN = StepKind()


def tabled_step(
  carry: Carry,
  batch: Batch,
  table: Table,
  *,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[Carry, Float[Array, ""]]:
  """Run `train_step` with its row of the table; also return its mean loss (`LossScale.told`)."""
  hyper = {name: column[carry.state.step] for name, column in table.items()}
  state, sums = train_step(carry.state, batch, hyper, spec=spec, kind=kind)
  loss = sums.loss / jnp.maximum(sums.count, 1).astype(sums.loss.dtype)
  if state.loss_scale is not None:
    loss = state.loss_scale.told(loss)
  return Carry(state, carry.sums + sums), loss


def resident_step(
  carry: Carry,
  data: Batch,
  order: Order,
  table: Table,
  *,
  spec: TrainSpec,
  phase: Phase,
  kind: StepKind,
) -> tuple[Carry, Float[Array, ""]]:
  """Run one step on a data set in device memory; also return the step's mean loss."""
  size = phase.batch_size // spec.devices
  position = (carry.state.step - phase.first_step) % phase.steps_per_epoch * phase.batch_size
  first = position + lax.axis_index(AXIS) * size
  batch = take_batch(data.image, data.label, order, first, size)
  return tabled_step(carry, batch, table, spec=spec, kind=kind)


def resident_epoch(
  carry: Carry,
  data: Batch,
  order: Order,
  table: Table,
  *,
  spec: TrainSpec,
  phase: Phase,
  segments: Segments,
) -> tuple[Carry, Float[Array, "steps"]]:
  """Run all steps of an epoch in one program; also return the mean loss of each."""
  losses = []
  for repeats, kinds in segments:

    def body(carry, _, kinds=kinds):
      losses = []
      for kind in kinds:
        carry, loss = resident_step(carry, data, order, table, spec=spec, phase=phase, kind=kind)
        losses.append(loss)
      return carry, jnp.stack(losses)

    carry, part = lax.scan(body, carry, length=repeats, unroll=1 if repeats % _UNROLL else _UNROLL)
    losses.append(part.reshape(-1))
  return carry, jnp.concatenate(losses)


def on_mesh(
  function: Callable[..., Any],
  spec: TrainSpec,
  *,
  split: tuple[bool, ...] | None = None,
  **static: Any,
) -> Callable[..., Any]:
  """Run `function` on all devices; its result must be the same on each.

  Every argument is replicated, or split by its first axis where `split` is true. `spec` and
  `static` are passed by name and bound before compilation.
  """

  def in_precision(*arguments: Any) -> Any:
    with precision.products(spec.config.precision):
      return function(*arguments, spec=spec, **static)

  # With check_vma, JAX already sums the gradients of replicated parameters; we would sum again.
  return jax.shard_map(
    in_precision,
    mesh=spec.mesh,
    in_specs=P() if split is None else tuple(P(AXIS) if each else P() for each in split),
    out_specs=P(),
    check_vma=False,
  )


def batch_step(spec: TrainSpec, kind: StepKind = _PLAIN) -> Callable[..., Any]:
  """`tabled_step` on every device: (carry, batch, table) to (carry, loss), the batch split."""
  return on_mesh(tabled_step, spec, kind=kind, split=(False, True, False))


def order_of(key: UInt32[Array, "2"], epoch: Int[Array, ""], *, spec: TrainSpec) -> Order:
  """Return the order of the training images in an epoch."""
  plan, flip = spec.plan, spec.config.augment.flip
  if spec.config.data.last_batch == "carry_over":
    used = plan.phases[0].images
    parts = dict(flip=flip, used=used, epochs=plan.epochs)
    return carried_order(key, epoch, plan.train_images, **parts)
  return epoch_order(key, epoch, plan.train_images, flip=flip)
