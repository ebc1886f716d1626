"""The feed of a data set in memory, and its programs."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

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
from jaxspeed.devices.compile import BackgroundCompiler, Program
from jaxspeed.errors import UserError
from jaxspeed.feeds.evaluation import abstract_batch, compile_job
from jaxspeed.feeds.protocol import DataRequest, Feed, Pixels, RunEvaluation
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
    self.whole_epochs = None in self._programs

  @staticmethod
  def open_data(asked: DataRequest) -> Arrays:
    """Reads a data set into memory.

    Raises:
      UserError: as `open_arrays`, or the images do not have the size in the config.
    """
    data, tune = asked.config.data, asked.config.tune_on == "validation"
    follow = "data.classes" in asked.follow
    arrays = open_arrays(data, follow=follow, tune=tune, given=asked.given)
    height, width = arrays.train_images.shape[1:3]
    where = "data=" if asked.given is not None else data.path or data.name
    if height != width or height != data.image_size and "data.image_size" not in asked.follow:
      advice = f", or set --config.data.image_size={height}" * (height == width)
      raise UserError(
        f"the images of {where} have {height} x {width} pixels and this recipe trains on squares "
        f"of config.data.image_size={data.image_size}: crop or resize them{advice}."
      )
    return arrays

  @staticmethod
  def prepare_evaluation(
    data: Arrays, spec: TrainSpec, phase: Phase, variables: Any
  ) -> RunEvaluation:
    """Compiles one program that evaluates the data set; returns a function that calls it."""
    size = spec.plan.eval_batch_size * spec.devices
    padded = pad_batches(data.eval_images, data.eval_labels, size)
    placed = mesh_lib.replicate(padded, spec.mesh)
    abstract = mesh_lib.abstract((variables, placed), mesh_lib.replicated(spec.mesh))
    program = compile_job(spec, eval_step.evaluate_on_mesh(spec), *abstract)()
    return lambda: (program.call(variables, placed), {})

  @property
  def programs(self) -> list[Program]:
    return list(self._programs.values())

  def place(self) -> None:
    """Copies the data set to the devices."""
    data, spec = self.data, self.spec
    labels = data.train_labels.astype(np.int32)
    train = Batch(image=data.train_images, label=labels, mask=np.ones(len(labels), bool))
    size = spec.plan.eval_batch_size * spec.devices
    evaluated = pad_batches(data.eval_images, data.eval_labels, size)
    parts = train, evaluated, spec.plan.table_in(spec.accumulation)
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

  def show_evaluated(self, numbers: Int[np.ndarray, "k"], step: int) -> Pixels:
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

  key, shape = array((2,), jnp.uint32), (config.data.image_size, config.data.image_size)
  train_set = abstract_batch(everywhere, plan.train_images, shape)
  group = plan.eval_batch_size * spec.devices
  padded = plan.eval_images + -plan.eval_images % group
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
    # The last argument: before which step to stop.
    jobs[None] = compile_job(spec, steps, *arguments, array(), trains=True)
  else:
    for kind in dict.fromkeys(map(plan.kind_of, range(plan.total_steps))):
      step = on_mesh(resident_step, spec, phase=phase, kind=kind)
      jobs[kind] = compile_job(spec, step, *arguments, trains=True)
  jobs["evaluate"] = compile_job(
    spec, eval_step.evaluate_on_mesh(spec), state.eval_variables(), eval_set
  )
  jobs["init"] = compile_job(spec, init, key, train_set.image)
  if not balanced:
    jobs["order"] = compile_job(spec, on_mesh(order_of, spec), key, array())
  return BackgroundCompiler(jobs).wait(), carry
