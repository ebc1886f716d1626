"""The process that runs a local queue: it starts jobs, restarts them, and writes down how they end.

The queue is the run's folder. This process holds `queue.lock`, and every process of a job inherits
the lock `alive.lock` of its job: another process of this kind, started after this one was killed,
knows which jobs still run.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from jaxspeed.config import output
from jaxspeed.errors import LOST_PEER, REQUEUE, UserError, printable
from jaxspeed.files import dump_json, is_locked, open_locked, write_atomically
from jaxspeed.launch.local import ALIVE, QUEUE, QUEUE_LOCK, Local, stop
from jaxspeed.launch.record import RECORD, Facts, note, read_facts, task_of, write_script
from jaxspeed.launch.runs import LAUNCHER, lock_run

_POLL = 0.2  # seconds between two looks at the jobs
_SAVED = ", with a new checkpoint"  # a restart after which does not count against the bound
_KILLED = range(128, 256)  # exit codes of processes that a signal ended


@dataclasses.dataclass
class _Running:
  """A job that runs: its folder, its place, and its process unless an earlier queue started it."""

  facts: Facts
  slot: int
  process: subprocess.Popen[bytes] | None
  told: bool = False


class Queue:
  """Runs the local jobs of a run until none is left.

  Args:
    folder: the run's folder.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder
    self._running: list[_Running] = []
    self._finished: dict[str, int] = {}  # job: size of its requests when it was seen finished

  def run(self) -> None:
    """Returns when no job runs or waits.

    Raises:
      UserError: a job's folder or the run's is damaged.
    """
    while True:
      self._reap()
      jobs = [*self._unfinished()]
      self._adopt(jobs)
      self._stop_cancelled(jobs)
      self._start(jobs)
      if not self._running and self._done():
        return
      time.sleep(_POLL)

  def _unfinished(self) -> Iterator[Facts]:
    """The submitted jobs that wait or run."""
    for path in sorted(self._folder.iterdir()):
      size = _size(path / RECORD / "requests.jsonl")
      if not size or self._finished.get(path.name) == size:
        continue
      try:
        facts = read_facts(path)
      except UserError as error:
        # It does not stop the others.
        output.say(error)
        self._finished[path.name] = size
        continue
      if facts is None or not facts.submission or facts.job.executor.get("kind") != Local.kind:
        continue
      if _waits(facts) or _runs(facts):
        yield facts
      else:
        self._finished[path.name] = size

  def _adopt(self, jobs: list[Facts]) -> None:
    """Takes over jobs that an earlier queue started and that still run."""
    known = {running.facts.folder for running in self._running}
    for facts in jobs:
      if facts.folder not in known and _runs(facts):
        self._running.append(_Running(facts, _slot_of(facts.folder), None))

  def _free(self, facts: Facts) -> list[int]:
    slots = range(_executor(facts).parallel)
    return [i for i in slots if all(running.slot != i for running in self._running)]

  def _reap(self) -> None:
    for running in [*self._running]:
      folder = running.facts.folder
      if running.process is not None:
        ended = running.process.poll() is not None
        if ended:
          # What it leaves in the background would keep the job's lock from its next start.
          with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGTERM)
      else:
        ended = not is_locked(folder / RECORD / ALIVE)
      if ended:
        self._running.remove(running)
        with self._without(running.facts):
          facts = read_facts(folder)
          if facts is not None:
            conclude(facts)

  def _stop_cancelled(self, jobs: list[Facts]) -> None:
    cancelled = {facts.folder for facts in jobs if facts.cancelled}
    for running in self._running:
      if running.facts.folder in cancelled and not running.told:
        running.told = stop(running.facts.folder)

  def _start(self, jobs: list[Facts]) -> None:
    for facts in sorted(jobs, key=lambda facts: facts.job.index):
      if not _waits(facts) or any(each.facts.folder == facts.folder for each in self._running):
        continue
      with self._without(facts):
        free = self._free(facts)
        if not free:
          return
        last = facts.own(facts.notes)[-1:]
        if last and last[0].what == "started":
          # The queue was killed together with the job: its end is not written down yet.
          conclude(facts)
        else:
          self._spawn(facts, free[0])

  @contextlib.contextmanager
  def _without(self, facts: Facts) -> Iterator[None]:
    """Ends a job for which the block fails; the other jobs go on."""
    try:
      yield
    except (OSError, UserError) as error:
      output.say(f"{facts.folder}: {error}; the other jobs go on.")
      self._finished[facts.folder.name] = _size(facts.folder / RECORD / "requests.jsonl")
      submission = facts.submission
      with contextlib.suppress(UserError):
        if submission is not None:
          reason = printable(" ".join(str(error).split()))
          note(facts.folder, submission.token, "failed", _restart_of(facts), f"2 {reason}")

  def _spawn(self, facts: Facts, slot: int) -> None:
    submission = facts.submission
    assert submission is not None
    restart = _restart_of(facts)
    record = facts.folder / RECORD
    if facts.foreign:
      note(facts.folder, submission.token, "failed", restart, f"2 {facts.foreign}")
      return
    # Written again, so that what runs never is what lay in the folder.
    script = write_script(_executor(facts), task_of(facts))
    descriptor = open_locked(record / ALIVE)
    if descriptor is None:
      return
    try:
      os.ftruncate(descriptor, 0)
      os.write(descriptor, str(slot).encode())
      place = _executor(facts).slots()[slot]
      gpus = {} if place.gpus is None else {"CUDA_VISIBLE_DEVICES": place.gpus}
      with open(record / "logs" / "batch.log", "ab") as log:
        note(facts.folder, submission.token, "started", restart)
        process = subprocess.Popen(
          ["bash", str(script), submission.token, str(restart)],
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=log,
          env=os.environ | gpus,
          pass_fds=(descriptor,),
          start_new_session=True,
          preexec_fn=_pin(place.cores),
        )
    finally:
      # From here on the job's processes hold the lock, if there are any.
      os.close(descriptor)
    self._running.append(_Running(facts, slot, process))

  def _done(self) -> bool:
    """Whether nothing waits; if so, the lock of the queue is given back under the run's lock."""
    with lock_run(self._folder, wait=30.0):
      waiting = [facts for facts in self._unfinished() if _waits(facts)]
      if waiting:
        return False
      (self._folder / LAUNCHER / QUEUE_LOCK).unlink()
      return True


