"""Ownership of a run's folder: one job at a time writes to it, and an older one never again.

`owner.json` names the incarnation of the run that may write: a number that every start raises. The
holder keeps a lock on `run.lock` as long as it lives, and renews that file's time, for file
systems on which locks do not reach other hosts. Who finds another's name in `owner.json` ends at
once: a process that was stopped, or cut off from the disk, while its job was started again.
"""

import contextlib
import dataclasses
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jaxspeed.cluster import processes
from jaxspeed.cluster.peers import integer
from jaxspeed.errors import SUPERSEDED, UserError
from jaxspeed.files import (
  TEMPORARY,
  create,
  dump_json,
  load_json,
  open_locked,
  read_json,
  try_lock,
  write_atomically,
)

OWNER, OWNER_LOCK, LOCK = "owner.json", ".owner.lock", "run.lock"
RENEWED_EVERY = 5.0  # seconds
# A holder of the short lock renames and removes a folder; one that takes longer was stopped.
_SHORT = 30.0
_MOST_STARTS = 2**30  # processes tell each other in 32 bits


@dataclasses.dataclass(frozen=True)
class Owner:
  """What owner.json holds.

  Attributes:
    incarnation: from 1, raised by every start.
    token: of this start only.
    host: on which process 0 runs.
    pid: its number there.
    job: of a scheduler, '' without one.
    restart: how often the scheduler has started that job again.
    released: whether it has ended in good order.
  """

  incarnation: int
  token: str
  host: str
  pid: int
  job: str
  restart: int
  released: bool = False

  def __str__(self) -> str:
    job = f", {self.job}" if self.job else ""
    return f"start {self.incarnation} of its run (process {self.pid} on {self.host}{job})"


