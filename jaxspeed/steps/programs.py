"""Programs built from the training step: with its table row, as an epoch, and on all devices.

The functions here see one device's part of a batch; `on_mesh` runs them on all devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, UInt32

from jaxspeed.data.augment import Drawn, draw_ahead
from jaxspeed.data.batch import (
  Batch,
  Order,
  carried_order,
  epoch_order,
  purpose_key,
  take_batch,
)
from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.planning.plan import Phase, StepKind, StepRange
from jaxspeed.steps.hard_examples import hard_example_step
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.rounding import hoist_casts
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry
from jaxspeed.steps.train_step import train_step

Table = dict[str, Float[Array, "steps"]]
_PLAIN = StepKind()


def step_of(spec: TrainSpec) -> Callable[..., Any]:
  """The step of a model, or that of a model with a proxy."""
  return train_step if spec.proxy is None else hard_example_step


def tabled_step(
  carry: Carry,
  batch: Batch,
  table: Table,
  *,
  spec: TrainSpec,
  kind: StepKind,
  drawn: Drawn | None = None,
) -> tuple[Carry, Float[Array, ""]]:
  """Run `train_step` with its row of the table; also return its `LossScale.reported_loss`."""
  row = {name: column[carry.state.step] for name, column in table.items()}
  state, sums = step_of(spec)(carry.state, batch, row, spec=spec, kind=kind, drawn=drawn)
  loss = sums.loss / jnp.maximum(sums.count, 1).astype(sums.loss.dtype)
  if state.loss_scale is not None:
    loss = state.loss_scale.reported_loss(loss)
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
  drawn: Drawn | None = None,
) -> tuple[Carry, Float[Array, ""]]:
  """Run one step on a data set in device memory; also return the step's mean loss."""
  size = phase.batch_size // spec.devices
  position = (carry.state.step - phase.first_step) % phase.steps_per_epoch * phase.batch_size
  first = position + lax.axis_index(AXIS) * size
  batch = take_batch(data.image, data.label, order, first, size)
  if not spec.uses_index:
    batch = batch.replace(index=None)
  return tabled_step(carry, batch, table, spec=spec, kind=kind, drawn=drawn)


def resident_steps(
  carry: Carry,
  data: Batch,
  order: Order,
  table: Table,
  stop: Int[Array, ""],
  *,
  spec: TrainSpec,
  phase: Phase,
  step_ranges: Sequence[StepRange],
) -> tuple[Carry, Float[Array, "steps"]]:
  """Run the steps of an epoch up to step `stop`, from wherever the carry is.

  One program serves epochs of all lengths, and the rest of one. Each iteration of its loops is one
  step, in which the kernel that updates a parameter also rounds it for the next step
  (`hoist_casts`). The augmentation's random numbers are drawn before the loops, and the metrics
  are summed after them: 7 kernels fewer a step on a GPU.

  Args:
    carry: the carry before them.
    data, order, table: the data set, the epoch's order and the plan's table.
    stop: the step of the run before which to stop.
    spec: the run's constants.
    phase: the run's phase.
    step_ranges: the steps of the run by kind (`Plan.step_ranges`).

  Returns:
    The carry after them, and the mean loss of each, then zeros for the rest of an epoch.
  """
  first = carry.state.step
  none = MetricSums.zero(spec.accumulation)
  rows = jnp.zeros((phase.steps_per_epoch, 1 + len(jax.tree.leaves(none))), spec.accumulation)
  drawn = _drawn_ahead(carry, spec=spec, phase=phase)

  def run(
    kind: StepKind, todo: Callable[[Any], Any], carry: Carry, rows: Array
  ) -> tuple[Carry, Array]:
    def step(carry: Carry) -> tuple[Carry, Array]:
      number = carry.state.step - first
      of_step = jax.tree.map(lambda x: x[number], drawn)
      parts = dict(spec=spec, phase=phase, kind=kind, drawn=of_step)
      return resident_step(carry, data, order, table, **parts)

    rounded, stepped = hoist_casts(step, carry)

    def body(value: tuple[Carry, Any, Array]) -> tuple[Carry, Any, Array]:
      carry, low, rows = value
      number = carry.state.step - first
      alone, loss = stepped(carry.replace(sums=none), low)
      carry = carry.replace(state=alone.state)
      return carry, rounded(carry), rows.at[number].set(_as_row(loss, alone.sums))

    looped = (carry, rounded(carry), rows)
    carry, _, rows = lax.while_loop(lambda v: todo(v[0].state.step), body, looped)
    return carry, rows

  for span in step_ranges:
    last = jnp.minimum(stop, span.end)
    if len(span.kinds) == 1:
      carry, rows = run(span.kinds[0], lambda step, last=last: step < last, carry, rows)
      continue
    carry, rows = _cycles(run, span, last, carry, rows)
  losses, sums = _of_rows(rows)
  return carry.replace(sums=carry.sums + sums), losses


def _cycles(run: Any, span: StepRange, last: Array, carry: Carry, rows: Array) -> Any:
  """Run steps of two kinds in turns: one of the first kind, then those of the second."""
  turn = len(span.kinds)
  begins, others = span.kinds[:2]

  def cycle(value: tuple[Carry, Array]) -> tuple[Carry, Array]:
    carry, rows = run(begins, lambda step: (step < last) & (step % turn == 0), *value)
    return run(others, lambda step: (step < last) & (step % turn != 0), carry, rows)

  return lax.while_loop(lambda value: value[0].state.step < last, cycle, (carry, rows))


def _as_row(loss: Float[Array, ""], sums: MetricSums) -> Float[Array, "figures"]:
  """Return a step's mean loss and its sums as one vector, which a GPU stores in one kernel."""
  # Counts of a batch are exact in float32.
  return jnp.stack([x.astype(loss.dtype) for x in (loss, *jax.tree.leaves(sums))])


def _of_rows(
  rows: Float[Array, "steps figures"],
) -> tuple[Float[Array, "steps"], MetricSums]:
  """Return the mean losses of `_as_row`s, and the sums over all steps."""
  loss, *columns = rows.T
  like = MetricSums.zero(rows.dtype)
  sums = [
    column.astype(leaf.dtype).sum(dtype=leaf.dtype)
    for column, leaf in zip(columns, jax.tree.leaves(like), strict=True)
  ]
  return loss, jax.tree.unflatten(jax.tree.structure(like), sums)


def _drawn_ahead(
  carry: Carry, *, spec: TrainSpec, phase: Phase
) -> dict[int, Float[Array, "steps rows batch"]]:
  """Return the random numbers of the augmentation in an epoch's number of steps from here on."""

  def of_step(number: Int[Array, ""]) -> Drawn:
    keys = functools.partial(purpose_key, carry.state.key, number=number)
    return draw_ahead(keys, spec.config.augment, phase.batch_size)

  numbers = carry.state.step + jnp.arange(phase.steps_per_epoch, dtype=carry.state.step.dtype)
  with jax.named_scope("augment"):
    return jax.vmap(of_step)(numbers)


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
