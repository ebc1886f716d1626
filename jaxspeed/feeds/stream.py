"""The feed of images from disk: programs by shape, a run's batches, the wait for them."""

import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.data.balance import balanced_order
from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.data.disk.images import import_tensorflow
from jaxspeed.data.disk.sets import ImageSets, open_sets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program
from jaxspeed.errors import UserError
from jaxspeed.feeds.broken import check_headers
from jaxspeed.feeds.evaluation import (
  abstract_batch,
  how_to_read,
  make_evaluation,
  small_squares,
)
from jaxspeed.feeds.protocol import Broken, Feed, RunEvaluation
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase
from jaxspeed.records.console import progress_bar
from jaxspeed.steps.init import images_for_init, init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.outcomes import EvalResult
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, StepOutput, TrainState

# The most images from which whitening filters are computed: half a million patches at 48 px.
_WHITENED = 256


class StreamFeed(Feed):
  """Trains and evaluates on images that are read from disk while the devices work.

  Batches arrive as uint8; the devices flip and normalise them. Each shape of the plan and of the
  rectangles has its own program. Threads compile them in the order in which they are needed, those
  of later phases while the first one trains.
  """

  def __init__(self, sets: ImageSets, spec: TrainSpec) -> None:
    super().__init__(sets, spec)
    config, plan = spec.config, spec.plan
    everywhere = mesh_lib.replicated(spec.mesh)
    self._table = mesh_lib.replicate(plan.table_in(spec.accumulation), spec.mesh)
    self._evaluations = {
      phase: make_evaluation(sets.sets[phase.copies].eval, spec, phase) for phase in plan.phases
    }
    size = plan.phases[0].image_size
    self._init = on_mesh(init_state, spec)
    # All of the 10,000 images that arrays whiten from would delay the first step by an epoch.
    self._init_images = min(images_for_init(spec), _WHITENED)
    shapes = (
      jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere),
      jax.ShapeDtypeStruct((self._init_images, size, size, 3), jnp.uint8, sharding=everywhere),
    )
    state = mesh_lib.abstract(jax.eval_shape(self._init, *shapes), everywhere)
    sums = mesh_lib.abstract(MetricSums.zero(spec.accumulation), everywhere)
    self.carry = Carry(state, sums)
    jobs: dict[Any, Callable[[], Program]] = {}
    common = spec.common_options(jax.default_backend())
    for phase in plan.phases:
      jobs[_train_key(phase)] = functools.partial(self._compile_train, phase)
      jobs.setdefault("init", lambda: compile_program(self._init, shapes, options=common))
      jobs |= self._evaluations[phase].jobs(state.eval_variables())
    self._ahead = BackgroundCompiler(jobs)
    # Imported while XLA compiles: no other Python runs then.
    synthetic = config.data.synthetic
    self._loading = None if synthetic else ThreadPoolExecutor(1).submit(import_tensorflow)
    self._broken: Broken = {}  # found since they were taken
    self._next = config.seed, 0  # of the next batch: the run's seed, and the step
    self._batches = train_batches(sets, spec, *self._next, self._broken)
    self._wait = InputWait()

  @staticmethod
  def open_data(
    config: ConfigDict,
    console: Console,
    *,
    follow: Collection[str],
    phases: Sequence[Phase] | None,
    given: Arrays | None = None,
  ) -> ImageSets:
    """Opens the image sets that phases read, without their images.

    Raises:
      UserError: as `open_sets` and `check_headers`, or arrays are given.
    """
    if given is not None:
      advice = "take a recipe that trains from memory, like cifar10"
      if not config.phases.first_epoch:
        advice = "set data.feed to resident, which keeps arrays on the device"
      raise UserError(
        f"this recipe's images come from disk (config.data.feed={config.data.feed}), and data= are "
        f"arrays: pass the path of a folder, or {advice}."
      )
    with progress_bar(console, "reading headers") as show:
      wanted = make_plan(config).phases if phases is None else phases
      sets = open_sets(config, wanted, show, follow="data.classes" in follow)
    # A caller that names phases only evaluates.
    splits = ("train", "eval") if phases is None else ("eval",)
    check_headers(sets, config.data.max_broken, splits)
    return sets

  @staticmethod
  def prepare_evaluation(
    data: ImageSets, spec: TrainSpec, phase: Phase, variables: Any
  ) -> RunEvaluation:
    evaluation = make_evaluation(data.sets[phase.copies].eval, spec, phase)
    abstract = mesh_lib.abstract(variables, mesh_lib.replicated(spec.mesh))
    programs = BackgroundCompiler(evaluation.jobs(abstract))
    programs.wait()
    return lambda: evaluation.run(programs, variables)

  @property
  def programs(self) -> list[Program]:
    return list(self._ahead.ready().values())

  def place(self) -> None:
    """Waits until TensorFlow, which reads the images, is imported; that takes some seconds."""
    if self._loading is not None:
      self._loading.result()

  def init(self, seed: int) -> TrainState:
    count, size = self._init_images, self.spec.plan.phases[0].image_size
    images = np.zeros((count, size, size, 3), np.uint8)
    if count > 1 and not self.spec.config.data.synthetic:
      images = first_images(self.data, self.spec, seed, 0, count).image
    arguments = (seed_key(seed), images)
    return self._ahead["init"].call(*mesh_lib.replicate(arguments, self.spec.mesh))

  def wait_for(self, step: int) -> None:
    phase = self.spec.plan.phase_of(step)
    evaluation = self._evaluations[phase]
    for key in (_train_key(phase), "init", *map(evaluation.key, evaluation.shapes)):
      _ = self._ahead[key]

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    program = self._ahead[_train_key(self.spec.plan.phase_of(first_step))]
    if self._next != (seed, first_step):
      self._batches.close()
      self._batches = train_batches(self.data, self.spec, seed, first_step, self._broken)
    for step in range(first_step, last_step):
      batch = self._wait.take(self._batches)
      self._next = seed, step + 1
      if not self.spec.uses_index:
        batch = batch.replace(index=None)
      batch = mesh_lib.split(batch, self.spec.mesh)
      carry, loss = program.call(carry, batch, self._table)
      self._wait.dispatched(loss)
      yield StepOutput(step + 1, carry, loss)

  def evaluate(self, variables: dict[str, Any], step: int) -> EvalResult:
    evaluation = self._evaluations[self.spec.plan.phase_of(step - 1)]
    result, broken = evaluation.run(self._ahead, variables)
    self._broken |= broken
    return result

  def eval_names(self, step: int) -> Sequence[str]:
    """The paths of the evaluation images of the phase of step `step - 1`; () for noise."""
    return self._evaluations[self.spec.plan.phase_of(step - 1)].split.paths()

  def show_evaluated(
    self, numbers: Int[np.ndarray, "k"], step: int
  ) -> UInt8[np.ndarray, "m h w 3"]:
    """The middle squares of evaluation images, 64 pixels a side."""
    return small_squares(self._evaluations[self.spec.plan.phase_of(step - 1)].split, numbers)

  def show_trained(self, seed: int, step: int, count: int) -> Batch:
    return first_images(self.data, self.spec, seed, step, count)

  def take_waited_seconds(self) -> float:
    return self._wait.take_seconds()

  def take_broken(self) -> Broken:
    broken = dict(self._broken)
    self._broken.clear()
    return broken

  def close(self) -> None:
    self._ahead.cancel()
    self._wait.close()
    self._batches.close()

  def _compile_train(self, phase: Phase) -> Program:
    spec = self.spec
    function = batch_step(spec)
    shape = (phase.image_size, phase.image_size)
    batch = abstract_batch(mesh_lib.sharded(spec.mesh), phase.batch_size, shape)
    batch = batch.replace(flip=batch.mask, index=batch.label if spec.uses_index else None)
    table = mesh_lib.abstract(self._table, mesh_lib.replicated(spec.mesh))
    return compile_program(
      function,
      (self.carry, batch, table),
      donate=(0,),
      options=spec.compiler_options(jax.default_backend()),
    )


