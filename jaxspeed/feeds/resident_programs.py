"""The programs of a run on a data set in memory, compiled side by side before the first step."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed.data.batch import Batch, Order, pad_batches
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh, order_of, resident_step, resident_steps
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry


@dataclasses.dataclass(frozen=True)
class Programs:
  """The compiled programs of a run.

  Attributes:
    train: the program of each kind of step; on accelerators only that of an epoch's steps, or of
      those that are left, under None.
    order: the program of an epoch's order; None where the host balances it (`data.balance`).
    carry: shapes and shardings of what `train` takes and returns, to restore a checkpoint into.
  """

  train: dict[StepKind | None, Program]
  init: Program
  order: Program | None
  evaluate: Program
  carry: Carry

  @property
  def epoch(self) -> Program | None:
    """The program of an epoch's steps."""
    return self.train.get(None)

  def all(self) -> list[Program]:
    """All programs, those that train first."""
    every = (*self.train.values(), self.init, self.order, self.evaluate)
    return [program for program in every if program is not None]


@dataclasses.dataclass(frozen=True)
class Resident:
  """A whole data set on every device, with the plan's table."""

  train: Batch
  eval: Batch
  table: dict[str, jax.Array]


def compile_programs(spec: TrainSpec, *, whole_epochs: bool | None = None) -> Programs:
  """Compiles every program of a run on a data set in memory, side by side.

  Args:
    spec: the run's specification.
    whole_epochs: whether a call runs an epoch, not a step; None: only on accelerators. XLA:CPU runs
      a convolution's backward pass 25 to 40 times slower inside a loop (jax issue 12868).
  """
  plan, config = spec.plan, spec.config
  if whole_epochs is None:
    whole_epochs = jax.default_backend() != "cpu"
  everywhere = mesh_lib.replicated(spec.mesh)

  def array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

  def batch(n: int) -> Batch:
    size = config.data.image_size
    return Batch(
      image=array((n, size, size, 3), jnp.uint8),
      label=array((n,), jnp.int32),
      mask=array((n,), jnp.bool_),
    )

  key = array((2,), jnp.uint32)
  train_set = batch(plan.train_images)
  group = plan.eval_batch_size * spec.devices
  padded = math.ceil(plan.eval_images / group) * group
  eval_set = batch(padded).replace(index=array((padded,), jnp.int32))
  table = {name: array(column.shape, spec.accumulation) for name, column in plan.table.items()}
  balanced = config.data.balance == "sampling"
  places = plan.phases[0].images if balanced else plan.train_images
  order = Order(array((places,), jnp.int32), array((places,), jnp.bool_))

  init = on_mesh(init_state, spec)
  state = mesh_lib.abstract(jax.eval_shape(init, key, train_set.image), everywhere)
  carry = Carry(state, mesh_lib.abstract(MetricSums.zero(spec.accumulation), everywhere))
  arguments = (carry, train_set, order, table)
  options = spec.compiler_options(jax.default_backend())
  common = spec.common_options(jax.default_backend())

  phase = plan.phases[0]

  def train(kind: StepKind | None) -> Callable[[], Program]:
    if kind is None:
      function = on_mesh(resident_steps, spec, phase=phase, step_ranges=plan.step_ranges())
    else:
      function = on_mesh(resident_step, spec, phase=phase, kind=kind)
    # The step before which to stop.
    parts: tuple[Any, ...] = (*arguments, *([array((), jnp.int32)] if kind is None else []))
    return lambda: compile_program(function, parts, donate=(0,), options=options)

  def other(function: Callable[..., Any], parts: tuple[Any, ...]) -> Callable[[], Program]:
    return lambda: compile_program(function, parts, options=common)

  # A dict, not a set: it keeps the order in which they are needed.
  kinds = dict.fromkeys(plan.kind_of(step) for step in range(plan.total_steps))
  jobs: dict[Any, Callable[[], Program]] = {
    kind: train(kind) for kind in ((None,) if whole_epochs else kinds)
  }
  others: dict[Any, Callable[[], Program]] = {
    "evaluate": other(eval_step.evaluate_on_mesh(spec), (state.eval_variables(), eval_set)),
    "init": other(init, (key, train_set.image)),
    "order": other(on_mesh(order_of, spec), (key, array((), jnp.int32))),
  }
  if balanced:
    del others["order"]
  compiled = BackgroundCompiler(jobs | others).wait()
  return Programs(
    train={kind: compiled[kind] for kind in jobs},
    init=compiled["init"],
    order=compiled.get("order"),
    evaluate=compiled["evaluate"],
    carry=carry,
  )


def place(arrays: Arrays, spec: TrainSpec) -> Resident:
  """Copies the data set and the plan's table to the devices."""
  padded = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=spec.plan.eval_batch_size, devices=spec.devices
  )
  train = Batch(
    image=arrays.train_images,
    label=arrays.train_labels.astype(np.int32),
    mask=np.ones(len(arrays.train_labels), bool),
  )
  return Resident(
    train=mesh_lib.replicate(train, spec.mesh),
    eval=mesh_lib.replicate(padded, spec.mesh),
    table=mesh_lib.replicate(spec.plan.table_in(spec.accumulation), spec.mesh),
  )
