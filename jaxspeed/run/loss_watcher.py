"""The losses of steps under way: read some steps later, checked, and shown as progress."""

import collections
import math
import time

import jax
import numpy as np

from jaxspeed.cluster.signals import RunAction
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.devices.precision import MOST_SKIPPED, TOO_MANY_SKIPPED
from jaxspeed.errors import UserError
from jaxspeed.run.epoch_report import LOWER_PEAK
from jaxspeed.run.run import Run
from jaxspeed.run.saver import Saver
from jaxspeed.steps.state import StepOutput

# A step's loss and action are read when this many later steps are under way: the devices have work
# while the host waits for a number.
_STEPS_AHEAD = 2


class LossWatcher:
  """Checks each step's loss some steps later, and reads what all processes decided at that step."""

  def __init__(self, run: Run, saver: Saver) -> None:
    self._run, self._saver = run, saver
    self._unchecked: collections.deque[tuple[StepOutput, jax.Array | RunAction]] = (
      collections.deque()
    )
    self._progress_from = (0, time.monotonic())

  def begin(self, step: int) -> None:
    """Starts measuring the pace, after `step` steps."""
    self._progress_from = (step, time.monotonic())

  def add(self, steps: StepOutput) -> None:
    """Adds steps that are under way, and checks older ones.

    Raises:
      UserError: an older loss is not finite.
    """
    answer = self._run.control.ask(save_due=self._saver.is_due())
    self._unchecked.append((steps, answer))
    self.finish(but=_STEPS_AHEAD)

  def finish(self, *, but: int = 0) -> None:
    """Waits for all steps that are under way, `but` for the newest, and checks them.

    Raises:
      UserError: a loss is not finite.
    """
    while len(self._unchecked) > but:
      self._check_losses(*self._unchecked.popleft())

  def _check_losses(self, steps: StepOutput, answer: jax.Array | RunAction) -> None:
    """Waits for the losses of steps; checks them and shows progress."""
    step, values = steps.step, np.atleast_1d(np.asarray(steps.losses))[: steps.count]
    self._run.control.note(answer)
    heartbeat()
    for number, loss in enumerate(values, start=step - len(values) + 1):
      if not math.isfinite(loss):
        raise self._ended(float(loss), number)
    self._show_progress(step, float(values[-1]))

  def _ended(self, loss: float, step: int) -> UserError:
    """The end of a run after a loss, as `LossScale.told` gives it, that is not finite."""
    what, advice = f"the training loss is {loss}", LOWER_PEAK
    if loss == TOO_MANY_SKIPPED:
      what = f"{MOST_SKIPPED} steps in a row were skipped, as their float16 gradients overflowed,"
      advice = f"{LOWER_PEAK}, or set another --config.precision"
      if scale := self._run.config.loss_scale:
        advice = f"--config.loss_scale={scale:g} is too large, 0 finds a scale by itself"
    return self._saver.diverged(f"{what} at step {step} of {self._run.plan.total_steps}", advice)

  def _show_progress(self, step: int, loss: float) -> None:
    if not self._run.screen.progress_due():
      return
    (since_step, since), now, plan = self._progress_from, time.monotonic(), self._run.plan
    epoch, number = plan.epoch_of(step - 1)
    self._run.screen.progress(
      epoch=epoch + 1,
      step=number + 1,
      steps=plan.steps_in_epoch(epoch),
      loss=loss,
      images_per_second=(plan.examples(step) - plan.examples(since_step)) / max(now - since, 1e-9),
    )
    self._progress_from = (step, now)
