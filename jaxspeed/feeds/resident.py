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
from jaxspeed.data.balance import balanced_order
from jaxspeed.data.batch import WARMUP, Batch, Order, pad_batches, purpose_key, seed_key
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.data.memory.sources import open_arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program
from jaxspeed.errors import UserError
from jaxspeed.feeds.evaluation import abstract_batch
from jaxspeed.feeds.protocol import Feed, RunEvaluation
from jaxspeed.planning.plan import Phase, StepKind
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
    """Reads a data set into memory; the user's own arrays may decide the fields in `follow`.

    Raises:
      UserError: as `open_arrays`, or the images do not have the size in the config.
    """
    data = config.data
    arrays = open_arrays(
      name=data.name,
      path=data.path,
      cache=data.cache,
      classes=data.classes,
      follow="data.classes" in follow,
      tune=config.tune_on == "validation",
      share=data.hold_out,
      given=given,
    )
    where = "data=" if given is not None else data.path or data.name
    _check_size(arrays, config, follow, where)
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
    placed = jax.block_until_ready(mesh_lib.replicate(parts, spec.mesh))
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
    spec, programs, table = self.spec, self._programs, self._table
    key = mesh_lib.replicate(np.asarray(purpose_key(seed_key(0), WARMUP, 0)), spec.mesh)
    classes, images = spec.config.data.classes, spec.plan.train_images
    labels = np.random.default_rng(0).integers(classes, size=images)
    train = self._train.replace(label=mesh_lib.replicate(labels.astype(np.int32), spec.mesh))
    state = programs["init"].call(key, train.image)
    carry = Carry(state, mesh_lib.replicate(MetricSums.zero(spec.accumulation), spec.mesh))
    order = self._order(0, 0)
    for kind, program in programs.items():
      if isinstance(kind, StepKind):
        carry, _ = program.call(carry, train, order, table)
    first = 0
    for span in spec.plan.step_ranges() if self.whole_epochs else ():
      carry = carry.replace(state=carry.state.replace(step=self._number(first)))
      stop = self._number(min(first + len(span.kinds), span.end))
      carry, _ = programs[None].call(carry, train, order, table, stop)
      first = span.end
    if (steps := min(self._steps_per_call, spec.plan.steps_in_epoch(0) - 1)) > 0 < first:
      carry = carry.replace(state=carry.state.replace(step=self._number(0)))
      carry, _ = self._take(carry, train, order, 0, steps, spec.plan.steps_in_epoch(0))
    jax.block_until_ready(programs["evaluate"].call(carry.state.eval_variables(), self._eval))

  def init(self, seed: int) -> TrainState:
    return self._programs["init"].call(self._key(seed), self._train.image)

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    plan, programs = self.spec.plan, self._programs
    data, table = self._train, self._table
    order = self._order(seed, plan.epoch_of(first_step)[0])
    begin = first_step
    while self.whole_epochs and begin < last_step:
      end = min(begin + self._steps_per_call, last_step)
      carry, losses = self._take(carry, data, order, begin, end, last_step)
      yield StepOutput(end, carry, losses, count=end - begin)
      begin = end
    for step in range(begin, last_step):
      program = programs[plan.kind_of(step)]
      carry, loss = program.call(carry, data, order, table)
      yield StepOutput(step + 1, carry, loss)

  def _take(
    self, carry: Carry, data: Batch, order: Order, begin: int, end: int, last_step: int
  ) -> tuple[Carry, Any]:
    """Calls the program of an epoch; a call before its last one is waited for and measured."""
    start = time.monotonic()
    parts = (data, order, self._table, self._number(end))
    carry, losses = self._programs[None].call(carry, *parts)
    if end < last_step:
      jax.block_until_ready(losses)
      self._steps_per_call = _steps_in_time((time.monotonic() - start) / (end - begin))
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
      return self._programs["order"].call(self._key(seed), self._number(epoch))
    parts = dict(images=spec.plan.phases[0].images, flip=spec.config.augment.flip)
    found = balanced_order(self.data.train_labels, seed, epoch, **parts)
    return mesh_lib.replicate(found, spec.mesh)

  def _number(self, value: int) -> jax.Array:
    return mesh_lib.replicate(np.int32(value), self.spec.mesh)

  def _key(self, seed: int) -> Any:
    return mesh_lib.replicate(seed_key(seed), self.spec.mesh)


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
  plan, config = spec.plan, spec.config
  if whole_epochs is None:
    whole_epochs = jax.default_backend() != "cpu"
  everywhere = mesh_lib.replicated(spec.mesh)

  def array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=everywhere)

  key, shape = array((2,), jnp.uint32), (config.data.image_size, config.data.image_size)
  train_set = abstract_batch(everywhere, plan.train_images, shape)
  group = plan.eval_batch_size * spec.devices
  padded = math.ceil(plan.eval_images / group) * group
  eval_set = abstract_batch(everywhere, padded, shape).replace(index=array((padded,), jnp.int32))
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

  # Those that train come first: on accelerators one of an epoch, else one of each kind of step.
  kinds = (None,) if whole_epochs else map(plan.kind_of, range(plan.total_steps))
  jobs: dict[Any, Callable[[], Program]] = {kind: train(kind) for kind in dict.fromkeys(kinds)}
  jobs["evaluate"] = other(eval_step.evaluate_on_mesh(spec), (state.eval_variables(), eval_set))
  jobs["init"] = other(init, (key, train_set.image))
  if not balanced:
    jobs["order"] = other(on_mesh(order_of, spec), (key, array((), jnp.int32)))
  return BackgroundCompiler(jobs).wait(), carry


def _padded(data: Arrays, spec: TrainSpec) -> Batch:
  """The evaluation images in whole batches on every device."""
  size = spec.plan.eval_batch_size
  return pad_batches(data.eval_images, data.eval_labels, batch=size, devices=spec.devices)


def _steps_in_time(seconds: float) -> int:
  """The number of steps of `seconds` each in `_SECONDS`, the same in all processes."""
  return min(processes.gather(min(max(int(_SECONDS / seconds), 1), 2**30)))


def _check_size(arrays: Arrays, config: ConfigDict, follow: Collection[str], where: str) -> None:
  """Makes sure that images are squares of the config's size, or may decide it (`follow`)."""
  data, (height, width) = config.data, arrays.train_images.shape[1:3]
  if height != width:
    raise UserError(
      f"the images of {where} have {height} x {width} pixels, and a recipe that "
      "trains from memory takes squares only: crop or resize them."
    )
  if height != data.image_size and not ("data.image_size" in follow and arrays.is_own):
    raise UserError(
      f"the images of {where} have {height} x {width} pixels but "
      f"config.data.image_size is {data.image_size}: set --config.data.image_size={height}."
    )
