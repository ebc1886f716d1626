"""The programs of a run on a set in memory, compiled ahead, and the set on the devices."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed import mesh as mesh_lib
from jaxspeed import step, validate
from jaxspeed.build import Job
from jaxspeed.compile import Program, compile_all, compile_program
from jaxspeed.data.arrays import Arrays
from jaxspeed.data.feed import Batch, pad_batches
from jaxspeed.losses import Sums
from jaxspeed.plan import Phase
from jaxspeed.state import Carry


@dataclasses.dataclass(frozen=True)
class Programs:
  """The compiled programs of a job.

  Attributes:
    train: one step under the key 1; with `whole_epochs` an epoch under its number of steps.
    carry: shapes and shardings of what `train` takes and returns, for a checkpoint to be read into.
  """

  init: Program
  order: Program
  train: dict[int, Program]
  evaluate: Program
  whole_epochs: bool
  carry: Carry

  def all(self) -> list[Program]:
    return [self.init, self.order, *self.train.values(), self.evaluate]


@dataclasses.dataclass(frozen=True)
class Resident:
  """A whole set on the devices: training images everywhere, evaluation images split."""

  train: Batch
  eval: Batch
  table: dict[str, jax.Array]


def compile_programs(job: Job, *, whole_epochs: bool | None = None) -> Programs:
  """Every program of a run on a set in memory, compiled side by side.

  Args:
    job: what to compile.
    whole_epochs: an epoch as one program; None: on accelerators. XLA:CPU runs a convolution's
      backward pass 25 to 40 times slower inside a loop (jax issue 12868), so there it is a step.
  """
  plan, config = job.plan, job.config
  if whole_epochs is None:
    whole_epochs = jax.default_backend() != "cpu"
  everywhere, split = mesh_lib.replicated(job.mesh), mesh_lib.sharded(job.mesh)

  def array(shape: tuple[int, ...], dtype: Any, sharding: Any = everywhere) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def batch(n: int, sharding: Any) -> Batch:
    size = config.data.image_size
    return Batch(
      image=array((n, size, size, 3), jnp.uint8, sharding),
      label=array((n,), jnp.int32, sharding),
      mask=array((n,), jnp.bool_, sharding),
    )

  key = array((2,), jnp.uint32)
  train_set = batch(plan.train_images, everywhere)
  group = plan.eval_batch_size * job.devices
  eval_set = batch(math.ceil(plan.eval_images / group) * group, split)
  table = {name: array(column.shape, jnp.float32) for name, column in plan.table.items()}
  order = array((plan.train_images,), jnp.int32)

  init = step.on_mesh(step.init_state, job)
  state = mesh_lib.abstract(jax.eval_shape(init, key, train_set.image), everywhere)
  carry = Carry(state, mesh_lib.abstract(jax.eval_shape(Sums.zero), everywhere))
  arguments = (carry, train_set, order, table)

  def train(phase: Phase, steps: int) -> Callable[[], Program]:
    function = (
      step.on_mesh(step.resident_epoch, job, phase=phase, steps=steps)
      if whole_epochs
      else step.on_mesh(step.resident_step, job, phase=phase)
    )
    return lambda: compile_program(function, arguments, donate=(0,))

  lengths = {plan.steps_in_epoch(epoch) for epoch in range(plan.epochs)} if whole_epochs else {1}
  phase = plan.phases[0]
  train_jobs = {f"train {steps}": train(phase, steps) for steps in sorted(lengths, reverse=True)}
  compiled = compile_all(
    train_jobs
    | {
      "evaluate": lambda: compile_program(
        validate.evaluate_on_mesh(job), (state.evaluated(), eval_set)
      ),
      "init": lambda: compile_program(init, (key, train_set.image)),
      "order": lambda: compile_program(
        step.on_mesh(step.order_of, job), (key, array((), jnp.int32))
      ),
    }
  )
  return Programs(
    init=compiled["init"],
    order=compiled["order"],
    train={steps: compiled[f"train {steps}"] for steps in lengths},
    evaluate=compiled["evaluate"],
    whole_epochs=whole_epochs,
    carry=carry,
  )


def place(arrays: Arrays, job: Job) -> Resident:
  """The set and the plan's table on the devices."""
  evaluated = pad_batches(
    arrays.eval_images, arrays.eval_labels, batch=job.plan.eval_batch_size, devices=job.devices
  )
  train = Batch(
    image=arrays.train_images,
    label=arrays.train_labels.astype(np.int32),
    mask=np.ones(len(arrays.train_labels), bool),
  )
  return Resident(
    train=mesh_lib.replicate(train, job.mesh),
    eval=mesh_lib.shard(evaluated, job.mesh),
    table=mesh_lib.replicate(job.plan.table, job.mesh),
  )
