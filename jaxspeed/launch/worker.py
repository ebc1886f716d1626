"""A worker of a local run: takes waiting jobs, one after the other, and supervises each to its end.

  python -m jaxspeed.launch.worker RUN NUMBER DESCRIPTOR

The queue is the run's folder. A worker holds the lock that it inherits as DESCRIPTOR. The processes
of its job inherit two others: the job's, by which it is claimed and known to run, and the place's.
So a worker that follows a killed one waits until the place is free, and no job is run twice.
"""

import contextlib
import functools
import os
import pathlib
import sys
import time
from collections.abc import Iterator

from jaxspeed.config import output
from jaxspeed.errors import MISTAKE, UserError, printable
from jaxspeed.files import is_locked, open_locked
from jaxspeed.launch import runs
from jaxspeed.launch.decision import decide
from jaxspeed.launch.executor import Executor, executor_of
from jaxspeed.launch.local import ALIVE, WORKER, Local, Slot
from jaxspeed.launch.record import LAUNCHER, RECORD, Facts, named
from jaxspeed.launch.supervisor import Start

_POLL = 0.3  # seconds between two looks at a place that is taken


class Worker:
  """Runs the local jobs of a run until none waits.

  Args:
    run: the run's folder.
    number: the worker's number, which is that of its place.
  """

  def __init__(self, run: pathlib.Path, number: int) -> None:
    self._run, self._number = run, number
    self._slot: Slot | None = None
    self._requests = -1  # bytes of requests.jsonl at the last look
    self._unwritable: set[str] = set()  # names of jobs whose folder takes no files

  def work(self, own: int) -> None:
    """Returns when no job waits.

    Args:
      own: the worker's lock, an open file.

    Raises:
      UserError: the run's folder is damaged.
    """
    os.set_inheritable(own, False)
    told_to_end = False
    while not told_to_end:
      with self._place():
        if (claimed := self._claim()) is not None:
          facts, descriptor = claimed
          try:
            told_to_end = self._supervise(facts)
          finally:
            os.close(descriptor)
          continue
      # A command that adds jobs sees either this lock or that it must start a worker.
      with runs.lock_run(self._run, wait=30.0):
        if not any(map(self._waits, runs.read_jobs(self._run))):
          (self._run / LAUNCHER / WORKER.format(self._number)).unlink(missing_ok=True)
          os.close(own)
          return
      time.sleep(_POLL)

  def _waits(self, facts: Facts) -> bool:
    """Whether a job may be started here."""
    if not facts.is_open or facts.cancelled or facts.foreign:
      return False
    return not (facts.job.name in self._unwritable or is_locked(facts.folder / RECORD / ALIVE))

  @contextlib.contextmanager
  def _place(self) -> Iterator[None]:
    """Holds the place, after waiting for what an earlier worker left in it."""
    while (descriptor := open_locked(self._run / LAUNCHER / f"place.{self._number}.lock")) is None:
      time.sleep(_POLL)
    os.set_inheritable(descriptor, True)
    try:
      yield
    finally:
      os.close(descriptor)

  def _claim(self) -> tuple[Facts, int] | None:
    """The first job that waits, with its lock; None if there is none."""
    for facts in filter(self._waits, runs.read_jobs(self._run)):
      try:
        (facts.folder / RECORD).mkdir(parents=True, exist_ok=True)
        descriptor = open_locked(facts.folder / RECORD / ALIVE)
      except OSError as error:
        self._leave_out(facts, error)
        continue
      if descriptor is not None:
        # Another worker may have ended it since.
        now = self._facts(facts.job.name)
        if now.is_open and not now.cancelled:
          os.set_inheritable(descriptor, True)
          return now, descriptor
        os.close(descriptor)
    return None

  def _facts(self, name: str) -> Facts:
    return named(runs.read_jobs(self._run))[name]

  def _supervise(self, facts: Facts) -> bool:
    """Runs a job to its end, with its restarts; returns whether this process was told to end."""
    try:
      while True:
        # Otherwise it died together with its worker: its end is not written down yet.
        is_new = not any(note.what == "started" for note in facts.own_notes[-1:])
        restart = sum(note.what == "requeued" for note in facts.own_notes)
        start = Start(facts.folder, facts.token, restart)
        executor = executor_of(facts.job)
        code = self._run_once(start, facts, executor) if is_new else None
        facts = self._facts(facts.job.name)
        most, rules = executor.max_restarts, {"is_cancelled": facts.cancelled, "sigterm_ends": True}
        verdict = decide(facts.folder, facts.token, restart, code, max_restarts=most, **rules)
        start.conclude(verdict)
        if verdict.what != "requeued" or start.came:
          return bool(start.came)
        facts = self._facts(facts.job.name)
    except (OSError, UserError) as error:
      reason = printable(" ".join(f"{error}".split()))
      try:
        Start(facts.folder, facts.token).note("failed", f"2 {reason}")
        output.say(f"{facts.folder}: {error}; the other jobs go on.")
      except UserError:
        self._leave_out(facts, error)
      return False

  def _leave_out(self, facts: Facts, error: Exception) -> None:
    """Goes on with the other jobs, as this one's folder cannot even hold why it failed."""
    self._unwritable.add(facts.job.name)
    output.say(f"{facts.folder}: {error}: make its folder writable, then resume; others go on.")

  def _run_once(self, start: Start, facts: Facts, executor: Executor) -> int:
    assert isinstance(executor, Local)
    slot = self._slot = self._slot or executor.slot(self._number)
    if hasattr(os, "sched_setaffinity"):  # not on macOS
      os.sched_setaffinity(0, slot.cores)
    gpus = {} if slot.gpus is None else {"CUDA_VISIBLE_DEVICES": slot.gpus}
    start.note("started")
    command = ["bash", "-c", executor.script([facts.job], facts.token)]
    with start.log(0) as log:
      cancelled = functools.partial(self._is_cancelled, facts.job.name)
      return start.run(0, command, log, variables=gpus, cancelled=cancelled)

  def _is_cancelled(self, name: str) -> bool:
    size = (self._run / LAUNCHER / runs.REQUESTS).stat().st_size
    if size == self._requests:
      return False
    self._requests = size
    return self._facts(name).cancelled


def main(arguments: list[str]) -> None:
  """Works until no job waits."""
  folder, number, descriptor = arguments
  try:
    Worker(pathlib.Path(folder), int(number)).work(int(descriptor))
  except (OSError, UserError) as error:
    output.say(error)
    sys.exit(MISTAKE)


if __name__ == "__main__":
  main(sys.argv[1:])
