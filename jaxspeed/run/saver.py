"""The saving of a run: when a checkpoint is due, what a failure does, how a stop ends the run."""

import time
from concurrent import futures

import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.signals import RunAction, Stopped
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.errors import UserError, mend
from jaxspeed.run import checkpoint
from jaxspeed.run.epoch_report import LOWER_PEAK, EpochReport
from jaxspeed.run.run import Run
from jaxspeed.steps.state import Carry

_SIGN_OF_LIFE = 2.0  # seconds between two signs to the processes that wait for a save


class Saver:
  """Saves and restores one run; `saved` is the step of its newest checkpoint, 0 without one."""

  def __init__(self, run: Run, report: EpochReport) -> None:
    self._run, self._report, self.saved = run, report, 0
    self._due = time.monotonic() + run.config.checkpoint.every_seconds

  def restore(self, target: Carry) -> Carry | None:
    """Reads the newest checkpoint, and its clock; None if there is none. All must call it.

    Raises:
      UserError: as `checkpoint.restore`; or it was trained on other images, perhaps some held out.
    """
    run, images = self._run, self._run.feed.data.fingerprint
    with run.clock.measure("restore"):
      if (found := checkpoint.restore(run.folder, target)) is None:
        return None
    # Checksums of two kinds, as of files and of shards made of them, cannot be compared.
    if found.images != images and found.images.split()[:1] == images.split()[:1]:
      raise UserError(
        f"the images of this run have changed since its checkpoint of step {found.step} (their "
        "names, pixels or labels, or which are held out): put them back, or choose another "
        "--workdir."
      )
    run.clock.restore(found.clock)
    self.saved = found.step
    return found.tree

  def is_due(self, *, evaluated: int = 0) -> bool:
    """Whether process 0 wants a checkpoint, by its clock or its rows; False in the others.

    `evaluated` is the step of an evaluation, to be saved if it is the best one so far; 0: none.
    """
    is_best = evaluated > 0 and self._best_steps()[:1] == [evaluated]
    return processes.is_primary() and (is_best or time.monotonic() >= self._due)

  def _best_steps(self) -> list[int]:
    metric = self._run.config.checkpoint.keep_best
    return [row["step"] for row in checkpoint.ranked(self._report.rows, metric)]

  def save(self, step: int, carry: Carry, *, last: bool = False) -> None:
    """Saves the carry after `step` steps, once; the config decides whether a failure ends the run.

    All must call it. However long it takes, no watchdog wakes while process 0 is alive.

    Raises:
      UserError: the checkpoint could not be saved and that ends the run, as always at its end
        (`last`); or weights are not finite.
    """
    run, writing = self._run, []
    if step == self.saved:  # before the evaluation of its epoch, which a resumed run repeats
      return run.control.saved()
    self._report.lines(self._report.broken.settle())
    # All processes have the same weights. The loss of the step that spoiled them may be finite.
    if not all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(carry.state.params)):
      raise self.diverged(f"the weights after step {step} are not finite")
    with run.clock.measure("checkpoint"), futures.ThreadPoolExecutor(1, "checkpoint") as pool:
      # First the rows that a full disk delayed: a run that resumed from here would lack them.
      reason = self._report.records.write()
      if processes.is_primary() and not reason:
        made = checkpoint.Checkpoint(carry, step, run.clock.state(), run.feed.data.fingerprint)
        keep, best = run.config.checkpoint.keep, self._best_steps()
        writing = [pool.submit(checkpoint.save, run.folder, made, keep, best, run.control.lock)]
      while processes.gather(len(futures.wait(writing, _SIGN_OF_LIFE).not_done))[0]:
        heartbeat()
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
    run.control.saved()
    self._due = time.monotonic() + run.config.checkpoint.every_seconds

  def stop_if_decided(self, step: int, carry: Carry) -> None:
    """Ends the run after a signal to any of its processes.

    Raises:
      Stopped: the processes decided to stop; `step` has been saved, or the message says it was not.
    """
    if (decided := self._run.control.decided) < RunAction.STOP:
      return
    self.save(step, carry)
    of = f"step {step} of {self._run.plan.total_steps}"
    kept = f"saved {of}" if step == self.saved else f"{of} could not be saved"
    raise Stopped(
      f"{kept} in {self._run.folder}; the same command resumes the run.", decided.exit_code
    )

  def diverged(self, what: str, advice: str = LOWER_PEAK) -> UserError:
    """The end of a run whose losses or weights are not finite; nothing more of it is saved."""
    kept = f"the checkpoint of {self.saved} stays" if self.saved else "there is no checkpoint yet"
    return UserError(f"{what}: the run stops, {kept}; {advice}.")
