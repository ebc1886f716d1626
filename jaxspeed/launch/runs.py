"""A run of many jobs as its folder keeps it: `run.json`, one folder per job, and one lock."""

import contextlib
import dataclasses
import getpass
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Literal

from jaxspeed.config import schema
from jaxspeed.errors import UserError, printable
from jaxspeed.files import (
  TEMPORARY,
  dump_json,
  expanded,
  open_locked,
  read_bytes,
  read_json,
  write_atomically,
)
from jaxspeed.launch.local import LAUNCHER
from jaxspeed.launch.record import RECORD, Facts, read_facts

RUN_FILE = "run.json"
FORMAT: Literal[2] = 2
_LOCK = "lock"  # it holds who has the lock
# A folder's name that needs no quotes in a shell, fits every file system, and hides nothing.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+,-]{0,119}")


def absolute(folder: str | os.PathLike[str]) -> pathlib.Path:
  """The root of runs as an absolute path, with ~ replaced.

  Raises:
    UserError: it is no path, or names no local folder.
  """
  if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
    raise UserError(f"root={folder!r}: name a folder that all machines of the jobs share.")
  if "://" in os.fspath(folder):
    raise UserError(f"root {folder} is no local folder: mount the bucket, and name the folder.")
  path = pathlib.Path(os.path.abspath(expanded(folder, "root")))
  # Scripts name it, line by line.
  if not schema.is_plain(str(path)):
    raise UserError(f"root {str(path)!r} has characters that no script can name: choose another.")
  return path


@dataclasses.dataclass(frozen=True)
class RunFile:
  """The content of run.json: format, name, Unix time, and by whom and where it was created."""

  format: Literal[2]
  name: str
  created: float
  user: str
  host: str


def check_name(kind: str, name: object) -> str:
  """Returns a name that is safe as a folder's.

  Args:
    kind: what the name is of, for the message.
    name: the name.

  Raises:
    UserError: it is not.
  """
  if not isinstance(name, str) or not NAME.fullmatch(name) or name == RUN_FILE:
    raise UserError(
      f"the name {name!r} of a {kind} is no folder's name: use up to 120 letters, digits and "
      f"._=+,- and begin with a letter, a digit or _; {RUN_FILE} is a run's own file."
    )
  return name


def create_run(folder: pathlib.Path) -> bool:
  """Creates a run's folder and run.json, if they are missing; returns whether the run is new.

  Raises:
    UserError: it cannot be written, or holds something else.
  """
  if (folder / RUN_FILE).exists():
    read_run(folder)
    return False
  try:
    if folder.is_dir():
      # What a killed submission left half-written is not foreign.
      known = (TEMPORARY, LAUNCHER)
      foreign = sorted(name for name in os.listdir(folder) if not name.startswith(known))
      if foreign:
        raise UserError(
          f"{folder} is not empty and holds no run of jaxspeed.launch ({foreign[0]}): choose "
          "another name or root."
        )
    (folder / LAUNCHER).mkdir(parents=True, exist_ok=True)
    found = RunFile(FORMAT, folder.name, time.time(), _user(), socket.gethostname())
    write_atomically(folder / RUN_FILE, dump_json(dataclasses.asdict(found), indent=1) + "\n")
  except OSError as error:
    raise UserError(
      f"{folder} cannot be created or written ({error.strerror or error}): choose another root."
    ) from None
  return True


def remove_run(folder: pathlib.Path) -> None:
  """Removes a run whose jobs were all removed, and the folder if nothing else is in it."""
  shutil.rmtree(folder / LAUNCHER, ignore_errors=True)
  with contextlib.suppress(OSError):
    (folder / RUN_FILE).unlink()
    folder.rmdir()


def _user() -> str:
  try:
    return getpass.getuser()
  except (KeyError, OSError, ImportError):  # a container's user without a name
    return str(os.getuid())


def read_run(folder: pathlib.Path) -> None:
  """Makes sure that a folder is a run's.

  Raises:
    UserError: it has no run.json, or a damaged one.
  """
  if read_json(folder / RUN_FILE, RunFile, "put the file back, or give exist='new'") is None:
    raise UserError(
      f"{folder} holds no run of jaxspeed.launch: name the folder ROOT/RUN that submit printed."
    )


def job_folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders of a run that may be jobs.

  Raises:
    UserError: the run's folder cannot be read.
  """
  try:
    names = sorted(name for name in os.listdir(folder) if not name.startswith(TEMPORARY))
  except OSError as error:
    raise UserError(f"{folder} cannot be read ({error.strerror or error}).") from None
  return [folder / name for name in names if (folder / name / RECORD).is_dir()]


def read_jobs(folder: pathlib.Path) -> list[Facts]:
  """What the folders of a run's jobs say, in the order of the jobs.

  Raises:
    UserError: a job's folder is damaged, or the run's cannot be read.
  """
  found = (read_facts(each) for each in job_folders(folder))
  return sorted((facts for facts in found if facts), key=lambda f: (f.job.index, f.job.name))


def without_record(folder: pathlib.Path) -> str:
  """A sentence on folders of a run that were trained and have lost their job's record, or ''."""
  lost = [
    path.name
    for path in sorted(folder.iterdir())
    if (path / "config.json").is_file() and not (path / RECORD / "job.json").is_file()
  ]
  if not lost:
    return ""
  return f"without a record of their job: {', '.join(lost)}; submit the run's file again for it"


@contextlib.contextmanager
def lock_run(folder: pathlib.Path, *, wait: float = 0.0) -> Iterator[None]:
  """A block in which no other process submits, cancels or retries jobs of a run.

  Args:
    folder: the run's folder.
    wait: seconds to wait for another process.

  Raises:
    UserError: another process is at it, or nothing can be written.
  """
  path = folder / LAUNCHER / _LOCK
  deadline = time.monotonic() + wait
  try:
    while (descriptor := open_locked(path)) is None:
      if time.monotonic() > deadline:
        raise UserError(f"{folder} is being submitted or changed by {_holder(path)}: wait for it.")
      time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{_user()} (process {os.getpid()} on {socket.gethostname()})".encode())
  except OSError as error:
    raise UserError(f"{path} cannot be written ({error.strerror or error}).") from None
  try:
    yield
  finally:
    os.utime(descriptor)
    os.close(descriptor)


def last_change(folder: pathlib.Path) -> object:
  """What differs after each block of `lock_run`."""
  with contextlib.suppress(OSError):
    return os.stat(folder / LAUNCHER / _LOCK).st_mtime_ns
  return None


def _holder(path: pathlib.Path) -> str:
  with contextlib.suppress(OSError, ValueError):
    return printable(read_bytes(path)[:200].decode()) or "another process"
  return "another process"
