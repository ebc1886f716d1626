"""The saving of a run: when a checkpoint is due, what a failure does, how a stop ends the run."""

import time

import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.signals import RunAction, Stopped
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.errors import UserError, mend
from jaxspeed.run import checkpoint
from jaxspeed.run.best import ranked
from jaxspeed.run.epoch_report import LOWER_PEAK, EpochReport
from jaxspeed.run.run import Run
from jaxspeed.steps.state import Carry


class Saver:
  """Saves and restores one run.

  Attributes:
    saved: the step of the newest checkpoint; 0: none.
  """

  def __init__(self, run: Run, report: EpochReport) -> None:
    self._run, self._report, self.saved = run, report, 0
    self._due = time.monotonic() + run.config.checkpoint.every_seconds

  def restore(self, target: Carry) -> checkpoint.Restored | None:
    """Reads the newest checkpoint, and its clock; None if there is none. All must call it.

    Raises:
      UserError: as `checkpoint.restore`; or the run's images have changed.
    """
    with self._run.clock.measure("restore"):
      restored = checkpoint.restore(self._run.folder, target)
    if restored is not None:
      with processes.all_or_none("comparing the images with the run's"):
        check_images(restored.images, self._run.feed.data.fingerprint, restored.step)
      self._run.clock.restore(restored.clock)
      self.saved = restored.step
    return restored

  def is_due(self, *, evaluated: int = 0) -> bool:
    """Whether process 0 wants a checkpoint, by its clock or its rows; False in the others.

    Args:
      evaluated: the step of an evaluation, to be saved if it is the best one so far; 0: none.
    """
    is_best = evaluated > 0 and self._best_steps()[:1] == [evaluated]
    return processes.is_primary() and (is_best or time.monotonic() >= self._due)

  def _best_steps(self) -> list[int]:
    metric = self._run.config.checkpoint.keep_best
    return [row["step"] for row in ranked(self._report.rows, metric)]

  def save(self, step: int, carry: Carry, *, last: bool = False) -> None:
    """Saves the carry after `step` steps; the config decides whether a failure ends the run.

    Raises:
      UserError: the checkpoint could not be saved and that ends the run, as always at its end
        (`last`); or weights are not finite.
    """
    run = self._run
    self._report.settle_broken()
    # All processes have the same weights. The loss of the step that spoiled them may be finite.
    if not all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(carry.state.params)):
      raise diverged(f"the weights after step {step} are not finite", self, LOWER_PEAK)
    try:
      with run.clock.measure("checkpoint"):
        # First the rows that a full disk delayed: a run that resumed from here would lack them.
        if any(processes.gather(int(bool(reason := self._report.records.write_waiting())))):
          raise checkpoint.CheckpointError(reason or "process 0 could not write metrics.jsonl")
        checkpoint.save(
          run.folder,
          step,
          carry,
          run.clock.state(),
          images=run.feed.data.fingerprint,
          keep=run.config.checkpoint.keep,
          best=self._best_steps(),
          lock=run.control.lock,
        )
      self.saved = step
    except checkpoint.CheckpointError as error:
      self._handle(error, last=last)
    heartbeat()
    run.control.saved()
    self._due = time.monotonic() + run.config.checkpoint.every_seconds

  def stop_if_decided(self, step: int, carry: Carry) -> None:
    """Ends the run after a signal to any of its processes.

    Raises:
      Stopped: the processes decided to stop; `step` has been saved, or the message says it was not.
    """
    if (decided := self._run.control.decided) < RunAction.STOP:
      return
    if step != self.saved:
      self.save(step, carry)
    of = f"step {step} of {self._run.plan.total_steps}"
    kept = f"saved {of}" if step == self.saved else f"{of} could not be saved"
    raise Stopped(
      f"{kept} in {self._run.folder}; the same command resumes the run.", decided.exit_code
    )

  def _handle(self, error: checkpoint.CheckpointError, *, last: bool) -> None:
    """Reports that a checkpoint could not be saved, or ends the run."""
    if last:
      raise UserError(
        f"{error}: all steps are done, but without its weights the run is not finished; "
        f"{mend(error)} and run the same command again, which resumes from step {self.saved}."
      ) from error
    kept = f"the last whole checkpoint is of step {self.saved}"
    if self._run.config.checkpoint.on_error == "stop":
      advice = f"{mend(error)} and run the same command again."
      raise UserError(f"{error}: the run stops, {kept}; {advice}") from error
    self._report.lines([f"{error}: the run continues, {kept}"])


def diverged(what: str, saver: Saver, advice: str) -> UserError:
  """The end of a run whose losses or weights are not finite, of which nothing more is saved."""
  kept = f"the checkpoint of {saver.saved} stays" if saver.saved else "there is no checkpoint yet"
  return UserError(f"{what}: the run stops, {kept}; {advice}.")


def check_images(then: str, now: str, step: int) -> None:
  """Compares two checksums of a run's images (`OpenData.fingerprint`): a checkpoint's, today's.

  Checksums of two kinds, as of files and of shards made of them, cannot be compared.

  Raises:
    UserError: they differ: among the images held out may be some that were trained on.
  """
  kind = now.partition(" ")[0]
  if then.partition(" ")[0] == kind and then != now:
    what = "pixels" if kind == "arrays" else "names"  # in memory they have no names
    raise UserError(
      f"the images of this run have changed since its checkpoint of step {step} (their {what}, "
      "their labels, or which are held out): put them back, or choose another --workdir."
    )
