"""The process that runs a local queue: it starts jobs, restarts them, and writes down how they end.

The queue is the run's folder. This process holds `queue.lock`, and every process of a job inherits
the lock `alive.lock` of its job: another process of this kind, started after this one was killed,
knows which jobs still run. It reads the folders again only when a command has changed the run.
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
from jaxspeed.errors import UserError, printable
from jaxspeed.files import is_locked, open_locked
from jaxspeed.launch.decision import decide
from jaxspeed.launch.executors import executor_of
from jaxspeed.launch.local import ALIVE, LAUNCHER, QUEUE_LOCK, Local
from jaxspeed.launch.record import RECORD, Facts, read_facts
from jaxspeed.launch.runs import job_folders, last_change, lock_run
from jaxspeed.launch.supervisor import Start

_POLL = 0.3  # seconds between two looks at the jobs


@dataclasses.dataclass
class _Running:
  """A job that runs: its folder, its place, and its process unless an earlier queue started it."""

  folder: pathlib.Path
  slot: int
  process: subprocess.Popen[bytes] | None


class Queue:
  """Runs the local jobs of a run until none is left.

  Args:
    folder: the run's folder.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder
    self._running: list[_Running] = []
    self._waiting: dict[pathlib.Path, Facts] = {}
    self._given_up: set[pathlib.Path] = set()
    self._seen: object = None
    self._look = False  # whether a job may have to be started

  def run(self) -> None:
    """Returns when no job runs or waits.

    Raises:
      UserError: the run's folder is damaged.
    """
    while True:
      self._reap()
      if (change := last_change(self._folder)) != self._seen:
        self._seen = change
        self._read()
      if self._look:
        self._start()
      if not self._running and not self._waiting and self._done():
        return
      time.sleep(_POLL)

  def _read(self) -> None:
    """Reads which jobs wait, and takes over those that an earlier queue started and that run."""
    running = {each.folder for each in self._running}
    self._waiting, self._look = {}, True
    for folder in job_folders(self._folder):
      with self._without(folder):
        facts = read_facts(folder)
        if facts is None or facts.job.executor.get("kind") != Local.kind:
          continue
        if folder not in running and _runs(facts):
          self._running.append(_Running(folder, _slot_of(folder), None))
        elif folder not in running and _waits(facts):
          self._waiting[folder] = facts

  def _reap(self) -> None:
    for each in [*self._running]:
      code = None
      if each.process is None:
        if is_locked(each.folder / RECORD / ALIVE):
          continue
      else:
        if each.process.poll() is None:
          continue
        code = each.process.returncode
        code = code if code >= 0 else 128 - code
        # What it leaves in the background would keep the job's lock from its next start.
        with contextlib.suppress(ProcessLookupError):
          os.killpg(each.process.pid, signal.SIGTERM)
      self._running.remove(each)
      self._conclude(each.folder, code)

  def _conclude(self, folder: pathlib.Path, code: int | None) -> None:
    """Writes down how the last start of a job ended; it waits again if it is restarted."""
    self._waiting.pop(folder, None)
    self._look = True
    with self._without(folder):
      if (facts := read_facts(folder)) is None:
        return
      code = facts.ends().get(0, code)
      most, restart = executor_of(facts.job.executor, str(folder)).max_restarts, facts.restarts
      rules: dict[str, Any] = {"is_cancelled": facts.cancelled, "sigterm_ends": True}
      verdict = decide(folder, facts.token, restart, code, max_restarts=most, **rules)
      Start(folder, facts.token, restart).conclude(verdict)
      if (now := read_facts(folder)) and _waits(now):
        self._waiting[folder] = now

  def _start(self) -> None:
    self._look = False
    for folder in sorted(self._waiting, key=lambda each: self._waiting[each].job.index):
      with self._without(folder):
        facts = read_facts(folder)
        if facts is None or not _waits(facts):
          del self._waiting[folder]
          continue
        executor = executor_of(facts.job.executor, str(folder))
        assert isinstance(executor, Local)
        taken = {each.slot for each in self._running}
        free = [slot for slot in range(executor.parallel) if slot not in taken]
        if not free:
          return
        if facts.own_notes and facts.own_notes[-1].what == "started":
          # The queue was killed together with the job: its end is not written down yet.
          if not is_locked(folder / RECORD / ALIVE):
            self._conclude(folder, None)
        else:
          self._spawn(facts, executor, free[0])

  @contextlib.contextmanager
  def _without(self, folder: pathlib.Path) -> Iterator[None]:
    """Ends a job for which the block fails; the other jobs go on."""
    try:
      yield
    except (OSError, UserError) as error:
      self._waiting.pop(folder, None)
      if folder not in self._given_up:
        output.say(f"{folder}: {error}; the other jobs go on.")
      self._given_up.add(folder)
      with contextlib.suppress(OSError, UserError):
        if (facts := read_facts(folder)) and _waits(facts):
          reason = printable(" ".join(str(error).split()))
          Start(folder, facts.token, _next_restart(facts)).note("failed", f"2 {reason}")

  def _spawn(self, facts: Facts, executor: Local, slot: int) -> None:
    if facts.foreign:
      raise UserError(facts.foreign)
    record = facts.folder / RECORD
    descriptor = open_locked(record / ALIVE)
    if descriptor is None:  # what was told to end still saves
      self._look = True
      return
    try:
      os.ftruncate(descriptor, 0)
      os.write(descriptor, str(slot).encode())
      place, restart = executor.slots()[slot], _next_restart(facts)
      gpus = {} if place.gpus is None else {"CUDA_VISIBLE_DEVICES": place.gpus}
      script = executor.script([facts.job], facts.token)
      with open(record / "logs" / "batch.log", "ab") as log:
        Start(facts.folder, facts.token, restart).note("started")
        process = subprocess.Popen(
          ["bash", "-c", script, facts.job.name, str(restart)],
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
    del self._waiting[facts.folder]
    self._running.append(_Running(facts.folder, slot, process))

  def _done(self) -> bool:
    """Whether nothing waits; if so, the lock of the queue is given back under the run's lock."""
    with lock_run(self._folder, wait=30.0):
      self._read()
      if self._waiting or self._running:
        return False
      (self._folder / LAUNCHER / QUEUE_LOCK).unlink()
      return True


def _next_restart(facts: Facts) -> int:
  """How often a job was put back into the queue since its submission."""
  return sum(note.what == "requeued" for note in facts.own_notes)


def _pin(cores: Any) -> Any:
  # Not on macOS. This process has one thread, so that a function may run between fork and exec.
  return (
    functools.partial(os.sched_setaffinity, 0, cores) if hasattr(os, "sched_getaffinity") else None
  )


def _slot_of(folder: pathlib.Path) -> int:
  """The place of a job that runs."""
  with contextlib.suppress(OSError, ValueError):
    return int((folder / RECORD / ALIVE).read_bytes()[:8])
  return 0


def _waits(facts: Facts) -> bool:
  """Whether a job's last submission has not come to an end."""
  ended = any(note.what in ("failed", "done") for note in facts.own_notes[-1:])
  return facts.submission is not None and not ended and not facts.cancelled


def _runs(facts: Facts) -> bool:
  """Whether the last start of a job has not come to an end, as its notes and its lock say."""
  notes = facts.own_notes
  started = bool(notes) and notes[-1].what == "started"
  return started and is_locked(facts.folder / RECORD / ALIVE)


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
      os.ftruncate(descriptor, 0)
      os.write(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode())
  except OSError as error:
    raise UserError(f"{launcher} cannot be written ({error.strerror or error}).") from None
  try:
    yield descriptor is not None
  finally:
    if descriptor is not None:
      os.close(descriptor)
