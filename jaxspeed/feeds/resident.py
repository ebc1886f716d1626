"""The feed of a data set in memory, and its programs."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.cluster import processes
from jaxspeed.data.batch import (
  WARMUP,
  Batch,
  Order,
  balanced_order,
  pad_batches,
  purpose_key,
  seed_key,
)
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.data.memory.sources import open_arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program
from jaxspeed.errors import UserError
from jaxspeed.feeds.evaluation import abstract_batch
from jaxspeed.feeds.protocol import Feed, RunEvaluation
from jaxspeed.planning.plan import Phase
from jaxspeed.steps import eval_step
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.outcomes import EvalResult
from jaxspeed.steps.programs import on_mesh, order_of, resident_step, resident_steps
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, StepOutput, TrainState

_SECONDS = 5.0  # the most that a call of the program of an epoch takes, about


class ResidentFeed(Feed):
  """Trains and evaluates on a data set that every device holds in memory.

  One program runs an epoch, or what is left of it, on accelerators, a step on CPUs
  (`compile_programs`). A long epoch takes several calls of it: signals are heard between two.
  """

  _steps_per_call = 8  # of the program of an epoch; the first call is short, to measure it

  def __init__(self, arrays: Arrays, spec: TrainSpec) -> None:
    super().__init__(arrays, spec)
    self._programs, self.carry = compile_programs(spec)

  @staticmethod
  def open_data(
    config: ConfigDict,
    console: Console,
    *,
    follow: Collection[str],
    phases: Sequence[Phase] | None,
    given: Arrays | None = None,
  ) -> Arrays:
    """Reads a data set into memory, which may decide the fields in `follow`.

    Raises:
      UserError: as `open_arrays`, or the images do not have the size in the config.
    """
    tune = config.tune_on == "validation"
    arrays = open_arrays(config.data, follow="data.classes" in follow, tune=tune, given=given)
    data, (height, width) = config.data, arrays.train_images.shape[1:3]
    where = "data=" if given is not None else data.path or data.name
    found = f"the images of {where} have {height} x {width} pixels"
    if height != width:
      raise UserError(
        f"{found}, and a recipe that trains from memory takes squares only: crop or resize them."
      )
    if height != data.image_size and "data.image_size" not in follow:
      raise UserError(
        f"{found} but config.data.image_size is {data.image_size}: set "
        f"--config.data.image_size={height}."
      )
    return arrays

  @staticmethod
  def prepare_evaluation(
    data: Arrays, spec: TrainSpec, phase: Phase, variables: Any
  ) -> RunEvaluation:
    """Compiles one program that evaluates the data set; returns a function that calls it."""
    placed = mesh_lib.replicate(_padded(data, spec), spec.mesh)
    abstract = mesh_lib.abstract((variables, placed), mesh_lib.replicated(spec.mesh))
    options = spec.common_options(jax.default_backend())
    program = compile_program(eval_step.evaluate_on_mesh(spec), abstract, options=options)
    return lambda: (program.call(variables, placed), {})

  @property
  def whole_epochs(self) -> bool:
    """Whether one program runs an epoch, as on accelerators."""
    return None in self._programs

  @property
  def programs(self) -> list[Program]:
    return list(self._programs.values())

  def place(self) -> None:
    """Copies the data set to the devices."""
    data, spec = self.data, self.spec
    labels = data.train_labels.astype(np.int32)
    train = Batch(image=data.train_images, label=labels, mask=np.ones(len(labels), bool))
    parts = train, _padded(data, spec), spec.plan.table_in(spec.accumulation)
    placed = jax.block_until_ready(self._placed(parts))
    self._train, self._eval, self._table = placed

  def warm_up(self) -> None:
    """Runs every program on random labels, from which nothing can be learned: a step of each kind.

    On a GPU, the first call of a program loads its kernels and makes cuDNN's plans; airbench leaves
    that out of its clock in the same way. The resulting state is thrown away. With "auto" only
    accelerators do it.
    """
    wanted = self.spec.config.warmup
    if not (wanted == "on" or wanted == "auto" and self.whole_epochs):
      return
    spec, plan, train = self.spec, self.spec.plan, self._train
    key = self._placed(np.asarray(purpose_key(seed_key(0), WARMUP, 0)))
    labels = np.random.default_rng(0).integers(spec.config.data.classes, size=plan.train_images)
    self._train = train.replace(label=self._placed(labels.astype(np.int32)))
    state = self._programs["init"].call(key, train.image)
    carry = Carry(state, self._placed(MetricSums.zero(spec.accumulation)))
    order, first = self._order(0, 0), 0
    for span in plan.step_ranges():
      carry = carry.replace(state=carry.state.replace(step=self._placed(np.int32(first))))
      carry, _ = self._take(carry, order, first, min(first + len(span.kinds), span.end))
      first = span.end
    # A call of several steps, to measure it.
    carry = carry.replace(state=carry.state.replace(step=self._placed(np.int32(0))))
    carry = next(self.train(carry, 0, 0, plan.steps_in_epoch(0))).carry
    jax.block_until_ready(self._programs["evaluate"].call(carry.state.eval_variables(), self._eval))
    self._train = train

  def init(self, seed: int) -> TrainState:
    return self._programs["init"].call(self._placed(seed_key(seed)), self._train.image)

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    order = self._order(seed, self.spec.plan.epoch_of(first_step)[0])
    begin = first_step
    while begin < last_step:
      end = min(begin + (self._steps_per_call if self.whole_epochs else 1), last_step)
      start = time.monotonic()
      carry, losses = self._take(carry, order, begin, end)
      if self.whole_epochs and end < last_step:
        jax.block_until_ready(losses)
        taken = int(_SECONDS * (end - begin) / (time.monotonic() - start))
        self._steps_per_call = min(processes.gather(min(max(taken, 1), 2**30)))  # of all processes
      yield StepOutput(end, carry, losses, count=end - begin)
      begin = end

  def _take(self, carry: Carry, order: Order, begin: int, end: int) -> tuple[Carry, Any]:
    """Takes steps of an epoch by its program, or each by that of its kind."""
    parts, losses = (self._train, order, self._table), None
    if self.whole_epochs:
      return self._programs[None].call(carry, *parts, self._placed(np.int32(end)))
    for step in range(begin, end):
      carry, losses = self._programs[self.spec.plan.kind_of(step)].call(carry, *parts)
    return carry, losses

  def evaluate(self, variables: dict[str, Any], step: int) -> EvalResult:
    return self._programs["evaluate"].call(variables, self._eval)

  def show_evaluated(
    self, numbers: Int[np.ndarray, "k"], step: int
  ) -> UInt8[np.ndarray, "k h w 3"]:
    """Evaluation images, as they are in memory."""
    return self.data.eval_images[numbers]

  def show_trained(self, seed: int, step: int, count: int) -> Batch:
    order = jax.device_get(self._order(seed, self.spec.plan.epoch_of(step)[0]))
    index = order.index[:count]
    images, labels = self.data.train_images[index], self.data.train_labels[index]
    mask = np.ones(len(index), bool)
    return Batch(images, labels.astype(np.int32), mask, order.flip[:count], index)

  def _order(self, seed: int, epoch: int) -> Order:
    """The order of an epoch, on the devices."""
    spec = self.spec
    if "order" in self._programs:
      return self._programs["order"].call(
        self._placed(seed_key(seed)), self._placed(np.int32(epoch))
      )
    parts = dict(images=spec.plan.phases[0].images, flip=spec.config.augment.flip)
    found = balanced_order(self.data.train_labels, seed, epoch, **parts)
    return self._placed(found)

  def _placed(self, value: Any) -> Any:
    return mesh_lib.replicate(value, self.spec.mesh)


def compile_programs(
  spec: TrainSpec, *, whole_epochs: bool | None = None
) -> tuple[dict[Any, Program], Carry]:
  """Compiles every program of a run on a data set in memory, side by side.

  Args:
    spec: the run's specification.
    whole_epochs: whether a call runs an epoch, not a step; None: only on accelerators. XLA:CPU runs
      a convolution's backward pass 25 to 40 times slower inside a loop (jax issue 12868).

  Returns:
    The programs: of each kind of step, or of the steps of an epoch under None; "evaluate", "init",
    and "order" unless the host balances it (`data.balance`). And shapes and shardings of the carry.
  """
  plan, phase, config = spec.plan, spec.plan.phases[0], spec.config
  if whole_epochs is None:
    whole_epochs = jax.default_backend() != "cpu"
  everywhere = mesh_lib.replicated(spec.mesh)

  def array(shape: tuple[int, ...] = (), dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

  def job(function: Callable[..., Any], *parts: Any, trains: bool = False) -> Any:
    options = (spec.compiler_options if trains else spec.common_options)(jax.default_backend())
    donate = (0,) if trains else ()
    return lambda: compile_program(function, parts, donate=donate, options=options)

  key, shape = array((2,), jnp.uint32), (config.data.image_size, config.data.image_size)
  train_set = abstract_batch(everywhere, plan.train_images, shape)
  group = plan.eval_batch_size * spec.devices
  padded = math.ceil(plan.eval_images / group) * group
  eval_set = abstract_batch(everywhere, padded, shape).replace(index=array((padded,)))
  table = {name: array(column.shape, spec.accumulation) for name, column in plan.table.items()}
  balanced = config.data.balance == "sampling"
  places = phase.images if balanced else plan.train_images
  order = Order(array((places,)), array((places,), jnp.bool_))

  init = on_mesh(init_state, spec)
  state = mesh_lib.abstract(jax.eval_shape(init, key, train_set.image), everywhere)
  carry = Carry(state, mesh_lib.abstract(MetricSums.zero(spec.accumulation), everywhere))
  arguments = (carry, train_set, order, table)

  # Those that train come first: on accelerators one of an epoch, else one of each kind of step.
  jobs: dict[Any, Callable[[], Program]] = {}
  if whole_epochs:
    steps = on_mesh(resident_steps, spec, phase=phase, step_ranges=plan.step_ranges())
    jobs[None] = job(steps, *arguments, array(), trains=True)  # the last: before which step to stop
  else:
    for kind in dict.fromkeys(map(plan.kind_of, range(plan.total_steps))):
      step = on_mesh(resident_step, spec, phase=phase, kind=kind)
      jobs[kind] = job(step, *arguments, trains=True)
  jobs["evaluate"] = job(eval_step.evaluate_on_mesh(spec), state.eval_variables(), eval_set)
  jobs["init"] = job(init, key, train_set.image)
  if not balanced:
    jobs["order"] = job(on_mesh(order_of, spec), key, array())
  return BackgroundCompiler(jobs).wait(), carry


def _padded(data: Arrays, spec: TrainSpec) -> Batch:
  """The evaluation images in whole batches on every device."""
  size = spec.plan.eval_batch_size
  return pad_batches(data.eval_images, data.eval_labels, batch=size, devices=spec.devices)
