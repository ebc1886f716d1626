"""The worker of a local run: starts a supervisor for each job that waits, as places become free.

  python -m jaxspeed.launch.worker RUN DESCRIPTOR

The queue is the run's folder. The worker holds the lock that it inherits as DESCRIPTOR. The
processes of a job hold that of their place instead: they outlive a worker that is killed, and the
next one waits until the place is free.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

from jaxspeed.config import output
from jaxspeed.errors import MISTAKE, UserError
from jaxspeed.files import is_locked, open_locked
from jaxspeed.launch import runs
from jaxspeed.launch.executor import executor_of
from jaxspeed.launch.local import PLACE, SUPERVISE, Local, Slot, names_in_places, supervisors
from jaxspeed.launch.record import LAUNCHER, Facts, named

_POLL = 0.3  # seconds between two looks


class Worker:
  """Runs the local jobs of the run in a folder."""

  def __init__(self, run: pathlib.Path) -> None:
    self._run = run
    self._supervisors: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}  # by place
    self._left_out: set[str] = set()  # names of jobs whose supervisors failed
    self._told_to_end = False
    self._slots: list[Slot] = []
    for facts in filter(_may_run, runs.read_jobs(run)):
      executor = executor_of(facts.job)
      assert isinstance(executor, Local)
      self._slots = [executor.slot(place) for place in range(executor.parallel)]
      break

  def work(self, own: int) -> None:
    """Returns when no job waits; or after a signal, which jobs get, when they have ended.

    Args:
      own: the worker's lock, an open file.
    """
    os.set_inheritable(own, False)
    for number in (signal.SIGTERM, signal.SIGUSR1):
      signal.signal(number, self._pass_on)
    seen = None
    while self._supervisors or not self._told_to_end:
      self._remove_ended()
      free = [place for place in range(len(self._slots)) if not self._is_taken(place)]
      # All jobs are read only when something has changed: there may be thousands.
      now = ((self._run / LAUNCHER / runs.REQUESTS).stat().st_size, free)
      if now != seen and not self._told_to_end:
        seen = now
        jobs = runs.read_jobs(self._run)
        self._end_cancelled(jobs)
        for place, facts in zip(free, self._waiting(jobs), strict=False):
          self._start(place, facts)
          seen = None
        if seen and len(free) == len(self._slots) and self._is_done(own):
          return
      time.sleep(_POLL)

  def _pass_on(self, number: int, _: Any) -> None:
    self._told_to_end = True
    own = dict(self._supervisors.values())
    # A worker that was killed may have left others. One of its own may not have its name yet.
    for process in (supervisors(self._run) | own).values():
      with contextlib.suppress(psutil.Error):
        process.send_signal(number)

  def _waiting(self, jobs: list[Facts]) -> list[Facts]:
    """The jobs that may be started now."""
    others = self._left_out | names_in_places(self._run)
    return [facts for facts in jobs if facts.job.name not in others and _may_run(facts)]

  def _place(self, number: int) -> pathlib.Path:
    return self._run / LAUNCHER / PLACE.format(number)

  def _is_taken(self, place: int) -> bool:
    return place in self._supervisors or is_locked(self._place(place))

  def _is_done(self, own: int) -> bool:
    """Gives the worker's lock back if no job waits."""
    # A command that adds jobs sees either this lock or that it must start a worker.
    with runs.lock_run(self._run, wait=30.0):
      if self._waiting(runs.read_jobs(self._run)):
        return False
      os.close(own)
      return True

  def _end_cancelled(self, jobs: list[Facts]) -> None:
    facts = named(jobs)
    for name, process in self._supervisors.values():
      if facts[name].cancelled:
        process.terminate()

  def _remove_ended(self) -> None:
    for place, (name, process) in [*self._supervisors.items()]:
      if process.poll() is not None:
        del self._supervisors[place]
        # SIGTERM may end a supervisor before its trainer has begun.
        if process.returncode not in (0, -signal.SIGTERM):
          self._left_out.add(name)
          output.say(f"{self._run / name} could not be supervised: resume, when that is mended.")

  def _start(self, place: int, facts: Facts) -> None:
    slot = self._slots[place]
    if (descriptor := open_locked(self._place(place))) is None:
      return
    with open(descriptor, "w") as lock:
      lock.truncate()
      lock.write(facts.job.name)
      lock.flush()
      if hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, slot.cores)
      gpus = {} if slot.gpus is None else {"CUDA_VISIBLE_DEVICES": slot.gpus}
      process = subprocess.Popen(
        [sys.executable, *SUPERVISE, str(facts.folder), facts.job.digest, facts.token],
        env=os.environ | gpus,
        pass_fds=(descriptor,),
      )
    self._supervisors[place] = (facts.job.name, process)
    if self._told_to_end:  # just now
      process.terminate()


def _may_run(facts: Facts) -> bool:
  return facts.is_open and not facts.cancelled and not facts.foreign


def main(arguments: list[str]) -> None:
  """Works until no job waits."""
  folder, descriptor = arguments
  try:
    Worker(pathlib.Path(folder)).work(int(descriptor))
  except (OSError, UserError) as error:
    output.say(error)
    sys.exit(MISTAKE)


if __name__ == "__main__":
  main(sys.argv[1:])
