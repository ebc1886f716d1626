"""The story of a run: restore, epochs of steps, validate, save, result."""

import collections
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.agreement import Agreement
from jaxspeed.cluster.folder_lock import Fence
from jaxspeed.cluster.signals import Signals, Stopped, Wish
from jaxspeed.cluster.watchdog import beat, unwatched
from jaxspeed.data.formats.class_names import store_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import nothing_compiles
from jaxspeed.errors import UserError
from jaxspeed.optim import averaging
from jaxspeed.records.clock import Clock
from jaxspeed.records.meters import NetworkMeter, peak_memory
from jaxspeed.records.statistics import OPTIONAL_KEYS, RESULT_KEYS
from jaxspeed.records.writer import open_records
from jaxspeed.run.broken_images import BrokenImages
from jaxspeed.run.checkpoint import CheckpointError, Checkpoints
from jaxspeed.run.divergence import check_evaluation, check_loss
from jaxspeed.run.epoch_report import pace_lines, planned_row
from jaxspeed.run.finish import finish, finished_result, reaches_target
from jaxspeed.run.setup import Feed, claim, with_pretrained
from jaxspeed.steps.losses import Sums
from jaxspeed.steps.spec import Job
from jaxspeed.steps.state import Carry

# A step's loss and wishes are looked at when so many later ones are on their way: the devices have
# work while the host waits for a number.
_STEPS_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Watch:
  """What a run is watched by, and what it agrees through.

  Attributes:
    fence: of the run's folder, in process 0.
    incarnation: which start of the run this is, the same in all processes.
    begun: called when a step was taken.
  """

  signals: Signals
  agreement: Agreement
  fence: Fence | None
  incarnation: int
  begun: Callable[[], None]


