"""The feed of a data set in memory."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.data.batch import WARMUP, pad_batches, purpose_key, seed_key
from jaxspeed.data.memory.arrays import Arrays, open_arrays
from jaxspeed.data.memory.passed import take_arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import Program, compile_program
from jaxspeed.errors import UserError
from jaxspeed.feeds.protocol import Feed, RunEvaluation
from jaxspeed.feeds.resident_programs import compile_programs, place
from jaxspeed.planning.plan import Phase
from jaxspeed.steps import eval_step
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, StepOutput, TrainState


class ResidentFeed(Feed):
  """Trains and evaluates on a data set that every device holds in memory.

  One program runs an epoch on accelerators, a step on CPUs (`compile_programs`).
  """

  def __init__(self, arrays: Arrays, spec: TrainSpec) -> None:
    self._spec = spec
    self._arrays = arrays
    self._programs = compile_programs(spec)
    self._uncounted = self._programs.all()
    self.carry = self._programs.carry
    self.benchmark, self.evaluated_on = arrays.benchmark, arrays.evaluated_on

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
    )
    _check_size(arrays, config, follow, data.path or data.name)
    return arrays

  @staticmethod
  def take_data(data: Arrays, config: ConfigDict, *, follow: Collection[str]) -> Arrays:
    """Checks arrays that Python passes; they may decide the fields in `follow`.

    Raises:
      UserError: labels or sizes do not fit the config.
    """
    tune = config.tune_on == "validation"
    may_follow = "data.classes" in follow
    arrays = take_arrays(data, classes=config.data.classes, follow=may_follow, tune=tune)
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
    program = compile_program(eval_step.evaluate_on_mesh(spec), abstract)
    return lambda: (program.call(variables, placed), {})

  @property
  def programs(self) -> list[Program]:
    """The programs compiled by now, a training program first."""
    return [*self._programs.train.values(), *self._programs.all()[:2], self._programs.evaluate]

  def new_programs(self) -> list[Program]:
    """All programs at the first call, none afterwards."""
    new, self._uncounted = self._uncounted, []
    return new

  def place(self) -> None:
    """Copies the data set to the devices."""
    self._resident = jax.block_until_ready(place(self._arrays, self._spec))

  @property
  def needs_warm_up(self) -> bool:
    """Whether the config asks for a warm-up; with "auto", accelerators get one."""
    warmup = self._spec.config.warmup
    return warmup == "on" or (warmup == "auto" and self._programs.whole_epochs)

  def warm_up(self) -> None:
    """Runs every program once on random labels, from which nothing can be learned.

    On a GPU, the first call of a program loads its kernels and makes cuDNN's plans; airbench leaves
    that out of its clock in the same way. The resulting state is thrown away.
    """
    spec, programs, resident = self._spec, self._programs, self._resident
    key = mesh_lib.replicate(np.asarray(purpose_key(seed_key(0), WARMUP, 0)), spec.mesh)
    labels = np.random.default_rng(0).integers(
      spec.config.data.classes, size=spec.plan.train_images
    )
    train = resident.train.replace(label=mesh_lib.replicate(labels.astype(np.int32), spec.mesh))
    state = programs.init.call(key, train.image)
    carry = Carry(state, mesh_lib.replicate(MetricSums.zero(spec.accumulation), spec.mesh))
    order = programs.order.call(key, mesh_lib.replicate(np.int32(0), spec.mesh))
    for program in programs.train.values():
      carry, _ = program.call(carry, train, order, resident.table)
    jax.block_until_ready(programs.evaluate.call(carry.state.evaluated(), resident.eval))

  def init(self, seed: int) -> TrainState:
    """The state before the first step."""
    return self._programs.init.call(self._key(seed), self._resident.train.image)

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    """Takes the steps `first_step <= step < last_step`; arguments as in `Feed.train`.

    Raises:
      UserError: an accelerator would have to resume inside an epoch, which is one program there.
    """
    plan, programs = self._spec.plan, self._programs
    data, table = self._resident.train, self._resident.table
    epoch, step_in_epoch = plan.epoch_of(first_step)
    order = programs.order.call(
      self._key(seed), mesh_lib.replicate(np.int32(epoch), self._spec.mesh)
    )
    if programs.whole_epochs:
      if step_in_epoch:
        raise UserError(
          "the newest checkpoint lies inside an epoch, where a CPU saved it; "
          "an accelerator resumes only from the end of an epoch: finish the epoch on a CPU."
        )
      carry, losses = programs.train[plan.segments(epoch)].call(carry, data, order, table)
      yield StepOutput(last_step, carry, losses)
      return
    for step in range(first_step, last_step):
      program = programs.train[((1, (plan.kind_of(step),)),)]
      carry, loss = program.call(carry, data, order, table)
      yield StepOutput(step + 1, carry, loss)

  def evaluate(self, variables: dict[str, Any], step: int) -> MetricSums:
    """Sums over all evaluation images, each counted once."""
    return self._programs.evaluate.call(variables, self._resident.eval)

  def _key(self, seed: int) -> Any:
    return mesh_lib.replicate(seed_key(seed), self._spec.mesh)


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