def _train_key(phase: Phase) -> tuple:
  return ("train", phase.batch_size, phase.image_size)


def train_batches(
  sets: ImageSets, spec: TrainSpec, seed: int, first_step: int, broken: Broken
) -> Generator[Batch]:
  """Yields the batch of each step from `first_step` on; closing the generator ends its threads.

  The stream of a phase opens in the last epoch before it, so that it has batches ready.

  Args:
    sets: the open image sets.
    spec: the run's specification.
    seed: the run's seed.
    first_step: the number of the first step.
    broken: takes the images that could not be read.
  """
  plan = spec.plan
  opened: dict[Phase, TrainStream] = {}

  def open_stream(phase: Phase, begin: int) -> None:
    end = min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
    if phase not in opened and begin < end:
      opened[phase] = _stream(sets, spec, phase, seed, map(plan.epoch_of, range(begin, end)))

  try:
    for step in range(first_step, plan.total_steps):
      phase, (epoch, _) = plan.phase_of(step), plan.epoch_of(step)
      for ended in [each for each in opened if each.first_epoch < phase.first_epoch]:
        opened.pop(ended).close()
      open_stream(phase, step)
      stream = opened[phase]
      batch = next(stream)
      broken |= {("train", stream.split.name(i)): why for i, why in stream.broken.items()}
      stream.broken.clear()
      yield batch
      for each in plan.phases:
        if each.first_epoch == epoch + 1:
          open_stream(each, each.first_step)
  finally:
    for stream in opened.values():
      stream.close()


