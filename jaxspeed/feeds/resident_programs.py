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
from jaxspeed.planning.plan import Phase, Segments
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh, order_of, resident_epoch, resident_step
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry


@dataclasses.dataclass(frozen=True)
class Programs:
  """The compiled programs of a run.

  Attributes:
    train: the program of each kind of epoch, by its segments (`Plan.segments`); without
      `whole_epochs`, that of each kind of step, with the segments of an epoch of one step.
    carry: shapes and shardings of what `train` takes and returns, to restore a checkpoint into.
  """

  init: Program
  order: Program
  train: dict[Segments, Program]
  evaluate: Program
  whole_epochs: bool
  carry: Carry

  def all(self) -> list[Program]:
    return [self.init, self.order, *self.train.values(), self.evaluate]


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
  eval_set = batch(math.ceil(plan.eval_images / group) * group)
  table = {name: array(column.shape, spec.accumulation) for name, column in plan.table.items()}
  order = Order(array((plan.train_images,), jnp.int32), array((plan.train_images,), jnp.bool_))

  init = on_mesh(init_state, spec)
  state = mesh_lib.abstract(jax.eval_shape(init, key, train_set.image), everywhere)
  carry = Carry(state, mesh_lib.abstract(MetricSums.zero(spec.accumulation), everywhere))
  arguments = (carry, train_set, order, table)
  options = spec.compiler_options(jax.default_backend())

  def train(phase: Phase, segments: Segments) -> Callable[[], Program]:
    function = (
      on_mesh(resident_epoch, spec, phase=phase, segments=segments)
      if whole_epochs
      else on_mesh(resident_step, spec, phase=phase, kind=segments[0][1][0])
    )
    return lambda: compile_program(function, arguments, donate=(0,), options=options)

  # A dict, not a set: it keeps the order in which they are needed.
  epochs = dict.fromkeys(plan.segments(epoch) for epoch in range(plan.epochs))
  steps = dict.fromkeys(
    ((1, (kind,)),) for segments in epochs for _, kinds in segments for kind in kinds
  )
  phase = plan.phases[0]
  jobs: dict[Any, Callable[[], Program]] = {
    segments: train(phase, segments) for segments in (epochs if whole_epochs else steps)
  }
  compiled = BackgroundCompiler(
    jobs
    | {
      "evaluate": lambda: compile_program(
        eval_step.evaluate_on_mesh(spec), (state.evaluated(), eval_set)
      ),
      "init": lambda: compile_program(init, (key, train_set.image)),
      "order": lambda: compile_program(on_mesh(order_of, spec), (key, array((), jnp.int32))),
    }
  ).wait()
  return Programs(
    init=compiled["init"],
    order=compiled["order"],
    train={segments: compiled[segments] for segments in jobs},
    evaluate=compiled["evaluate"],
    whole_epochs=whole_epochs,
    carry=carry,
  )


def place(arrays: Arrays, spec: TrainSpec) -> Resident:
  """Copies the data set and the plan's table to the devices."""
  evaluated = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=spec.plan.eval_batch_size, devices=spec.devices
  )
  train = Batch(
    image=arrays.train_images,
    label=arrays.train_labels.astype(np.int32),
    mask=np.ones(len(arrays.train_labels), bool),
  )
  return Resident(
    train=mesh_lib.replicate(train, spec.mesh),
    eval=mesh_lib.replicate(evaluated, spec.mesh),
    table=mesh_lib.replicate(spec.plan.table_in(spec.accumulation), spec.mesh),
  )
