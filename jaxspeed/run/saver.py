"""The saving of a run: when a checkpoint is due, what a failure does, how a stop ends the run."""

import time
from concurrent import futures
from typing import Any

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

_SIGN_OF_LIFE = 2.0  # seconds between two signs to the processes that wait for a save


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
      UserError: as `checkpoint.restore`; or the run was trained on other images.
    """
    run, images = self._run, self._run.feed.data.fingerprint
    with run.clock.measure("restore"):
      restored = checkpoint.restore(run.folder, target)
    if restored is None:
      return None
    # Checksums of two kinds, as of files and of shards made of them, cannot be compared.
    if restored.images.split()[:1] == images.split()[:1] and restored.images != images:
      # Among the images held out may be some that were trained on.
      raise UserError(
        f"the images of this run have changed since its checkpoint of step {restored.step} "
        "(their names, pixels or labels, or which are held out): put them back, or choose "
        "another --workdir."
      )
    run.clock.restore(restored.clock)
    self.saved = restored.step
    return restored

  def is_due(self, *, evaluated: int = 0) -> bool:
    """Whether process 0 wants a checkpoint, by its clock or its rows; False in the others.

    `evaluated` is the step of an evaluation, to be saved if it is the best one so far; 0: none.
    """
    is_best = evaluated > 0 and self._best_steps()[:1] == [evaluated]
    return processes.is_primary() and (is_best or time.monotonic() >= self._due)

  def _best_steps(self) -> list[int]:
    metric = self._run.config.checkpoint.keep_best
    return [row["step"] for row in ranked(self._report.rows, metric)]

  def save(self, step: int, carry: Carry, *, last: bool = False) -> None:
    """Saves the carry after `step` steps; the config decides whether a failure ends the run.

    All must call it. However long it takes, no watchdog wakes while process 0 is alive.

    Raises:
      UserError: the checkpoint could not be saved and that ends the run, as always at its end
        (`last`); or weights are not finite.
    """
    run, writing = self._run, []
    self._report.lines(self._report.broken.settle())
    # All processes have the same weights. The loss of the step that spoiled them may be finite.
    if not all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(carry.state.params)):
      raise diverged(f"the weights after step {step} are not finite", self, LOWER_PEAK)
    with run.clock.measure("checkpoint"), futures.ThreadPoolExecutor(1, "checkpoint") as pool:
      # First the rows that a full disk delayed: a run that resumed from here would lack them.
      reason = self._report.records.write()
      if processes.is_primary() and not reason:
        how: dict[str, Any] = dict(keep=run.config.checkpoint.keep, best=self._best_steps())
        how |= dict(images=run.feed.data.fingerprint, lock=run.control.lock)
        clock = run.clock.state()
        writing = [pool.submit(checkpoint.save, run.folder, step, carry, clock, **how)]
      while processes.gather(len(futures.wait(writing, _SIGN_OF_LIFE).not_done))[0]:
        heartbeat()
    # Orbax and tensorstore raise whatever their file systems do.
    if writing and (error := writing[0].exception()):
      run.control.check_owner()
      reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or repr(error)
    if reason := processes.gather_bytes(reason.encode())[0].decode():
      ends = last or run.config.checkpoint.on_error == "stop"
      said = (
        f"the checkpoint of step {step} could not be written to {run.folder / checkpoint.FOLDER} "
        f"({reason[:200]}): the run {'stops' if ends else 'continues'}, the last whole checkpoint "
        f"is of step {self.saved}; {mend(reason)}"
      )
      if ends:
        raise UserError(f"{said} and run the same command again.")
      self._report.lines([said])
    else:
      self.saved = step
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


def diverged(what: str, saver: Saver, advice: str) -> UserError:
  """The end of a run whose losses or weights are not finite, of which nothing more is saved."""
  kept = f"the checkpoint of {saver.saved} stays" if saver.saved else "there is no checkpoint yet"
  return UserError(f"{what}: the run stops, {kept}; {advice}.")