def _restart_of(facts: Facts) -> int:
  """How often a job was put back into the queue since its submission."""
  return sum(n.what == "requeued" for n in facts.own(facts.notes))


def _pin(cores: Any) -> Any:
  # Not on macOS. This process has one thread, so that a function may run between fork and exec.
  return (
    functools.partial(os.sched_setaffinity, 0, cores) if hasattr(os, "sched_getaffinity") else None
  )


def _slot_of(folder: pathlib.Path) -> int:
  """The place of a job that runs."""
  with contextlib.suppress(OSError, ValueError):
    return int((folder / RECORD / ALIVE).read_text())
  return 0


def _executor(facts: Facts) -> Local:
  return Local(**{name: value for name, value in facts.job.executor.items() if name != "kind"})


def _waits(facts: Facts) -> bool:
  """Whether a job's last submission has not come to an end."""
  notes = facts.own(facts.notes)
  ended = bool(notes) and notes[-1].what in ("done", "failed")
  return not ended and not facts.cancelled


def _runs(facts: Facts) -> bool:
  """Whether the last start of a job has not come to an end, as its notes and its lock say."""
  notes = facts.own(facts.notes)
  started = bool(notes) and notes[-1].what == "started"
  return started and is_locked(facts.folder / RECORD / ALIVE)


def _size(path: pathlib.Path) -> int:
  try:
    return path.stat().st_size
  except OSError:
    return 0


def conclude(facts: Facts) -> None:
  """Writes down how the last start of a job ended, and whether it is started again."""
  submission = facts.submission
  assert submission is not None
  restart = max((n.restart for n in facts.own(facts.notes)), default=0)
  write = functools.partial(note, facts.folder, submission.token)
  ended = [n for n in facts.own(facts.tasks.get(0, ())) if n.restart == restart]
  code = None
  if ended and ended[-1].what == "ended" and ended[-1].detail.isdecimal():
    code = int(ended[-1].detail)
  if (facts.folder / "result.json").exists():
    write("done", restart)
  elif facts.cancelled:
    write("failed", restart, f"{code or 0} cancelled")
  elif code == 0:
    write("failed", restart, "0 ended by SIGTERM, after saving")
  elif code is None or code in (LOST_PEER, REQUEUE) or code in _KILLED:
    reason = _reason(code)
    most, saved = _executor(facts).max_restarts, _left_checkpoint(facts.folder)
    vain = sum(n.what == "requeued" and _SAVED not in n.detail for n in facts.own(facts.notes))
    if vain >= most and not (most and saved):
      times = f"after {vain} restarts without a new checkpoint"
      write("failed", restart, f"{code or 137} {reason}, {times}")
    else:
      write("requeued", restart, reason + _SAVED * saved)
  else:
    write("failed", restart, f"{code} ended with exit code {code}")


def _left_checkpoint(folder: pathlib.Path) -> bool:
  """Whether a checkpoint is newer than the last start of a job, whose lock was written then."""
  with contextlib.suppress(OSError):
    begun = (folder / RECORD / ALIVE).stat().st_mtime_ns
    paths = (folder / "checkpoints").iterdir()
    return any(path.name.isdecimal() and path.lstat().st_mtime_ns > begun for path in paths)
  return False


def _reason(code: int | None) -> str:
  if code is None:
    return "its processes disappeared"
  if code in _KILLED:
    return f"killed by signal {code - 128}"
  return "a process was lost" if code == LOST_PEER else "saved to be started again"


@contextlib.contextmanager
def only_queue(folder: pathlib.Path) -> Iterator[bool]:
  """Holds the lock of a run's queue in the block; yields False if another process has it."""
  launcher = folder / LAUNCHER
  try:
    # A command that asks whether a queue runs holds the lock for an instant.
    for _ in range(10):
      if (descriptor := open_locked(launcher / QUEUE_LOCK)) is not None:
        break
      time.sleep(0.05)
    if descriptor is not None:
      found = {"host": socket.gethostname(), "pid": str(os.getpid())}
      write_atomically(launcher / QUEUE, dump_json(found) + "\n")
  except OSError as error:
    raise UserError(f"{launcher} cannot be written ({error.strerror or error}).") from None
  try:
    yield descriptor is not None
  finally:
    if descriptor is not None:
      os.close(descriptor)
