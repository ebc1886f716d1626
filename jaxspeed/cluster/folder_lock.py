"""Ownership of a run's folder: one job at a time writes to it, and an older job never again.

`owner.json` names the incarnation of the run that may write, a number that every start increments.
The owner holds a lock on `run.lock` while it lives, and touches that file for file systems on which
locks do not reach other hosts. A process that finds another owner in `owner.json` ends at once: it
was stopped, or cut off from the disk, while its job was started again.
"""

import contextlib
import functools
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import pydantic

from jaxspeed.cluster import processes
from jaxspeed.cluster.peers import integer
from jaxspeed.config.output import write_error
from jaxspeed.errors import SUPERSEDED, UserError, mend
from jaxspeed.files import (
  TEMPORARY,
  is_locked,
  open_locked,
  parse_json,
  read_bytes,
  read_json,
  try_lock,
  write_atomically,
)

OWNER, OWNER_LOCK, LOCK = "owner.json", ".owner.lock", "run.lock"
RENEWED_EVERY = 5.0  # seconds between two signs of life, each with a check of the owner
# Seconds to wait for the short lock, which covers renaming and removing a folder: a process that
# holds it longer was stopped.
_SHORT = 30.0


class Owner(pydantic.BaseModel, frozen=True):
  """The content of owner.json: the start of a run that may write to its folder."""

  # The number of the start, from 1. Processes send each other this number in 32 bits.
  incarnation: Annotated[int, pydantic.Field(gt=0, lt=2**30)]
  token: str  # a random name of this start
  host: str  # of process 0
  pid: int
  job: str  # the scheduler's; '': none
  restart: int  # the number of times that the scheduler restarted the job
  released: bool = False  # whether the run ended normally
  boot: str = ""  # the boot id of the machine, as two may have one host name; '': not known

  def is_here(self) -> bool:
    """Whether process 0 runs, or ran, on this machine, where the lock says if it lives."""
    return self.host == socket.gethostname() and self.boot in ("", boot_id())

  def __str__(self) -> str:
    job = f", {self.job}" if self.job else ""
    return f"start {self.incarnation} of its run (process {self.pid} on {self.host}{job})"