class Trainer:
  """One seed from wherever its folder stands to its result."""

  def __init__(
    self,
    job: Job,
    feed: Feed,
    folder: pathlib.Path,
    clock: Clock,
    class_names: tuple[str, ...],
    watch: Watch,
  ) -> None:
    self._job = job
    self._feed = feed
    self._folder = folder
    self._clock = clock
    self._config = job.config
    self._plan = job.plan
    self._watch = watch
    self._primary = processes.is_primary()
    self._checkpoints = Checkpoints(
      folder / "checkpoints",
      keep=job.config.checkpoint.keep,
      incarnation=watch.incarnation,
      fence=watch.fence,
    )
    self._save_due = math.inf
    self._decided = Wish.GO_ON  # by all processes, since the last checkpoint
    self._progress_from = (0, time.monotonic())
    images = {"train": self._plan.train_images, "eval": self._plan.eval_images}
    self._broken = BrokenImages(folder, images, job.config, watch.begun)
    self._pace: dict[str, float] = {}  # of the epoch that was trained last
    if self._primary:
      claim(folder, job.config)
      self._checkpoints.remove_parts()
      store_class_names(folder, class_names)

  def to_the_end(self) -> dict[str, Any]:
    """Trains what is left of the run and returns its result row, also written to result.json."""
    finished = finished_result(self._folder, self._config)
    if finished is not None:
      # Results of earlier versions do not say which weights they are of.
      row = {key: finished.get(key) for key in RESULT_KEYS}
      return row | {key: finished[key] for key in OPTIONAL_KEYS if key in finished}
    step = self._restore_or_start()
    self._count_programs()
    self._schedule_save()
    with (
      open_records(
        self._folder,
        resume_step=step,
        total_epochs=self._config.epochs,
        evaluated=averaging.KINDS[self._config.average.kind],
        primary=self._primary,
      ) as self._records,
      # Closing the records may take longer than the others' heartbeats.
      processes.ending_when_alone(),
    ):
      self._records.screen.header({"starting": self._clock.starting()})
      epoch, within = self._plan.epoch_of(step)
      self._records.screen.begin(epoch + within / self._plan.phase_of(step).steps_per_epoch)
      if step:
        self._records.screen.line(f"goes on from the checkpoint of step {step}")
      while self._epoch_ended(step) or (
        step < self._plan.total_steps and not self._stopped_at_target()
      ):
        if not self._epoch_ended(step):
          step = self._train_epoch(step)
        self._stop_if_decided(step)
        self._validate_and_record(step)
        if self._agree_now() >= Wish.SAVE:
          self._save(step)
        self._stop_if_decided(step)
      if step != self._saved:
        self._save(step, last=True)
    if self._watch.fence is not None:
      self._watch.fence.check()
    return finish(
      self._folder,
      self._job,
      self._records.rows,
      self._carry.state,
      self._clock,
      benchmark=self._feed.benchmark,
      evaluated_on=self._feed.evaluated_on,
    )

  def _epoch_ended(self, step: int) -> bool:
    """Whether an epoch ended with `step` that was not evaluated yet, also in an earlier process."""
    at_end = step == self._plan.total_steps or self._plan.epoch_of(step)[1] == 0
    return step > 0 and at_end and int(self._carry.sums.count) > 0

  def _wish(self) -> Wish:
    """What this process wants after this step; one clock decides when a checkpoint is due."""
    if self._watch.signals.wish is not Wish.GO_ON:
      return self._watch.signals.wish
    return Wish.SAVE if self._primary and time.monotonic() >= self._save_due else Wish.GO_ON

  def _agree_now(self) -> Wish:
    """What all processes want; waits for them."""
    agreement = self._watch.agreement
    self._decided = max(self._decided, agreement.read(agreement.ask(self._wish())))
    return self._decided

  def _stop_if_decided(self, step: int) -> None:
    """Ends the run after a signal to any of its processes.

    Raises:
      Stopped: once what there is has been saved.
    """
    decided = self._decided
    if decided < Wish.STOP:
      return
    if step != self._saved:
      self._save(step)
    if step == self._saved:
      kept = f"saved step {step} of {self._plan.total_steps}"
    else:
      kept = f"step {step} of {self._plan.total_steps} could not be saved"
    raise Stopped(f"{kept} in {self._folder}; the same command goes on.", decided.exit_code)

  def _count_programs(self) -> None:
    for program in self._feed.new_programs():
      self._clock.add("compile_cached" if program.cached else "compile_cold", program.seconds)

  def _restore_or_start(self) -> int:
    """Sets the carry; returns the number of steps done."""
    # All take the one that process 0 sees: a shared disk may show others an older state.
    newest = self._checkpoints.newest() if self._primary else None
    chosen = processes.gather(-1 if newest is None else newest)[0]
    self._saved = max(chosen, 0)
    if chosen >= 0:
      with self._clock.measure("restore"):
        restored = self._checkpoints.restore(self._feed.carry, step=chosen)
      assert restored is not None
      restored.check_state()
      self._clock.restore(restored.clock)
      self._carry = restored.tree
      return restored.step
    with self._measure("init"):
      state = with_pretrained(self._feed.init(self._config.seed), self._job)
      self._carry = jax.block_until_ready(
        Carry(state, mesh_lib.replicate(Sums.zero(self._job.accumulation), self._job.mesh))
      )
    return 0

  def _train_epoch(self, step: int) -> int:
    """Steps to the end of the epoch that `step` is in, with a checkpoint where one is due."""
    epoch, within = self._plan.epoch_of(step)
    first = self._plan.first_step_of(epoch)
    steps = self._plan.steps_in_epoch(epoch)
    with self._clock.measure("compile"), unwatched():
      lines = self._feed.wait_for(step)
    for line in lines:
      self._records.screen.line(line)
    before, network = self._clock.dawn_seconds, NetworkMeter()
    self._progress_from = (step, time.monotonic())
    while within < steps:
      with self._measure("train"):
        within = self._advance(epoch, first, within, steps)
      if within < steps:
        self._save(first + within)
        self._stop_if_decided(first + within)
    seconds, end = self._clock.dawn_seconds - before, first + steps
    images_per_second = (self._plan.examples(end) - self._plan.examples(step)) / seconds
    self._pace = {
      "images_per_second": images_per_second,
      "images_per_second_per_device": images_per_second / self._job.devices,
      "step_seconds": seconds / (end - step),
      "data_wait": self._data_wait(seconds),
      **network.rates(),
    }
    return end

  def _data_wait(self, seconds: float) -> float:
    """The share of `seconds` of training in which the devices waited for input.

    Of several processes it is that of the one that waited longest: the others' devices stand in the
    all-reduce meanwhile, and look busy.
    """
    millionths = processes.gather(round(1e6 * self._feed.take_waited_seconds() / seconds))
    return max(millionths) / 1e6

  def _advance(self, epoch: int, first: int, within: int, steps: int) -> int:
    """Steps until the epoch ends or a checkpoint is due; returns the step in the epoch."""
    unseen: collections.deque[tuple[int, jax.Array, jax.Array | Wish]] = collections.deque()
    for done in self._feed.train(self._carry, self._config.seed, first + within, first + steps):
      self._carry, within = done.carry, done.step - first
      self._broken.note(self._feed.take_broken())
      unseen.append((within, done.losses, self._watch.agreement.ask(self._wish())))
      while len(unseen) > (_STEPS_AHEAD if within < steps else 0):
        self._look_at(*unseen.popleft(), epoch=epoch, first=first, steps=steps)
      if self._decided is not Wish.GO_ON:
        break
    for number, losses, answer in unseen:
      self._look_at(number, losses, answer, epoch=epoch, first=first, steps=steps)
    jax.block_until_ready(self._carry)
    return within

  def _look_at(
    self,
    within: int,
    losses: jax.Array,
    answer: jax.Array | Wish,
    *,
    epoch: int,
    first: int,
    steps: int,
  ) -> None:
    """Waits for the losses of the steps that end with `within`, checks and shows them."""
    values = np.atleast_1d(np.asarray(losses))
    self._decided = max(self._decided, Agreement.read(answer))
    beat()
    self._watch.begun()
    for number, loss in enumerate(values, start=first + within - len(values)):
      check_loss(
        float(loss),
        number,
        total_steps=self._plan.total_steps,
        config=self._config,
        newest=self._checkpoints.newest,
      )
    self._show_progress(epoch, within, steps, float(values[-1]))

  def _show_progress(self, epoch: int, step: int, steps: int, loss: float) -> None:
    if self._records.screen.progress_due():
      done, now = self._plan.first_step_of(epoch) + step, time.monotonic()
      since_step, since = self._progress_from
      self._records.screen.progress(
        epoch=epoch + 1,
        step=step,
        steps=steps,
        loss=loss,
        images_per_second=(self._plan.examples(done) - self._plan.examples(since_step))
        / max(now - since, 1e-9),
      )
      self._progress_from = (done, now)

  def _validate_and_record(self, step: int) -> None:
    """The row of the epoch that ended with `step`; afterwards the carry's sums are zero."""
    epoch, _ = self._plan.epoch_of(step - 1)
    last = step == self._plan.total_steps
    row = planned_row(self._job, step) | self._pace
    classes = self._config.data.classes
    row |= {f"train_{name}": value for name, value in self._carry.sums.means(classes).items()}
    if (loss_scale := self._carry.state.loss_scale) is not None:
      row["skipped_steps"] = int(loss_scale.skipped)
    sums = None
    if last or (epoch + 1) % self._config.eval.every_epochs == 0:
      start = time.monotonic()
      with self._measure("final_validate" if last else "validate"):
        sums = jax.block_until_ready(self._feed.evaluate(self._carry.state.evaluated(), step))
      beat()
      row["eval_seconds"] = time.monotonic() - start
      row["evaluated_weights"] = self._plan.evaluated_weights(step)
    lines = self._settle_broken()
    row["train_images_broken"] = self._broken.count("train")
    if sums is not None:
      row["eval_images"] = int(sums.count)
      row["eval_images_skipped"] = self._plan.eval_images - int(sums.count)
      means, said = check_evaluation(sums, step, classes=classes, last=last)
      lines += said
      row |= {f"eval_{name}": value for name, value in means.items()}
      if self._config.stop_at_target and reaches_target(row, self._config):
        # Only now it is known to be the last.
        self._clock.rename_last("final_validate")
    row |= peak_memory(self._job.mesh.local_devices) | {
      "train_seconds": self._clock.train_seconds,
      "dawn_seconds": self._clock.dawn_seconds,
    }
    if self._watch.fence is not None:
      self._watch.fence.check()
    self._records.epoch(row)
    self._count_programs()
    for line in (*lines, *self._pace_lines(step)):
      self._records.screen.line(line)
    self._carry = self._carry.replace(
      sums=mesh_lib.replicate(Sums.zero(self._job.accumulation), self._job.mesh)
    )

  def _settle_broken(self) -> list[str]:
    """Lines on images that any process could not read since the last time; all must call it."""
    self._broken.note(self._feed.take_broken())
    return self._broken.settle()

  def _pace_lines(self, step: int) -> list[str]:
    stopped = self._stopped_at_target()
    return pace_lines(self._plan, self._records.rows, step, stopped=stopped)

  def _stopped_at_target(self) -> bool:
    rows = self._records.rows
    return bool(self._config.stop_at_target and rows and reaches_target(rows[-1], self._config))

  def _save(self, step: int, *, last: bool = False) -> None:
    """Saves a checkpoint; what a failure does, the config says, but at the end of the run.

    Raises:
      UserError: it could not be saved, and the run may not go on without.
    """
    for line in self._settle_broken():
      self._records.screen.line(line)
    try:
      with self._clock.measure("checkpoint"):
        # A run that goes on from here would miss the rows that a full disk has kept waiting.
        if any(processes.gather(int(bool(reason := self._records.write_waiting())))):
          raise CheckpointError(reason or "process 0 could not write metrics.jsonl")
        self._checkpoints.save(step, self._carry, self._clock.state())
      self._saved = step
    except CheckpointError as error:
      if last:
        raise UserError(
          f"{error}: all steps are done, but without its weights the run is not finished; make "
          f"room and run the same command again, which resumes from step {self._saved}."
        ) from error
      if self._config.checkpoint.on_error == "stop":
        raise UserError(
          f"{error}: the run stops, the last whole checkpoint is of step {self._saved}; make room "
          "and run the same command again."
        ) from error
      self._records.screen.line(
        f"{error}: the run goes on, the last whole checkpoint is of step {self._saved}"
      )
    beat()
    self._decided = Wish.GO_ON if self._decided is Wish.SAVE else self._decided
    self._schedule_save()

  def _schedule_save(self) -> None:
    self._save_due = time.monotonic() + self._config.checkpoint.every_seconds

  @contextlib.contextmanager
  def _measure(self, name: str) -> Iterator[None]:
    """Measures a part that may not compile anything."""
    with self._clock.measure(name), nothing_compiles(name):
      yield
