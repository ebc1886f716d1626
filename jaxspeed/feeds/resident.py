"""The feed of a data set in memory."""

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.cluster import processes
from jaxspeed.data.balance import balanced_order
from jaxspeed.data.batch import WARMUP, Batch, Order, pad_batches, purpose_key, seed_key
from jaxspeed.data.memory.arrays import Arrays, open_arrays, take_arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import Program, compile_program
from jaxspeed.errors import UserError
from jaxspeed.feeds.protocol import Feed, RunEvaluation
from jaxspeed.feeds.resident_programs import compile_programs, place
from jaxspeed.planning.plan import Phase
from jaxspeed.steps import eval_step
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.outcomes import EvalResult
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
    self._programs = compile_programs(spec)
    self.carry = self._programs.carry

  @staticmethod
  def open_data(
    config: ConfigDict,
    console: Console,
    *,
    follow: Collection[str],
    phases: Sequence[Phase] | None,
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
    )
    _check_size(arrays, config, follow, data.path or data.name)
    return arrays

  @staticmethod
  def take_data(data: Arrays, config: ConfigDict, *, follow: Collection[str]) -> Arrays:
    """Checks arrays that Python passes; they may decide the fields in `follow`.

    Raises:
      UserError: labels or sizes do not fit the config.
    """
    arrays = take_arrays(
      data,
      classes=config.data.classes,
      follow="data.classes" in follow,
      tune=config.tune_on == "validation",
      share=config.data.hold_out,
    )
    _check_size(arrays, config, follow, "data=")
    return arrays

  @staticmethod
  def prepare_evaluation(
    data: Arrays, spec: TrainSpec, phase: Phase, variables: Any
  ) -> RunEvaluation:
    """Compiles one program that evaluates the data set; returns a function that calls it."""
    padded = pad_batches(
      data.eval_images, data.eval_labels, batch=spec.plan.eval_batch_size, devices=spec.devices
    )
    placed = mesh_lib.replicate(padded, spec.mesh)
    abstract = mesh_lib.abstract((variables, placed), mesh_lib.replicated(spec.mesh))
    options = spec.common_options(jax.default_backend())
    program = compile_program(eval_step.evaluate_on_mesh(spec), abstract, options=options)
    return lambda: (program.call(variables, placed), {})

  @property
  def whole_epochs(self) -> bool:
    """Whether one program runs an epoch, as on accelerators."""
    return self._programs.epoch is not None

  @property
  def programs(self) -> list[Program]:
    return self._programs.all()

  def place(self) -> None:
    """Copies the data set to the devices."""
    self._resident = jax.block_until_ready(place(self.data, self.spec))

  @property
  def needs_warm_up(self) -> bool:
    """Whether the config asks for a warm-up; with "auto", accelerators get one."""
    warmup = self.spec.config.warmup
    return warmup == "on" or (warmup == "auto" and self.whole_epochs)

  def warm_up(self) -> None:
    """Runs every program on random labels, from which nothing can be learned: a step of each kind.

    On a GPU, the first call of a program loads its kernels and makes cuDNN's plans; airbench leaves
    that out of its clock in the same way. The resulting state is thrown away.
    """
    spec, programs, resident = self.spec, self._programs, self._resident
    key = mesh_lib.replicate(np.asarray(purpose_key(seed_key(0), WARMUP, 0)), spec.mesh)
    classes, images = spec.config.data.classes, spec.plan.train_images
    labels = np.random.default_rng(0).integers(classes, size=images)
    train = resident.train.replace(label=mesh_lib.replicate(labels.astype(np.int32), spec.mesh))
    state = programs.init.call(key, train.image)
    carry = Carry(state, mesh_lib.replicate(MetricSums.zero(spec.accumulation), spec.mesh))
    order = self._order(0, 0)
    for kind, program in programs.train.items():
      if kind is not None:
        carry, _ = program.call(carry, train, order, resident.table)
    first = 0
    for span in spec.plan.step_ranges() if programs.epoch is not None else ():
      assert programs.epoch is not None
      carry = carry.replace(state=carry.state.replace(step=self._number(first)))
      stop = self._number(min(first + len(span.kinds), span.end))
      carry, _ = programs.epoch.call(carry, train, order, resident.table, stop)
      first = span.end
    if (steps := min(self._steps_per_call, spec.plan.steps_in_epoch(0) - 1)) > 0 < first:
      carry = carry.replace(state=carry.state.replace(step=self._number(0)))
      carry, _ = self._take(carry, train, order, 0, steps, spec.plan.steps_in_epoch(0))
    jax.block_until_ready(programs.evaluate.call(carry.state.eval_variables(), resident.eval))

  def init(self, seed: int) -> TrainState:
    return self._programs.init.call(self._key(seed), self._resident.train.image)

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    plan, programs = self.spec.plan, self._programs
    data, table = self._resident.train, self._resident.table
    order = self._order(seed, plan.epoch_of(first_step)[0])
    begin = first_step
    while programs.epoch is not None and begin < last_step:
      end = min(begin + self._steps_per_call, last_step)
      carry, losses = self._take(carry, data, order, begin, end, last_step)
      yield StepOutput(end, carry, losses, count=end - begin)
      begin = end
    for step in range(begin, last_step):
      program = programs.train[plan.kind_of(step)]
      carry, loss = program.call(carry, data, order, table)
      yield StepOutput(step + 1, carry, loss)

  def _take(
    self, carry: Carry, data: Batch, order: Order, begin: int, end: int, last_step: int
  ) -> tuple[Carry, Any]:
    """Calls the program of an epoch; a call before its last one is waited for and measured."""
    assert self._programs.epoch is not None
    start = time.monotonic()
    parts = (data, order, self._resident.table, self._number(end))
    carry, losses = self._programs.epoch.call(carry, *parts)
    if end < last_step:
      jax.block_until_ready(losses)
      self._steps_per_call = _steps_in_time((time.monotonic() - start) / (end - begin))
    return carry, losses

  def evaluate(self, variables: dict[str, Any], step: int) -> EvalResult:
    return self._programs.evaluate.call(variables, self._resident.eval)

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
    spec, program = self.spec, self._programs.order
    if program is not None:
      return program.call(self._key(seed), self._number(epoch))
    parts = dict(images=spec.plan.phases[0].images, flip=spec.config.augment.flip)
    found = balanced_order(self.data.train_labels, seed, epoch, **parts)
    return mesh_lib.replicate(found, spec.mesh)

  def _number(self, value: int) -> jax.Array:
    return mesh_lib.replicate(np.int32(value), self.spec.mesh)

  def _key(self, seed: int) -> Any:
    return mesh_lib.replicate(seed_key(seed), self.spec.mesh)


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
