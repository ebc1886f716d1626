"""Loggers of experiment trackers with wandb's functions: Weights & Biases and Trackio.

Both keep a run's identity, and the last step logged when a process ended, in
FOLDER/loggers/NAME.json: a resumed run continues the same line, and an epoch that it repeats is
logged once. After a kill, the rows of the killed process are logged again, as trackers write a row
some time after they took it; a repeated row lies on the same point.
"""

import contextlib
import importlib
import importlib.util
import io
import os
import pathlib
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pydantic
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.files import read_json, write_atomically
from jaxspeed.records.loggers import Log, LoggedRun, Logger, Row
from jaxspeed.records.tensorboard import tensorboard

# Seconds to wait for a server before a run is logged offline.
_SECONDS_FOR_SERVER = 15


class _Memory(pydantic.BaseModel):
  id: str
  step: int


@contextlib.contextmanager
def _tracked(
  run: LoggedRun, name: str, open_run: Callable[[Any, str, dict[str, Any]], tuple[Any, str]]
) -> Iterator[Log]:
  """Sends the rows of a run and of its resumes to a tracker under one identity.

  Args:
    run: the run.
    name: the tracker's package.
    open_run: opens a run with the package, an identity and arguments; returns the run, and in words
      where it is and which command shows it or sends it there.
  """
  path = run.folder / "loggers" / f"{name}.json"
  advice = "delete it, and the run is logged under a new identity"
  stored = read_json(path, _Memory, advice) or {"id": secrets.token_hex(8), "step": 0}
  memory, tracker = _Memory(**stored), importlib.import_module(name)
  path.parent.mkdir(exist_ok=True)
  # First: a run that is killed now keeps its identity.
  write_atomically(path, memory.model_dump_json() + "\n")
  # Trackio prints a dozen lines, also where nobody asked a library to print.
  quiet = contextlib.redirect_stdout(io.StringIO())
  how = {
    "project": os.environ.get(f"{name.upper()}_PROJECT", "jaxspeed"),
    "name": run.config.get("name") or run.folder.name,
    "resume": "allow",
    "config": dict(run.config),
  }
  with quiet:
    opened, where = open_run(tracker, memory.id, how)

  def log(row: Row) -> None:
    if row["step"] > memory.step:
      # Both have a step of their own.
      values = {k: v for k, v in row.items() if k != "step" and v is not None}
      opened.log(values, step=row["step"])
      memory.step = row["step"]

  for row in run.rows:  # a killed process may not have sent them
    log(row)
  yield log
  with quiet:
    tracker.finish()  # the method of Trackio's run would be called once more at exit
  write_atomically(path, memory.model_dump_json() + "\n")
  run.say(f"{name}: the run is {where}")


def wandb(run: LoggedRun) -> contextlib.AbstractContextManager[Log]:
  """Logs to Weights & Biases: online with an API key and a network, else offline in loggers/wandb.

  WANDB_MODE and wandb's other variables count.
  """

  def open_run(tracker: Any, identity: str, how: dict[str, Any]) -> tuple[Any, str]:
    settings = tracker.Settings(
      init_timeout=_SECONDS_FOR_SERVER, silent=True, console="off", x_disable_stats=True
    )
    how |= {"id": identity, "dir": str(run.folder / "loggers"), "settings": settings}
    mode = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    try:
      opened = tracker.init(mode=mode, **how)
    except (tracker.errors.CommError, tracker.errors.AuthenticationError):
      opened = tracker.init(mode="offline", **how)
    if not opened.offline:
      return opened, f"at {opened.url}"
    folder = opened.sync_dir
    return opened, f"in {folder}, offline; to send it: wandb sync {shlex.quote(folder)}"

  return _tracked(run, "wandb", open_run)


def _has_wandb_key() -> bool:
  """Whether `wandb login` was done on this machine; without a key wandb would ask for one."""
  netrc = pathlib.Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
  return bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text())


def trackio(run: LoggedRun) -> contextlib.AbstractContextManager[Log]:
  """Logs to Trackio's local database; Trackio's variables count."""

  def open_run(tracker: Any, identity: str, how: dict[str, Any]) -> tuple[Any, str]:
    project, folder = how["project"], importlib.import_module("trackio.utils").TRACKIO_DIR
    own = {"name": f"{how['name']}-{identity}", "auto_log_gpu": False, "auto_log_cpu": False}
    show = f"trackio show --project {shlex.quote(project)}"
    return tracker.init(**how | own), f"in the project {project} in {folder}; to look: {show}"

  return _tracked(run, "trackio", open_run)


_LOGGERS: dict[str, Logger] = {"tensorboard": tensorboard, "wandb": wandb, "trackio": trackio}


def make_loggers(config: ConfigDict) -> list[Logger]:
  """TensorBoard's logger and those that `config.records.loggers` names; none if it is ()."""
  names = config.records.loggers
  return [_LOGGERS[name] for name in dict.fromkeys(("tensorboard", *names))] if names else []


def ensure_installed(names: Iterable[str]) -> None:
  """Raises a UserError if a package that `config.records.loggers` names is not installed."""
  for name in names:
    if name != "tensorboard" and importlib.util.find_spec(name) is None:
      raise UserError(
        f"config.records.loggers names {name}, which is not installed: pip install {name}."
      )