def job_of(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
  """The scheduler's job of this process, and the number of the job's restarts."""
  for kind, job, restarts in (
    ("Slurm job", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("JobSet", "JOBSET_NAME", "JOBSET_RESTART_ATTEMPT"),
    # The count is that of jaxspeed.launch: SkyPilot has none.
    ("SkyPilot job", "SKYPILOT_TASK_ID", "JAXSPEED_RESTARTS"),
  ):
    if job in environment:
      return f"{kind} {environment[job]}", integer(environment, restarts, "0")
  return "", 0


@functools.cache
def boot_id() -> str:
  """The random id of this start of the machine; '' where the kernel does not tell it."""
  try:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
  except OSError:
    return ""


def end_superseded(message: str) -> None:
  """Prints a message and ends this process at once; a normal exit would still write records."""
  write_error(message)
  processes.exit_now(SUPERSEDED)


def raise_superseded(message: str) -> None:
  """Raises a UserError with a message, where a call from Python may not end the process."""
  raise UserError(message)


class FolderLock:
  """The right to write to a run's folder; one process of a run takes it.

  Args:
    folder: the run's existing folder.
    superseded: a function called with a message, from any thread, if another start owns the folder.

  Raises:
    UserError: another live job owns the folder, or nothing can be written to it.
  """

  def __init__(
    self, folder: pathlib.Path, *, superseded: Callable[[str], None] = end_superseded
  ) -> None:
    self._folder, self._superseded = folder, superseded
    self._descriptor: int | None = None
    try:
      self._owner = self._take()
    except BaseException as error:
      self._erase_locks()
      self._unlock()
      if not isinstance(error, OSError):
        raise
      raise UserError(
        f"{folder} cannot be locked for this run ({error.strerror or error}): {mend(error)} or "
        "choose another --workdir."
      ) from error
    self._closed = threading.Event()
    self._renewer = threading.Thread(target=self._renew, name="folder lock", daemon=True)
    self._renewer.start()

  @property
  def incarnation(self) -> int:
    """The number of this start of the run, from 1."""
    return self._owner.incarnation

  def check(self) -> None:
    """Calls `superseded` if a later start has taken the folder over."""
    if found := self.successor():
      self._superseded(
        f"{self._folder} was taken over by {found}: this older one, start {self.incarnation}, "
        f"ends at once and writes nothing more there."
      )

  def successor(self) -> Owner | None:
    """The later start that has taken the folder over; None if there is none."""
    found = read_owner(self._folder)
    # A missing or unreadable file does not name another owner.
    return found if found is not None and found.token != self._owner.token else None

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """A block in which no later start can take the folder over; it begins with `check`."""
    with self._short_lock():
      self.check()
      yield

  def close(self, *, erase: bool = False) -> None:
    """Releases the folder; `erase` removes the files of ownership, for a run that has not begun."""
    self._closed.set()
    self._renewer.join()
    # If this fails, the next start on another host only waits longer.
    with contextlib.suppress(OSError, UserError), self._short_lock():
      if read_owner(self._folder) == self._owner:
        if erase:
          (self._folder / OWNER).unlink()
          self._erase_locks()
        else:
          self._write(self._owner.model_copy(update={"released": True}))
    self._unlock()

  def _take(self) -> Owner:
    before = self._read()
    job, restart = job_of()
    # The same job, started again: processes left from its last start must stop writing.
    succeeds = before is not None and job and before.job == job and before.restart < restart
    if before is not None and not (before.released or succeeds) and self._is_alive(before):
      raise self._refusal(before)
    with self._short_lock():
      before = self._read()
      self._descriptor = open_locked(self._folder / LOCK)
      if self._descriptor is None:
        if not succeeds:
          raise self._refusal(before)
        # An older start of the job holds it: put a new file in its place.
        new = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try_lock(self._descriptor)
        new.rename(self._folder / LOCK)
      owner = Owner(
        incarnation=before.incarnation + 1 if before else 1,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        job=job,
        restart=restart,
        boot=boot_id(),
      )
      self._write(owner)
    return owner

  @contextlib.contextmanager
  def _short_lock(self) -> Iterator[None]:
    """A lock held only from reading owner.json to the action that depends on it."""
    deadline = time.monotonic() + _SHORT
    while (descriptor := open_locked(self._folder / OWNER_LOCK)) is None:
      if time.monotonic() > deadline:
        # A start was stopped while it held the lock; it sees the new owner when it continues.
        raise UserError(
          f"{self._folder / OWNER_LOCK} is locked by a process that hangs: end that process, or "
          "choose another --workdir."
        )
      time.sleep(0.02)
    try:
      yield
    finally:
      os.close(descriptor)

  def _erase_locks(self) -> None:
    """Removes the lock files if this start has run.lock and the folder has no owner."""
    if self._descriptor is not None and not (self._folder / OWNER).exists():
      for name in (LOCK, OWNER_LOCK):
        with contextlib.suppress(OSError):
          (self._folder / name).unlink()

  def _unlock(self) -> None:
    if self._descriptor is not None:
      os.close(self._descriptor)
      self._descriptor = None

  def _is_alive(self, owner: Owner) -> bool:
    """Whether an owner on another machine gives signs of life; on this one, the lock decides."""
    if owner.is_here() or not (self._folder / LOCK).exists():
      return False
    # Look for a change of the file's time: the clocks of two hosts differ.
    seen = os.stat(self._folder / LOCK).st_mtime_ns
    deadline = time.monotonic() + 3 * RENEWED_EVERY
    while time.monotonic() < deadline:
      time.sleep(RENEWED_EVERY / 5)
      if os.stat(self._folder / LOCK).st_mtime_ns != seen:
        return True
    return False

  def _renew(self) -> None:
    while not self._closed.wait(RENEWED_EVERY):
      try:
        self.check()
      except UserError:  # of `raise_superseded`; the next check raises it in the caller's thread
        return
      with contextlib.suppress(OSError):
        os.utime(self._folder / LOCK)

  def _read(self) -> Owner | None:
    """The owner before this start; None: nobody.

    Raises:
      UserError: owner.json is damaged, and may hide the name of a live job.
    """
    path = self._folder / OWNER
    advice = f"remove {path.name} if no other job writes there, or choose another --workdir"
    found = read_json(path, Owner, advice)
    return None if found is None else Owner(**found)

  def _write(self, owner: Owner) -> None:
    write_atomically(self._folder / OWNER, owner.model_dump_json(indent=1) + "\n")

  def _refusal(self, owner: Owner | None) -> UserError:
    by = owner or "another start of its run"
    return UserError(
      f"{self._folder} is in use by {by}, which has not ended: wait for it, end it, or choose "
      "another --workdir."
    )


def read_owner(folder: pathlib.Path) -> Owner | None:
  """The last owner of a run's folder; None if there is none, or the file is damaged."""
  try:
    return Owner(**parse_json(read_bytes(folder / OWNER), Owner))
  except (OSError, ValueError):
    return None


def run_has_ended(folder: pathlib.Path) -> bool:
  """Whether the process that last wrote to a run's folder has surely ended.

  It gave the folder back, or it was on this host, where its lock is free. Of a process that was
  killed on another host nothing is known. One of several seeds belongs to the owner of the folder
  above.
  """
  if not os.path.lexists(folder / OWNER):
    folder = folder.parent
  owner = read_owner(folder)
  if owner is None:
    return False
  return owner.released or (owner.is_here() and not is_locked(folder / LOCK))
