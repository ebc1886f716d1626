"""The programs around a step: its row of the table, an epoch in one program, every device.

The functions below see one device's part of a batch. `on_mesh` puts them on the devices.
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
# Steps in the body of an epoch's loop, where they divide its length: a rest is compiled once more.
# In all but the first a kernel that updates a parameter also rounds it for the next convolution.
# cifar10.py on an H100: 126 kernels a step become 118.5; with 4 steps 114.5, which take 2.6 times
# as long to compile (results/h100_step.json).
_UNROLL = 2


def tabled_step(
  carry: Carry,
  batch: Batch,
  table: Table,
  *,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[Carry, Float[Array, ""]]:
  """`train_step` with its row of the table; also returns its mean loss (`LossScale.told`)."""
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
  """One step on a set that lives on the device; also returns the step's mean loss."""
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
  """The steps of an epoch as one program; also returns the mean loss of each."""
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
  """`function` on every device, arguments whole on each but those split by their first axis.

  Args:
    function: takes `spec` and `static` by name; its results are the same on every device.
    spec: what does not change.
    split: of each argument whether it is split; None: none is.
    static: bound before compilation.

  check_vma=False: with the check on, the gradient of a replicated parameter is already summed
  over the devices, and the sum in `train_step` would count each device's part N times.
  """

  def in_precision(*arguments: Any) -> Any:
    with precision.products(spec.config.precision):
      return function(*arguments, spec=spec, **static)

  return jax.shard_map(
    in_precision,
    mesh=spec.mesh,
    in_specs=P() if split is None else tuple(P(AXIS) if each else P() for each in split),
    out_specs=P(),
    check_vma=False,
  )


def order_of(key: UInt32[Array, "2"], epoch: Int[Array, ""], *, spec: TrainSpec) -> Order:
  """The order of an epoch of the training set."""
  plan, flip = spec.plan, spec.config.augment.flip
  if spec.config.data.last_batch == "carry_over":
    used = plan.phases[0].images
    parts = dict(flip=flip, used=used, epochs=plan.epochs)
    return carried_order(key, epoch, plan.train_images, **parts)
  return epoch_order(key, epoch, plan.train_images, flip=flip)
