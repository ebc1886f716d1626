"""The course of a run: restore or start, train and evaluate epochs, save, stop."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.signals import RunAction
from jaxspeed.cluster.watchdog import heartbeat, watchdog_paused
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices.compile import warn_on_compile
from jaxspeed.records.arrays import Predictions
from jaxspeed.run.epoch_report import EpochReport
from jaxspeed.run.evaluation import Evaluation
from jaxspeed.run.finish import finish, finished_result
from jaxspeed.run.initial import first_state
from jaxspeed.run.loss_watcher import LossWatcher
from jaxspeed.run.profile import Profile
from jaxspeed.run.run import Run
from jaxspeed.run.saver import Saver
from jaxspeed.run.thumbnails import leave_thumbnails
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.state import Carry


class Trainer:
  """Trains one seed of a recipe to its result, from the newest checkpoint in its folder if any."""

  def __init__(self, run: Run) -> None:
    self._run = run
    self._report = EpochReport(run)
    self._saver = Saver(run, self._report)
    self._losses = LossWatcher(run, self._saver)
    self._profile = Profile(run)
    self._carry: Carry
    self._evaluation: Evaluation | None = None  # the newest of this start

  def run(self) -> dict[str, Any]:
    """Trains what is left of the run and returns its result row, also written to result.json."""
    if (finished := finished_result(self._run.folder)) is not None:
      return finished
    step = self._restore_or_start()
    with (
      self._report.open(step, unreported=self._epoch_ended(step)),
      processes.exit_on_lost_peer(),
      self._profile.open(),
    ):
      while self._epoch_ended(step) or not self._ends_with(step):
        if not self._epoch_ended(step):
          step = self._train_epoch(step)
        self._saver.stop_if_decided(step, self._carry)
        self._validate(step)
        self._call_back(step)
        due = self._saver.is_due(evaluated=step)
        if self._run.control.agree(save_due=due) >= RunAction.SAVE:
          self._saver.save(step, self._carry)
        self._saver.stop_if_decided(step, self._carry)
      self._saver.save(step, self._carry, last=True)
      predictions = self._last_predictions(step)
    self._run.control.check_owner()
    state = self._carry.state
    result = finish(self._run, self._report.rows, state, predictions)
    leave_thumbnails(self._run, predictions, state)
    return result

  def _train_epoch(self, step: int) -> int:
    """Trains to the end of the epoch of `step`, with a checkpoint where one is due."""
    end = self._run.plan.end_of_epoch(step)
    self._begin_epoch(step)
    while step < end:
      with self._measure("train"):
        step = self._advance(step, end)
      if step < end:
        self._saver.save(step, self._carry)
        self._saver.stop_if_decided(step, self._carry)
    self._report.end_training(end)
    return end

  def _advance(self, step: int, end: int) -> int:
    """Trains until the epoch ends or all decide to save or stop; returns the steps done."""
    taken = self._run.feed.train(self._carry, self._run.config.seed, step, end)
    for steps in self._profile.traced(taken, self._carry, step, end):
      self._carry, step = steps.carry, steps.step
      self._report.broken.note()
      self._losses.add(steps)
      if self._run.control.decided is not RunAction.CONTINUE:
        break
    self._losses.finish()
    jax.block_until_ready(self._carry)
    return step

  def _validate(self, step: int) -> None:
    """Evaluates the epoch that ended with `step` where due, reports it, and resets the sums."""
    epoch, _ = self._run.plan.epoch_of(step - 1)
    last, evaluation = step == self._run.plan.total_steps, None
    if last or (epoch + 1) % self._run.config.eval.every_epochs == 0:
      evaluation = self._evaluate("final_validate" if last else "validate", step)
    self._report.epoch(step, self._carry, evaluation)
    self._count_programs()
    self._carry = self._carry.replace(sums=self._no_sums())

  def _call_back(self, step: int) -> None:
    """Calls the caller's `on_epoch` with the last row; True stops a run that has steps left.

    The epoch is saved before an exception of it ends the run.
    """
    if (on_epoch := self._run.hooks.on_epoch) is None:
      return
    try:
      answer = on_epoch(dict(self._report.rows[-1]))
    except BaseException:  # sys.exit and Ctrl-C in it, too
      self._saver.save(step, self._carry)
      raise
    if isinstance(answer, bool | np.bool_) and answer and not self._ends_with(step):
      self._run.control.stop()

  def _restore_or_start(self) -> int:
    """Sets the carry, restored or new; returns the number of steps done."""
    if (restored := self._saver.restore(self._run.feed.carry)) is not None:
      self._carry = restored
    else:
      with self._measure("init"):
        state = self._run.feed.init(self._run.config.seed)
        state = first_state(state, self._run.spec, self._run.feed.carry)
        self._carry = jax.block_until_ready(Carry(state, self._no_sums()))
    self._count_programs()
    return self._saver.saved

  def _epoch_ended(self, step: int) -> bool:
    """Whether an epoch ended with `step` and no start of the run has reported it yet."""
    at_end = step == self._run.plan.total_steps or self._run.plan.epoch_of(step)[1] == 0
    return step > 0 and at_end and int(self._carry.sums.count) > 0

  def _ends_with(self, step: int) -> bool:
    return step >= self._run.plan.total_steps or self._report.stops_early()

  def _begin_epoch(self, step: int) -> None:
    """Waits for the programs of an epoch, and starts measuring it."""
    with self._run.clock.measure("compile"), watchdog_paused():
      self._run.feed.wait_for(step)
    self._report.begin_training(step)
    self._losses.begin(step)

  def _evaluate(self, name: str, step: int) -> Evaluation:
    """Evaluates the weights after `step` steps, under a name of the clock."""
    start = time.monotonic()
    with self._measure(name):
      evaluated = jax.block_until_ready(
        self._run.feed.evaluate(self._carry.state.eval_variables(), step)
      )
    heartbeat()
    self._evaluation = Evaluation(step, evaluated, time.monotonic() - start)
    return self._evaluation

  def _last_predictions(self, step: int) -> Predictions:
    """The predictions of the run's last evaluation, after `step` steps, with names of images.

    An earlier start may have evaluated and saved that step, and ended before it wrote the result:
    then the saved weights are evaluated again, which does not count as training.
    """
    found = self._evaluation
    if found is None or found.step != step:
      with self._run.clock.measure("compile"), watchdog_paused():
        self._run.feed.wait_for(step - 1)
      found = self._evaluate("validate", step)
    return found.predictions.named(self._run.feed.eval_names(step))

  def _no_sums(self) -> MetricSums:
    return mesh_lib.replicate(MetricSums.zero(self._run.spec.accumulation), self._run.spec.mesh)

  def _count_programs(self) -> None:
    for program in self._run.feed.programs:
      if program.counted:
        continue
      program.counted = True
      self._run.clock.add("compile_cached" if program.cached else "compile_cold", program.seconds)
      self._run.clock.add("tracing", program.tracing)

  @contextlib.contextmanager
  def _measure(self, name: str) -> Iterator[None]:
    """Measures a part of the run that must not compile anything."""
    with self._run.clock.measure(name), warn_on_compile(name):
      yield