def first_images(sets: ImageSets, spec: TrainSpec, seed: int, step: int, count: int) -> Batch:
  """The first `count` images of the epoch that begins with `step`, for a report."""
  phase = dataclasses.replace(spec.plan.phase_of(step), batch_size=count)
  steps = [(spec.plan.epoch_of(step)[0], 0)]
  stream = _stream(sets, spec, phase, seed, steps, process=0, processes=1)
  try:
    batch = next(stream)
    return batch.replace(image=np.array(batch.image))
  finally:
    stream.close()


def _stream(
  sets: ImageSets,
  spec: TrainSpec,
  phase: Phase,
  seed: int,
  steps: Iterable[tuple[int, int]],
  **part: int,
) -> TrainStream:
  """A stream of a phase's batches with these numbers of epoch and step."""
  config, split = spec.config, sets.sets[phase.copies].train
  order = None
  if config.data.balance == "sampling":
    parts = dict(images=phase.images, flip=config.augment.flip)
    order = functools.partial(balanced_order, split.label, seed, **parts)
  return TrainStream(
    split,
    seed=seed,
    image_size=phase.image_size,
    batch_size=phase.batch_size,
    min_scale=phase.min_scale,
    flip=config.augment.flip,
    steps=steps,
    order=order,
    **how_to_read(spec) | part,
  )


def _end_of(loss: Any) -> float:
  """Waits for the step that computes `loss`; returns the time of its end, in seconds."""
  loss.block_until_ready()
  return time.monotonic()


class InputWait:
  """Measures the seconds in which the devices had no step under way because a batch was missing.

  A wait starts at the end of the last step, or at the request for the next batch if that is later,
  and ends when the batch comes. A thread waits for the end of each step, because the loop itself is
  then waiting for the batch.
  """

  def __init__(self) -> None:
    self._pool = ThreadPoolExecutor(1, thread_name_prefix="step ends")
    self._step: tuple[Any, Future[float]] | None = None
    self._seconds = 0.0

  def dispatched(self, loss: Any) -> None:
    """Notes that the step that computes `loss` is under way."""
    self._step = loss, self._pool.submit(_end_of, loss)

  def take(self, batches: Iterator[Any]) -> Any:
    """Returns the next batch; counts the wait for it while no step is under way."""
    idle_from = time.monotonic()
    batch = next(batches)
    end = time.monotonic()
    if self._step is not None:
      loss, ended = self._step
      # The loop finds out about a step that failed.
      under_way = not loss.is_ready() or ended.exception() is not None
      idle_from = end if under_way else max(idle_from, ended.result())
    self._seconds += max(0.0, end - idle_from)
    return batch

  def take_seconds(self) -> float:
    """The seconds measured since the last call."""
    seconds, self._seconds = self._seconds, 0.0
    return seconds

  def close(self) -> None:
    """Ends the thread after the steps under way, without waiting for them."""
    self._pool.shutdown(wait=False, cancel_futures=True)