def job_of(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
  """The scheduler's job that this process belongs to, and how often it was started again.

  Raises:
    UserError: that is no number.
  """
  for kind, job, restarts in (
    ("Slurm job", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("JobSet", "JOBSET_NAME", "JOBSET_RESTART_ATTEMPT"),
  ):
    if job in environment:
      return f"{kind} {environment[job]}", integer(restarts, environment.get(restarts, "0"))
  return "", 0


def end_superseded(message: str) -> None:
  """Ends this process at once: an orderly end would still write records."""
  processes.say(message)
  processes.exit_now(SUPERSEDED)


class FolderLock:
  """The right to write to a run's folder; to be taken by one process of a run.

  Args:
    folder: of the run, which exists.
    renewed_every: seconds between two signs of life, and looks whether the folder is still its own.
    superseded: what is called with a sentence where it is not, from any thread.

  Raises:
    UserError: another job that is alive has the folder, or nothing can be written to it.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    renewed_every: float = RENEWED_EVERY,
    superseded: Callable[[str], None] = end_superseded,
  ) -> None:
    self._folder = folder
    self._renewed_every = renewed_every
    self._superseded = superseded
    self._descriptor: int | None = None
    try:
      self._owner = self._take()
    except OSError as error:
      self._erase_locks()
      self._unlock()
      raise UserError(
        f"{folder} cannot be taken for this run ({error.strerror or error}): make room or choose "
        "another --workdir."
      ) from error
    except BaseException:
      self._unlock()
      raise
    self._closed = threading.Event()
    self._renewer = threading.Thread(target=self._renew, name="folder lock", daemon=True)
    self._renewer.start()

  @property
  def incarnation(self) -> int:
    """The number of this start of the run, from 1."""
    return self._owner.incarnation

  def check(self) -> None:
    """Makes sure that no later start has taken the folder over; `superseded` is called if so."""
    found = read_owner(self._folder)
    # A file that is gone or cannot be read just now names nobody else.
    if found is not None and found.token != self._owner.token:
      self._superseded(
        f"{self._folder} was taken over by {found}: this older one, start {self.incarnation}, "
        f"ends at once and writes nothing more there."
      )

  @contextlib.contextmanager
  def writing(self) -> Iterator[None]:
    """A block in which no later start can take the folder over; `check` comes first."""
    with self._short_lock():
      self.check()
      yield

  def close(self, *, erase: bool = False) -> None:
    """Gives the folder back.

    Args:
      erase: also removes the files that say whose it is, of a run that has not begun.
    """
    self._closed.set()
    self._renewer.join()
    # Nothing depends on it but the patience of a next start on another host.
    with contextlib.suppress(OSError, UserError), self._short_lock():
      if read_owner(self._folder) == self._owner:
        if erase:
          (self._folder / OWNER).unlink()
          self._erase_locks()
        else:
          self._write(dataclasses.replace(self._owner, released=True))
    self._unlock()

  def _take(self) -> Owner:
    before = self._read()
    job, restart = job_of()
    # The same job, started again: what is left of its last start must not write any more.
    succeeds = before is not None and job and before.job == job and before.restart < restart
    if before is not None and not (before.released or succeeds) and self._is_alive(before):
      raise self._refusal(before)
    with self._short_lock():
      before = self._read()
      if not self._lock():
        if not succeeds:
          raise self._refusal(before)
        self._replace_lock()
      owner = Owner(
        incarnation=before.incarnation + 1 if before else 1,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        job=job,
        restart=restart,
      )
      self._write(owner)
    return owner

  @contextlib.contextmanager
  def _short_lock(self) -> Iterator[None]:
    """Held for moments only: between a look at owner.json and what follows from it."""
    deadline = time.monotonic() + _SHORT
    while (descriptor := open_locked(self._folder / OWNER_LOCK)) is None:
      if time.monotonic() > deadline:
        # Of a start that was stopped in these moments; it sees the new owner when it goes on.
        raise UserError(
          f"{self._folder / OWNER_LOCK} is locked by a process that stands still: end that one, "
          "or choose another --workdir."
        )
      time.sleep(0.02)
    try:
      yield
    finally:
      os.close(descriptor)

  def _lock(self) -> bool:
    """Whether the lock was to be had; also where there are none."""
    self._unlock()
    self._descriptor = open_locked(self._folder / LOCK)
    return self._descriptor is not None

  def _replace_lock(self) -> None:
    """Takes a lock of a new file in place of the one that an older start of the job holds."""
    self._unlock()
    new = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    self._descriptor = create(new)
    try_lock(self._descriptor)
    new.rename(self._folder / LOCK)

  def _erase_locks(self) -> None:
    """Removes the files of the locks, where this start has them and the folder has no owner."""
    if self._descriptor is not None and not (self._folder / OWNER).exists():
      for name in (LOCK, OWNER_LOCK):
        with contextlib.suppress(OSError):
          (self._folder / name).unlink()

  def _unlock(self) -> None:
    if self._descriptor is not None:
      os.close(self._descriptor)
      self._descriptor = None

  def _is_alive(self, owner: Owner) -> bool:
    """Whether an owner on another host still gives signs of life; of this one, the lock tells."""
    if owner.host == socket.gethostname() or not (self._folder / LOCK).exists():
      return False
    # By its changes and no clock: those of two hosts differ.
    seen = os.stat(self._folder / LOCK).st_mtime_ns
    deadline = time.monotonic() + 3 * self._renewed_every
    while time.monotonic() < deadline:
      time.sleep(self._renewed_every / 5)
      if os.stat(self._folder / LOCK).st_mtime_ns != seen:
        return True
    return False

  def _renew(self) -> None:
    while not self._closed.wait(self._renewed_every):
      self.check()
      with contextlib.suppress(OSError):
        os.utime(self._folder / LOCK)

  def _read(self) -> Owner | None:
    """As `read_owner`, before this start is one itself.

    Raises:
      UserError: the file is damaged: it may hide the name of a job that is alive.
    """
    path = self._folder / OWNER
    advice = f"remove {path.name} if no other job writes there, or choose another --workdir"
    found = read_json(path, Owner, advice)
    if found is None:
      return None
    owner = _owner_of(found)
    if owner is None:
      raise UserError(f"{path} cannot be used (incarnation {found['incarnation']}): {advice}.")
    return owner

  def _write(self, owner: Owner) -> None:
    write_atomically(self._folder / OWNER, dump_json(dataclasses.asdict(owner), indent=1) + "\n")

  def _refusal(self, owner: Owner | None) -> UserError:
    by = owner or "another start of its run"
    return UserError(
      f"{self._folder} is in use by {by}, which has not ended: wait for it, end it, or choose "
      "another --workdir."
    )


def read_owner(folder: pathlib.Path) -> Owner | None:
  """Who last took a run's folder; None where nobody has, or the file is damaged."""
  try:
    return _owner_of(load_json(folder / OWNER, Owner))
  except (OSError, ValueError):
    return None


def _owner_of(found: Mapping[str, Any]) -> Owner | None:
  """The owner that an object names; None where it counts what cannot be counted on."""
  names = {field.name for field in dataclasses.fields(Owner)}
  owner = Owner(**{name: value for name, value in found.items() if name in names})
  return owner if 0 < owner.incarnation < _MOST_STARTS else None


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path) -> Iterator[FolderLock]:
  """The lock of a folder, held in the block."""
  lock = FolderLock(folder)
  try:
    yield lock
  finally:
    lock.close()
