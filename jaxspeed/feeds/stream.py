"""The feed of images from disk: programs by shape, batches to the devices."""

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.data.batch import Batch, seed_key
from jaxspeed.data.disk.batches import HostBatch
from jaxspeed.data.disk.images import import_tensorflow
from jaxspeed.data.disk.noise import NoiseStream
from jaxspeed.data.disk.sets import ImageSets, open_sets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import BackgroundCompiler, Program, compile_program, in_thread
from jaxspeed.feeds.broken import check_headers
from jaxspeed.feeds.evaluation import (
  abstract_batch,
  compile_evaluation,
  eval_key,
  make_evaluation,
  prepare_evaluation,
  run_evaluation,
)
from jaxspeed.feeds.input_wait import InputWait
from jaxspeed.feeds.protocol import Broken, Feed, RunEvaluation
from jaxspeed.planning.make import lay_out
from jaxspeed.planning.plan import Phase, Plan, StepKind
from jaxspeed.records.console import progress_bar
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh, tabled_step
from jaxspeed.steps.spec import Job
from jaxspeed.steps.state import Carry, StepOutput, TrainState

_log = logging.getLogger("jaxspeed")


class StreamFeed(Feed):
  """Trains and evaluates on images that are read from disk while the devices work.

  Batches arrive as uint8; what is mirrored and normalised is so on the devices. Programs are those
  of the shapes of the plan and of the rectangles; they are compiled in threads, in the order in
  which they are needed, and all but the first phase's while that one trains.
  """

  def __init__(self, sets: ImageSets, job: Job) -> None:
    self._sets, self._job = sets, job
    config, plan = job.config, job.plan
    everywhere = mesh_lib.replicated(job.mesh)
    self._table = mesh_lib.replicate(plan.table_in(job.accumulation), job.mesh)
    self._evaluations = {
      phase: make_evaluation(
        sets.sets[phase.copies].eval, config, phase, plan.eval_batch_size * job.devices
      )
      for phase in plan.phases
    }
    size = plan.phases[0].image_size
    self._init = on_mesh(init_state, job)
    shapes = (
      jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere),
      jax.ShapeDtypeStruct((1, size, size, 3), jnp.uint8, sharding=everywhere),
    )
    state = mesh_lib.abstract(jax.eval_shape(self._init, *shapes), everywhere)
    sums = mesh_lib.abstract(MetricSums.zero(job.accumulation), everywhere)
    self.carry = Carry(state, sums)
    self.benchmark, self.evaluated_on = sets.benchmark, sets.evaluated_on
    jobs: dict[Any, Callable[[], Program]] = {}
    for phase in plan.phases:
      jobs[_train_key(phase)] = functools.partial(self._compile_train, phase)
      jobs.setdefault("init", lambda: compile_program(self._init, shapes))
      evaluation = self._evaluations[phase]
      for shape in evaluation.shapes:
        jobs.setdefault(
          eval_key(evaluation, shape),
          functools.partial(
            compile_evaluation, job, state.evaluated(), evaluation, shape, plan.eval_batch_size
          ),
        )
    self._ahead = BackgroundCompiler(jobs)
    # Beside the compilation, in which no Python runs.
    self._loading = None if config.data.synthetic else in_thread(import_tensorflow)
    self._counted: set[Any] = set()
    self._told: set[Phase] = set()
    self._stream: TrainStream | NoiseStream | None = None
    self._position: tuple[int, int] | None = None  # seed and step: what comes next
    self._next: tuple[Phase, int, TrainStream | NoiseStream] | None = None
    self._broken: Broken = {}
    self._wait = InputWait()

  @staticmethod
  def open_data(
    config: ConfigDict,
    console: Console,
    *,
    follow: Collection[str],
    phases: Sequence[Phase] | None,
  ) -> ImageSets:
    """Opens the sets that phases read, without their images.

    Raises:
      UserError: as `open_sets` and `check_headers`.
    """
    with progress_bar(console, "reading headers") as show:
      wanted = lay_out(config).phases if phases is None else phases
      sets = open_sets(config, wanted, show, follow="data.classes" in follow)
    # Who asks for a phase evaluates.
    check_headers(sets, config, ("train", "eval") if phases is None else ("eval",))
    return sets

  @staticmethod
  def prepare_evaluation(data: ImageSets, job: Job, phase: Phase, variables: Any) -> RunEvaluation:
    """What evaluates as a phase does (`run_evaluation`), with its programs compiled."""
    return prepare_evaluation(data, job, phase, variables)

  @property
  def programs(self) -> list[Program]:
    """Those compiled by now, a training program first."""
    return list(self._ahead.ready().values())

  def new_programs(self) -> list[Program]:
    """Those that were compiled since the last time."""
    ready = self._ahead.ready()
    new = [program for key, program in ready.items() if key not in self._counted]
    self._counted |= ready.keys()
    return new

  def place(self) -> None:
    """Images come with each step; what reads them is loaded, which takes some seconds."""
    if self._loading is not None:
      self._loading.result()

  def init(self, seed: int) -> TrainState:
    """The state before the first step."""
    size = self._job.plan.phases[0].image_size
    arguments = (seed_key(seed), np.zeros((1, size, size, 3), np.uint8))
    return self._ahead["init"].call(*mesh_lib.replicate(arguments, self._job.mesh))

  def wait_for(self, step: int) -> list[str]:
    """Waits for the programs of the phase of a step; a line on when they were ready, once each."""
    phase = self._job.plan.phase_of(step)
    evaluation = self._evaluations[phase]
    keys = [_train_key(phase), "init", *(eval_key(evaluation, s) for s in evaluation.shapes)]
    ready, early = self._ahead.get(keys)
    phases = self._job.plan.phases
    if phase in self._told or len(phases) == 1:
      return []
    self._told.add(phase)
    number = phases.index(phase) + 1
    when = f"the {len(keys)} programs of phase {number} were ready {ready:.1f} s after the start"
    if early < 0:
      return [f"{when}: the run waited {-early:.1f} s for them"]
    return [f"{when}, {early:.1f} s before they were needed"]

  def train(self, carry: Carry, seed: int, first_step: int, last_step: int) -> Iterator[StepOutput]:
    """The steps `first_step <= step < last_step`, each yielded once it is under way.

    Args:
      carry: after `first_step` steps; donated.
      seed: of the run.
      first_step: the number of the first one, in the run.
      last_step: the end of the epoch of `first_step`.
    """
    plan = self._job.plan
    phase, epoch = plan.phase_of(first_step), plan.epoch_of(first_step)[0]
    program = self._ahead[_train_key(phase)]
    if self._position != (seed, first_step) or self._stream is None:
      self._open(phase, seed, first_step)
    self._wait.begin()
    for step in range(first_step + 1, last_step + 1):
      host = self._take()
      batch = Batch(image=host.image, label=host.label, mask=host.mask)
      placed, mirror = mesh_lib.split((batch, host.mirror), self._job.mesh)
      carry, loss = program.call(carry, placed, mirror, self._table)
      self._wait.dispatched(loss)
      self._position = (seed, step)
      if step == _end_of(phase, plan):
        self._close_stream()
      elif epoch == phase.first_epoch + phase.epochs - 1 and self._next is None:
        # So that its first batches are there when the phase begins.
        self._open_next(phase, seed)
      yield StepOutput(step, carry, loss)

  def evaluate(self, variables: dict[str, Any], step: int) -> MetricSums:
    """Sums over the evaluation images, each of them once, as in the phase that `step` steps end."""
    evaluation = self._evaluations[self._job.plan.phase_of(step - 1)]
    programs = {s: self._ahead[eval_key(evaluation, s)] for s in evaluation.shapes}
    sums, broken = run_evaluation(self._job, evaluation, programs, variables)
    self._broken |= {("eval", name): reason for name, reason in broken.items()}
    return sums

  def take_waited_seconds(self) -> float:
    """Seconds in which the devices had nothing to do for want of a batch, since the last call."""
    return self._wait.take_seconds()

  def take_broken(self) -> Broken:
    """Images that this process could not read since the last call."""
    self._note_broken()
    broken, self._broken = self._broken, {}
    return broken

  def close(self) -> None:
    """Ends what runs in the background."""
    self._ahead.cancel()
    self._wait.close()
    self._close_stream()
    if self._next is not None:
      self._next[2].close()
      self._next = None

  def _make_stream(self, phase: Phase, seed: int, first_step: int) -> Any:
    """From a step on to the end of the phase."""
    config, plan = self._job.config, self._job.plan
    split = self._sets.sets[phase.copies].train
    numbers = range(first_step, _end_of(phase, plan))
    steps = (plan.epoch_of(number) for number in numbers)
    part = dict(process=jax.process_index(), processes=jax.process_count())
    if config.data.synthetic:
      return NoiseStream(split, phase, steps, **part)
    return TrainStream(
      split,
      seed=seed,
      image_size=phase.image_size,
      batch_size=phase.batch_size,
      min_scale=phase.min_scale,
      flip=config.augment.flip,
      steps=steps,
      on_error=config.data.on_error,
      antialias=config.data.antialias,
      read_threads=config.data.read_threads,
      **part,
    )

  def _open(self, phase: Phase, seed: int, first_step: int) -> None:
    self._close_stream()
    if self._next is not None:
      ahead, ahead_seed, stream = self._next
      self._next = None
      if (ahead, ahead_seed, phase.first_step) == (phase, seed, first_step):
        self._stream = stream
        return
      stream.close()
    self._stream = self._make_stream(phase, seed, first_step)

  def _open_next(self, phase: Phase, seed: int) -> None:
    following = [p for p in self._job.plan.phases if p.first_epoch > phase.first_epoch]
    if following:
      stream = self._make_stream(following[0], seed, following[0].first_step)
      self._next = (following[0], seed, stream)

  def _take(self) -> HostBatch:
    """The next batch."""
    stream = self._stream
    assert stream is not None
    return self._wait.take(lambda: next(stream))

  def _note_broken(self) -> None:
    for stream in (self._stream, self._next and self._next[2]):
      if stream is not None:
        names = {i: stream.split.name(i) for i in stream.broken}
        self._broken |= {("train", names[i]): reason for i, reason in stream.broken.items()}
        stream.broken.clear()

  def _close_stream(self) -> None:
    if self._stream is not None:
      self._note_broken()
      self._stream.close()
    self._stream = self._position = None

  def _compile_train(self, phase: Phase) -> Program:
    job = self._job
    function = on_mesh(tabled_step, job, kind=StepKind(), split=(False, True, True, False))
    batch = abstract_batch(job, phase.batch_size, (phase.image_size, phase.image_size))
    table = mesh_lib.abstract(self._table, mesh_lib.replicated(job.mesh))
    return compile_program(
      function,
      (self.carry, batch, batch.mask, table),
      donate=(0,),
      options=job.compiler_options(jax.default_backend()),
    )


def _train_key(phase: Phase) -> tuple:
  return ("train", phase.batch_size, phase.image_size)


def _end_of(phase: Phase, plan: Plan) -> int:
  """The number of the first step after a phase."""
  return min(phase.first_step + phase.epochs * phase.steps_per_epoch, plan.total_steps)
