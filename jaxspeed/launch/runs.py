"""The folder of a run of many jobs: its name, its user's seal, and one lock.

The seal proves that this user's own `submit` wrote run.json. A run's folder may come from a
stranger, and its jobs name programs: the Python, lines of shell, the recipe. Commands that act
(`cancel`, `retry`, `resume`) take only runs with a seal, made with a key that never leaves the
user's home.
"""

import contextlib
import hashlib
import hmac
import os
import pathlib
import re
import secrets
import time
from collections.abc import Iterator
from typing import Any

from jaxspeed.errors import UserError
from jaxspeed.files import (
  TEMPORARY,
  dump_json,
  expanded,
  open_locked,
  open_regular,
)

RUN_FILE = "run.json"
LAUNCHER = ".launch"  # the folder of the launcher's own files in a run's folder
_LOCK = "lock"
# A folder's name that needs no quotes in a shell, fits every file system, and hides nothing.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+,-]{0,119}")
_KEY = 32  # bytes
_PATIENCE = 30.0  # seconds for which a process waits for another that changes the run


def absolute(folder: str | os.PathLike[str]) -> pathlib.Path:
  """The root of runs as an absolute path, with ~ replaced.

  Raises:
    UserError: it is no path, or names no local folder.
  """
  if not folder or "://" in str(folder):
    raise UserError(f"root={folder!r} is no local folder: name one that all jobs' machines share.")
  return pathlib.Path(os.path.abspath(expanded(folder, "root")))


def check_name(kind: str, name: object) -> str:
  """Returns the name of a run or a job, the `kind`, if it is safe as a folder's.

  Raises:
    UserError: it is not.
  """
  if not isinstance(name, str) or not NAME.fullmatch(name) or name == RUN_FILE:
    raise UserError(
      f"the name {name!r} of a {kind} is no folder's name: use up to 120 letters, digits and "
      f"._=+,- and begin with a letter, a digit or _; {RUN_FILE} is a run's own file."
    )
  return name


def create_run(folder: pathlib.Path) -> None:
  """Creates a run's folder, if it is missing.

  Raises:
    UserError: it holds something else.
    OSError: it cannot be written.
  """
  if folder.is_dir() and not (folder / LAUNCHER).is_dir() and not (folder / RUN_FILE).exists():
    for name in sorted(name for name in os.listdir(folder) if not name.startswith(TEMPORARY)):
      raise UserError(
        f"{folder} is not empty and holds no run of jaxspeed.launch ({name}): choose another "
        "name or root."
      )
  (folder / LAUNCHER).mkdir(parents=True, exist_ok=True)


def seal_of(content: Any) -> str:
  """The seal of what JSON can hold, as hexadecimal digits.

  Raises:
    UserError: the key cannot be used.
  """
  try:
    key = _key()
  except OSError as error:
    raise UserError(
      f"the key of your runs, {error.filename}, cannot be used ({error.strerror or error}): set "
      "XDG_STATE_HOME to a folder of your own."
    ) from None
  return hmac.new(key, dump_json(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _key() -> bytes:
  """The user's key, created if it is missing."""
  base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
  path = pathlib.Path(os.path.abspath(expanded(base, "XDG_STATE_HOME"))) / "jaxspeed" / "launch.key"
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
      descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
      os.write(descriptor, secrets.token_bytes(_KEY))
      os.close(descriptor)
  with open_regular(path) as file:
    key = file.read()
  if len(key) != _KEY:
    raise UserError(f"{path} is damaged: remove it, and submit your runs again.")
  return key


def link_in(folder: pathlib.Path) -> str:
  """A link that a folder is or holds, at any depth: it would lead what is written elsewhere."""
  return next((str(path) for path in (folder, *folder.rglob("*")) if path.is_symlink()), "")


def refuse_links(folder: pathlib.Path) -> None:
  """Refuses a run whose own files are behind a link, before anything is written there."""
  if link := link_in(folder / LAUNCHER):
    raise UserError(f"{link} is a link, which would lead the run's files elsewhere: remove it.")


@contextlib.contextmanager
def lock_run(folder: pathlib.Path) -> Iterator[None]:
  """A block in which no other process changes a run, after waiting some seconds for another.

  Raises:
    UserError: another process is at it, or there are links.
    OSError: nothing can be written.
  """
  refuse_links(folder)
  path, deadline = folder / LAUNCHER / _LOCK, time.monotonic() + _PATIENCE
  while (descriptor := open_locked(path)) is None:
    if time.monotonic() > deadline:
      raise UserError(f"{folder} is being submitted or changed by another process: wait for it.")
    time.sleep(0.05)
  try:
    yield
  finally:
    os.close(descriptor)
