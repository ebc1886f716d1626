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

from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY, dump_json, load_json, open_locked, write_atomically
from jaxspeed.launch.record import RECORD, Facts, read_facts

# The folder of the launcher's own files in a run's folder.
LAUNCHER = ".launch"
RUN_FILE = "run.json"
FORMAT: Literal[1] = 1
# A folder's name that needs no quotes in a shell, fits every file system, and hides nothing.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+,-]{0,119}")


@dataclasses.dataclass(frozen=True)
class RunFile:
  """The content of run.json.

  Attributes:
    format: `FORMAT`.
    name: the run's name, which is its folder's.
    created: Unix time.
    user: who created the run.
    host: where it was created.
  """

  format: Literal[1]
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
  if name == RUN_FILE:
    raise UserError(f"the name {name!r} of a {kind} is that of a run's own file: choose another.")
  if not isinstance(name, str) or not NAME.fullmatch(name):
    raise UserError(
      f"the name {name!r} of a {kind} is no folder's name: use up to 120 letters, digits and "
      "._=+,- and begin with a letter, a digit or _."
    )
  return name


def create_run(folder: pathlib.Path) -> bool:
  """Creates a run's folder, its folder for the launcher's files, and run.json, if they are missing.

  Returns:
    Whether the run is new.

  Raises:
    UserError: it cannot be written, or holds something else.
  """
  if (folder / RUN_FILE).exists():
    read_run(folder)
    return False
  try:
    if folder.is_dir():
      # What a killed submission left half-written is not foreign.
      names = sorted(name for name in os.listdir(folder) if not name.startswith(TEMPORARY))
      foreign = [name for name in names if name != LAUNCHER]
      if foreign:
        raise UserError(
          f"{folder} is not empty and holds no run of jaxspeed.launch ({foreign[0]}): choose "
          "another name or root."
        )
    (folder / LAUNCHER).mkdir(parents=True, exist_ok=True)
    _write_run(folder, RunFile(FORMAT, folder.name, time.time(), _user(), socket.gethostname()))
  except OSError as error:
    raise UserError(
      f"{folder} cannot be created or written ({error.strerror or error}): choose another root."
    ) from None
  return True


def _write_run(folder: pathlib.Path, found: RunFile) -> None:
  write_atomically(folder / RUN_FILE, dump_json(dataclasses.asdict(found), indent=1) + "\n")


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


def read_run(folder: pathlib.Path) -> RunFile:
  """The content of a run's run.json.

  Raises:
    UserError: there is none, or it is damaged.
  """
  path = folder / RUN_FILE
  try:
    found = load_json(path, RunFile)
  except FileNotFoundError:
    raise UserError(
      f"{folder} holds no run of jaxspeed.launch: name the folder ROOT/RUN that submit printed."
    ) from None
  except ValueError as error:
    raise UserError(f"{path} cannot be used ({error}): put the file back.") from None
  known = {field.name for field in dataclasses.fields(RunFile)}
  return RunFile(**{name: value for name, value in found.items() if name in known})


def read_jobs(folder: pathlib.Path) -> list[Facts]:
  """What the folders of a run's jobs say, in the order of the jobs.

  Raises:
    UserError: a job's folder is damaged, or the run's cannot be read.
  """
  try:
    names = sorted(name for name in os.listdir(folder) if not name.startswith(TEMPORARY))
  except OSError as error:
    raise UserError(f"{folder} cannot be read ({error.strerror or error}).") from None
  found = (read_facts(folder / name) for name in names if (folder / name / RECORD).is_dir())
  return sorted((facts for facts in found if facts), key=lambda f: (f.job.index, f.job.name))


@contextlib.contextmanager
def lock_run(folder: pathlib.Path, *, wait: float = 0.0) -> Iterator[None]:
  """A block in which no other process submits, cancels or retries jobs of a run.

  Args:
    folder: the run's folder.
    wait: seconds to wait for another process.

  Raises:
    UserError: another process is at it, or nothing can be written.
  """
  path = folder / LAUNCHER / "lock"
  who = folder / LAUNCHER / "locked_by.json"
  deadline = time.monotonic() + wait
  try:
    while (descriptor := open_locked(path)) is None:
      if time.monotonic() > deadline:
        raise UserError(f"{folder} is being submitted or changed by {_holder(who)}: wait for it.")
      time.sleep(0.05)
  except OSError as error:
    raise UserError(f"{path} cannot be written ({error.strerror or error}).") from None
  try:
    with contextlib.suppress(OSError):
      found = {"user": _user(), "host": socket.gethostname(), "pid": str(os.getpid())}
      write_atomically(who, dump_json(found) + "\n", sync=False)
    yield
  finally:
    os.close(descriptor)


def _holder(path: pathlib.Path) -> str:
  try:
    found = load_json(path, dict[str, str])
    return f"{found['user']} (process {found['pid']} on {found['host']})"
  except (OSError, ValueError, KeyError):
    return "another process"
