"""The folder of a run of many jobs: its name, its jobs, its seal, and one lock.

The seal proves that this user's own `submit` wrote run.json. A run's folder may come from a
stranger, and its jobs name programs: the Python, lines of shell, the recipe. Commands that act
(`cancel`, `retry`, `resume`) take only runs with a seal, made with a key that never leaves the
user's home.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import os
import pathlib
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from jaxspeed.config import schema
from jaxspeed.errors import UserError, some
from jaxspeed.files import (
  TEMPORARY,
  dump_json,
  expanded,
  open_locked,
  open_regular,
  write_atomically,
)
from jaxspeed.launch.record import (
  FORMAT,
  LAUNCHER,
  RUN_FILE,
  Event,
  Facts,
  Job,
  add_line,
  link_in,
  named,
  read_lines,
  read_notes,
  read_run_file,
)

REQUESTS, _LOCK = "requests.jsonl", "lock"
# A folder's name that needs no quotes in a shell, fits every file system, and hides nothing.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+,-]{0,119}")
_KEY = 32  # bytes


def absolute(folder: str | os.PathLike[str]) -> pathlib.Path:
  """The root of runs as an absolute path, with ~ replaced.

  Raises:
    UserError: it is no path, or names no local folder.
  """
  if not folder or "://" in str(folder):
    raise UserError(f"root={folder!r} is no local folder: name one that all jobs' machines share.")
  path = pathlib.Path(os.path.abspath(expanded(folder, "root")))
  # Scripts name it, line by line.
  if not schema.is_plain(str(path)):
    raise UserError(f"root {str(path)!r} has characters that no script can name: choose another.")
  return path


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


def write_jobs(folder: pathlib.Path, jobs: Sequence[Job]) -> None:
  """Writes a run's run.json, with the user's seal.

  Raises:
    OSError: it cannot be written.
  """
  content = [dataclasses.asdict(job) for job in jobs]
  found = {"format": FORMAT, "jobs": content, "seal": seal_of(content)}
  write_atomically(folder / RUN_FILE, dump_json(found, indent=1) + "\n")


def jobs_of(folder: pathlib.Path) -> list[Facts] | None:
  """What the files of a run say about its jobs, in their order; None: the folder holds no run.

  Raises:
    UserError: the run is damaged.
  """
  if (found := read_run_file(folder)) is None:
    return None
  is_own = found.seal == seal_of([dataclasses.asdict(job) for job in found.jobs])
  requests: dict[str, list[Event]] = {}
  for line in read_lines(folder / LAUNCHER / REQUESTS):
    for name in line.jobs:
      requests.setdefault(name, []).append(line)
  return [
    Facts(folder / job.name, job, is_own, requests.get(job.name, []), read_notes(folder / job.name))
    for job in found.jobs
    if NAME.fullmatch(job.name)
  ]


def read_jobs(folder: pathlib.Path, names: Collection[str] = ()) -> list[Facts]:
  """`jobs_of`, of the jobs with these names; of all without names.

  Raises:
    UserError: there is no such run or job, or the run is damaged.
  """
  if (found := jobs_of(folder)) is None:
    raise UserError(
      f"{folder} holds no run of jaxspeed.launch: name the folder ROOT/RUN that submit printed."
    )
  names, jobs = {names} if isinstance(names, str) else {*names}, named(found)
  if unknown := sorted(names - jobs.keys()):
    raise UserError(f"{folder} has no job {unknown[0]}: it has {some([*jobs], 3)}.")
  return [facts for facts in found if not names or facts.job.name in names]


def request(folder: pathlib.Path, what: str, jobs: Sequence[Facts], token: str = "") -> None:
  """Writes down what is asked for some jobs of a run.

  Raises:
    OSError: it cannot be written.
  """
  line = Event(time.time(), what, token, jobs=[facts.job.name for facts in jobs])
  add_line(folder / LAUNCHER / REQUESTS, line)


def refuse_links(folder: pathlib.Path) -> None:
  """Refuses a run whose own files are behind a link, before anything is written there."""
  if link := link_in(folder / LAUNCHER):
    raise UserError(f"{link} is a link, which would lead the run's files elsewhere: remove it.")


@contextlib.contextmanager
def lock_run(folder: pathlib.Path, *, wait: float = 0.0) -> Iterator[None]:
  """A block in which no other process changes a run, after waiting some seconds for another.

  Raises:
    UserError: another process is at it, or there are links.
    OSError: nothing can be written.
  """
  refuse_links(folder)
  path, deadline = folder / LAUNCHER / _LOCK, time.monotonic() + wait
  while (descriptor := open_locked(path)) is None:
    if time.monotonic() > deadline:
      raise UserError(f"{folder} is being submitted or changed by another process: wait for it.")
    time.sleep(0.05)
  try:
    yield
  finally:
    os.close(descriptor)
