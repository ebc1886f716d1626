"""The feed of images from disk: programs by shape, and a run's batches."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from jaxspeed.data.batch import Batch, balanced_order, seed_key
from jaxspeed.data.disk.images import import_tensorflow
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.disk.sets import ImageSets, open_sets
from jaxspeed.data.disk.streams import EvalStream, TrainStream
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program
from jaxspeed.errors import UserError
from jaxspeed.feeds.broken import check_headers
from jaxspeed.feeds.evaluation import Evaluation, abstract_batch, compile_job, how_to_read
from jaxspeed.feeds.protocol import Broken, DataRequest, Feed, Pixels, RunEvaluation
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
# The side in pixels of an image that is only looked at.
_SHOWN_SIDE = 64


class StreamFeed(Feed):
  """Trains and evaluates on images that are read from disk while the devices work.

  Batches arrive as uint8; the devices flip and normalise them. Each shape of the plan and of the
  rectangles has its own program. Threads compile them in the order in which they are needed, those
  of later phases while the first one trains.
  """

  def __init__(self, sets: ImageSets, spec: TrainSpec) -> None:
    super().__init__(sets, spec)
    plan, everywhere = spec.plan, mesh_lib.replicated(spec.mesh)
    self._table = mesh_lib.replicate(plan.table_in(spec.accumulation), spec.mesh)
    self._evaluations = {
      phase: Evaluation(spec, sets.sets[phase.copies].eval, phase) for phase in plan.phases
    }
    size = plan.phases[0].image_size
    init = on_mesh(init_state, spec)
    # All of the 10,000 images that arrays whiten from would delay the first step by an epoch.
    self._init_images = min(images_for_init(spec), _WHITENED)
    shapes = (
      jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere),
      jax.ShapeDtypeStruct((self._init_images, size, size, 3), jnp.uint8, sharding=everywhere),
    )
    state = mesh_lib.abstract(jax.eval_shape(init, *shapes), everywhere)
    sums = mesh_lib.abstract(MetricSums.zero(spec.accumulation), everywhere)
    self.carry = Carry(state, sums)
    jobs: dict[Any, Callable[[], Program]] = {}
    for phase in plan.phases:
      jobs[_train_key(phase)] = self._train_job(phase)
      jobs.setdefault("init", compile_job(spec, init, *shapes))
      jobs |= self._evaluations[phase].jobs(state.eval_variables())
    self._ahead = BackgroundCompiler(jobs)
    self._next = spec.config.seed, 0  # of the next batch: the run's seed, and the step
    self._batches = batches_from(sets, spec, *self._next, self.broken)
    # The loop waits for batches meanwhile, so a thread waits for the ends of steps.
    self._ends = ThreadPoolExecutor(1, thread_name_prefix="step ends")
    self._step_end = Future[float]()  # of the last step
    self._step_end.set_result(0.0)

  @staticmethod
  def open_data(asked: DataRequest) -> ImageSets:
    """Opens the image sets that phases read, without their images.

    Raises:
      UserError: as `open_sets` and `check_headers`, or arrays are given.
    """
    config, phases = asked.config, asked.phases
    if asked.given is not None:
      raise UserError(
        f"this recipe's images come from disk (config.data.feed={config.data.feed}), and data= are "
        "arrays: pass the path of a folder, or take a recipe that trains from memory, as cifar10 "
        "does, and one without phases if data.feed is resident."
      )
    with progress_bar(asked.console, "reading headers") as show:
      wanted = make_plan(config).phases if phases is None else phases
      sets = open_sets(config, wanted, show, follow="data.classes" in asked.follow)
    # A caller that names phases only evaluates.
    splits = ("train", "eval") if phases is None else ("eval",)
    check_headers(sets, config.data.max_broken, splits)
    return sets

  @staticmethod
  def prepare_evaluation(
    data: ImageSets, spec: TrainSpec, phase: Phase, variables: Any
  ) -> RunEvaluation:
    evaluation = Evaluation(spec, data.sets[phase.copies].eval, phase)
    abstract = mesh_lib.abstract(variables, mesh_lib.replicated(spec.mesh))
    programs = BackgroundCompiler(evaluation.jobs(abstract)).wait()
    return lambda: evaluation.run(programs, variables)

  @property
  def programs(self) -> list[Program]:
    return list(self._ahead.ready().values())

  def init(self, seed: int) -> TrainState:
    count, size = self._init_images, self.spec.plan.phases[0].image_size
    images = np.zeros((count, size, size, 3), np.uint8)
    if count > 1 and not self.spec.config.data.synthetic:
      images = self.show_trained(seed, 0, count).image
    arguments = (seed_key(seed), images)
    return self._ahead["init"].call(*mesh_lib.replicate(arguments, self.spec.mesh))

  def wait_for(self, step: int) -> None:
    if not self.spec.config.data.synthetic:
      import_tensorflow()  # for some seconds in which XLA compiles
    phase = self.spec.plan.phase_of(step)
    evaluation = self._evaluations[phase]
    for key in (_train_key(phase), "init", *map(evaluation.key, evaluation.shapes)):
      _ = self._ahead[key]

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    program = self._ahead[_train_key(self.spec.plan.phase_of(first_step))]
    if self._next != (seed, first_step):
      self._batches.close()
      self._batches = batches_from(self.data, self.spec, seed, first_step, self.broken)
    for step in range(first_step, last_step):
      batch = self._next_batch()
      self._next = seed, step + 1
      if not self.spec.uses_index:
        batch = batch.replace(index=None)
      batch = mesh_lib.split(batch, self.spec.mesh)
      carry, loss = program.call(carry, batch, self._table)
      self._step_end = self._ends.submit(_end_of, loss)
      yield StepOutput(step + 1, carry, loss)

  def _next_batch(self) -> Batch:
    """The next batch; counts the wait for it while no step is under way.

    The wait starts at the request, or at the end of the last step if that is later.
    """
    request = time.monotonic()
    batch = next(self._batches)
    if self._step_end.done():
      self.waited_seconds += time.monotonic() - max(request, self._step_end.result())
    return batch

  def evaluate(self, variables: dict[str, Any], step: int) -> EvalResult:
    evaluation = self._evaluations[self.spec.plan.phase_of(step - 1)]
    result, broken = evaluation.run(self._ahead, variables)
    self.broken |= broken
    return result

  def eval_names(self, step: int) -> Sequence[str]:
    """The paths of the evaluation images of the phase of step `step - 1`; () for noise."""
    return self._evaluations[self.spec.plan.phase_of(step - 1)].split.paths()

  def show_evaluated(self, numbers: Int[np.ndarray, "k"], step: int) -> Pixels:
    """The middle squares of evaluation images, `_SHOWN_SIDE` pixels a side."""
    split = self._evaluations[self.spec.plan.phase_of(step - 1)].split
    wanted = np.asarray(numbers, np.int64)
    batch = EvalBatch((_SHOWN_SIDE, _SHOWN_SIDE), wanted, np.ones(len(wanted), bool))
    with contextlib.closing(EvalStream(split, [batch], resize=_SHOWN_SIDE)) as stream:
      return np.array(next(stream).image)

  def show_trained(self, seed: int, step: int, count: int) -> Batch:
    plan = self.spec.plan
    phase = dataclasses.replace(plan.phase_of(step), batch_size=count)
    steps = [(plan.epoch_of(step)[0], 0)]
    stream = _stream(self.data, self.spec, phase, seed, steps, process=0, processes=1)
    with contextlib.closing(stream):
      batch = next(stream)
      return batch.replace(image=np.array(batch.image))

  def close(self) -> None:
    self._ahead.cancel()
    self._ends.shutdown(wait=False, cancel_futures=True)
    self._batches.close()

  def _train_job(self, phase: Phase) -> Callable[[], Program]:
    spec, shape = self.spec, (phase.image_size, phase.image_size)
    batch = abstract_batch(mesh_lib.sharded(spec.mesh), phase.batch_size, shape)
    batch = batch.replace(flip=batch.mask, index=batch.label if spec.uses_index else None)
    table = mesh_lib.abstract(self._table, mesh_lib.replicated(spec.mesh))
    return compile_job(spec, batch_step(spec), self.carry, batch, table, trains=True)


def _train_key(phase: Phase) -> tuple:
  return ("train", phase.batch_size, phase.image_size)


def _end_of(loss: jax.Array) -> float:
  """Waits for the step that computes `loss`; returns the time at its end."""
  loss.block_until_ready()
  return time.monotonic()


def batches_from(
  sets: ImageSets, spec: TrainSpec, seed: int, first_step: int, broken: Broken
) -> Generator[Batch]:
  """Yields the batch of each step from `first_step` on; closing the generator ends its threads.

  The stream of a phase opens in the last epoch before it, so that it has batches ready. Images
  that cannot be read are added to `broken`.
  """
  plan, opened = spec.plan, dict[Phase, TrainStream]()

  def stream_of(phase: Phase, begin: int) -> TrainStream:
    if phase not in opened:
      end = min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
      steps = map(plan.epoch_of, range(begin, end))
      opened[phase] = _stream(sets, spec, phase, seed, steps)
    return opened[phase]

  try:
    for step in range(first_step, plan.total_steps):
      phase = plan.phase_of(step)
      for ended in [each for each in opened if each.first_epoch < phase.first_epoch]:
        opened.pop(ended).close()
      stream = stream_of(phase, step)
      batch = next(stream)
      broken |= {("train", stream.split.name(i)): why for i, why in stream.broken.items()}
      stream.broken.clear()
      following = plan.phase_of(plan.end_of_epoch(step))
      stream_of(following, following.first_step)
      yield batch
  finally:
    for stream in opened.values():
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
