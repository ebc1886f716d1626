"""The saving of a run: when a checkpoint is due, what a failure does, how a stop ends the run."""

import math
import pathlib
import time

from jaxspeed.cluster import processes
from jaxspeed.cluster.signals import RunAction, Stopped
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.errors import UserError, mend
from jaxspeed.records.clock import Clock
from jaxspeed.run.best import best_steps
from jaxspeed.run.checkpoint import CheckpointError, Checkpoints, Restored
from jaxspeed.run.control import RunControl
from jaxspeed.run.divergence import check_weights
from jaxspeed.run.epoch_report import EpochReport
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry


class Saver:
  """Saves and restores one run.

  Args:
    spec: the run's specification.
    folder: the run's folder.
    report: the report of its epochs.
    control: the run's control.
    clock: the run's clock, which a checkpoint stores.
    images: the checksum of the run's images (`Feed.fingerprint`).
  """

  def __init__(
    self,
    spec: TrainSpec,
    folder: pathlib.Path,
    report: EpochReport,
    control: RunControl,
    clock: Clock,
    images: str,
  ) -> None:
    self._spec, self._folder, self._images = spec, folder, images
    self._report, self._control, self._clock = report, control, clock
    self._checkpoints = Checkpoints(
      folder / "checkpoints",
      keep=spec.config.checkpoint.keep,
      incarnation=control.incarnation,
      lock=control.lock,
      images=images,
    )
    if processes.is_primary():
      self._checkpoints.remove_parts()
    self._saved = 0
    self._due = math.inf

  def newest(self) -> int | None:
    """The step of the newest whole checkpoint, or None."""
    return self._checkpoints.newest()

  def restore(self, target: Carry) -> Restored | None:
    """Reads the newest checkpoint; None if there is none. All processes must call it.

    Args:
      target: the shapes and shardings of a checkpoint's arrays.

    Raises:
      UserError: it cannot be read, is of a later format, or holds another model; the run's images
        have changed.
    """
    # All use the one that process 0 sees: a shared disk may show the others an older state.
    with processes.all_or_none("looking for a checkpoint"):
      newest = self.newest() if processes.is_primary() else None
    chosen = processes.gather(-1 if newest is None else newest)[0]
    if chosen < 0:
      return None
    with self._clock.measure("restore"):
      restored = self._checkpoints.restore(target, step=chosen)
    assert restored is not None
    restored.check_state()
    with processes.all_or_none("comparing the images with the run's"):
      restored.check_images(self._images)
    self._clock.restore(restored.clock)
    self._saved = chosen
    return restored

  def start_waiting(self) -> None:
    """Makes the next checkpoint due in `checkpoint.every_seconds` from now."""
    self._due = time.monotonic() + self._spec.config.checkpoint.every_seconds

  def is_due(self) -> bool:
    """Whether a checkpoint is due by the clock of process 0; False in the others."""
    return processes.is_primary() and time.monotonic() >= self._due

  def is_best(self, step: int) -> bool:
    """Whether the evaluation after `step` is the best and kept, as process 0's rows say."""
    best = best_steps(self._report.rows, self._spec.config)
    return processes.is_primary() and best[:1] == [step]

  def save(self, step: int, carry: Carry, *, last: bool = False) -> None:
    """Saves a checkpoint; the config decides whether a failure ends the run.

    Args:
      step: the number of steps done.
      carry: the carry after them.
      last: whether this is the end of the run, where a failure always ends it.

    Raises:
      UserError: the checkpoint could not be saved and that ends the run, or weights are not finite.
    """
    self._report.settle_broken()
    check_weights(carry.state.params, step, newest=self.newest)
    try:
      with self._clock.measure("checkpoint"):
        # First the rows that a full disk delayed: a run that resumed from here would lack them.
        if any(processes.gather(int(bool(reason := self._report.write_waiting())))):
          raise CheckpointError(reason or "process 0 could not write metrics.jsonl")
        best = best_steps(self._report.rows, self._spec.config)
        self._checkpoints.save(step, carry, self._clock.state(), best=best)
      self._saved = step
    except CheckpointError as error:
      self._handle(error, last=last)
    heartbeat()
    self._control.saved()
    self.start_waiting()

  def save_last(self, step: int, carry: Carry) -> None:
    """Saves the last step unless it is saved already."""
    if step != self._saved:
      self.save(step, carry, last=True)

  def stop_if_decided(self, step: int, carry: Carry) -> None:
    """Ends the run after a signal to any of its processes.

    Raises:
      Stopped: the processes decided to stop; `step` has been saved, or the message says it was not.
    """
    decided = self._control.decided
    if decided < RunAction.STOP:
      return
    if step != self._saved:
      self.save(step, carry)
    total = self._spec.plan.total_steps
    if step == self._saved:
      kept = f"saved step {step} of {total}"
    else:
      kept = f"step {step} of {total} could not be saved"
    raise Stopped(f"{kept} in {self._folder}; the same command resumes the run.", decided.exit_code)

  def _handle(self, error: CheckpointError, *, last: bool) -> None:
    """Reports that a checkpoint could not be saved, or ends the run."""
    if last:
      raise UserError(
        f"{error}: all steps are done, but without its weights the run is not finished; "
        f"{mend(error)} and run the same command again, which resumes from step {self._saved}."
      ) from error
    if self._spec.config.checkpoint.on_error == "stop":
      raise UserError(
        f"{error}: the run stops, the last whole checkpoint is of step {self._saved}; "
        f"{mend(error)} and run the same command again."
      ) from error
    said = f"{error}: the run continues, the last whole checkpoint is of step {self._saved}"
    self._report.lines([said])
