"""A run of many jobs, as its folder keeps it: states, results, cancellation, another try."""

import contextlib
import pathlib
import time
from collections.abc import Collection, Iterator

from jaxspeed.errors import UserError, printable
from jaxspeed.launch import runs, state, submit
from jaxspeed.launch.record import Facts
from jaxspeed.launch.state import Statuses
from jaxspeed.launch.status import ENDED

# Seconds between two looks of a process that waits: at folders alone, and at a scheduler.
LOOK, ASK = 2.0, 30.0


class SubmittedRun:
  """The jobs of a run that were submitted.

  Args:
    name: the run's name.
    root: the folder of the run's folder.
  """

  def __init__(self, name: str, root: pathlib.Path) -> None:
    self.name = name
    self.root = root

  @property
  def folder(self) -> pathlib.Path:
    """The run's folder."""
    return self.root / self.name

  def wait(self) -> Statuses:
    """Waits until all jobs have ended, or none will go on by itself; prints changes of states.

    Ctrl-C ends the waiting; the jobs go on.
    """
    seen: dict[str, str] = {}
    while True:
      found = self.status()
      for status in found:
        if seen.get(status.name) != status.state:
          detail = f", {status.detail}" if status.detail else ""
          print(printable(f"{status.name}: {status.state}{detail}"))
        seen[status.name] = status.state
      going = [status for status in found if status.state not in ENDED]
      stuck = [s for s in going if s.detail == "not submitted" or _waits(s, found)]
      if len(stuck) == len(going):
        return found
      time.sleep(LOOK if found.is_local else ASK)

  def status(self) -> Statuses:
    """The states of the jobs, in their order; `print` shows a table.

    Raises:
      UserError: the run does not exist yet, or its file is damaged.
    """
    return state.statuses(self.folder, runs.read_jobs(self.folder))

  def cancel(self, names: Collection[str] = (), *, every: bool = False) -> list[str]:
    """Cancels jobs, which save before they end; returns the names of those that had not ended.

    Args:
      names: the jobs' names.
      every: whether to cancel all jobs.

    Raises:
      UserError: there is no such job, somebody else submitted it, or a scheduler refuses.
    """
    with self._locked(names, every) as chosen:
      jobs = [facts for facts in chosen if not facts.cancelled]
      said, silent = state.ask(self.folder, jobs)
      if silent:
        raise UserError(f"{silent[0]}: cancel there, or when it answers.")
      found = {f.job.name: state.status_of(f, said.get(f.job.name, state.UNKNOWN)) for f in jobs}
      going = [facts for facts in jobs if found[facts.job.name].state not in ENDED]
      for executor, group in state.by_kind(going):
        ids = [each.id for f in group if (each := said.get(f.job.name)) and each.id]
        if ids:
          executor.cancel(ids)
        runs.request(self.folder, "cancel", group)
    return [facts.job.name for facts in going]

  def retry(self, names: Collection[str] = (), *, failed: bool = False) -> list[str]:
    """Submits jobs again that ended without a result, which resume; returns their names.

    Args:
      names: the jobs' names.
      failed: whether to retry all jobs that failed or were cancelled.

    Raises:
      UserError: there is no such job, it has not ended or is done, somebody else submitted it, or a
        scheduler refuses.
    """
    with self._locked(names, failed) as jobs:
      again = []
      for facts, status in zip(jobs, state.statuses(self.folder, jobs), strict=True):
        if status.state in ("failed", "cancelled") and status.detail != "saving":
          again.append(facts)
        elif not failed:
          stands = "still saving" if status.detail == "saving" else status.state
          raise UserError(f"{facts.folder} is {stands}: only failed jobs are retried.")
      submit.submit(self.folder, again)
    if again:
      submit.begin(self.folder)
    return [facts.job.name for facts in again]

  @contextlib.contextmanager
  def _locked(self, names: Collection[str], every: bool) -> Iterator[list[Facts]]:
    """Holds the run's lock; yields its jobs of these names, on which this user may act."""
    if not (names or every):
      raise UserError("name jobs, or all with cancel(every=True) or retry(failed=True).")
    submit.check_own(runs.chosen(self.folder, names))
    with runs.lock_run(self.folder, wait=30.0):
      yield runs.chosen(self.folder, names)


def _waits(status: state.JobStatus, found: Statuses) -> bool:
  """Whether a job waits for workers that do not run."""
  return found.stopped and status.state != "running"
