"""Loggers of experiment trackers with wandb's functions: Weights & Biases and Trackio.

Both keep a run's identity, and the last step logged when a process ended, in
FOLDER/loggers/NAME.json: a resumed run continues the same line, and an epoch that it repeats is
logged once. After a kill, the rows of the killed process are logged again, as trackers write a row
some time after they took it; a repeated row lies on the same point.
"""

import contextlib
import importlib
import io
import netrc
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pydantic
from ml_collections import ConfigDict

from jaxspeed.files import read_json, write_atomically
from jaxspeed.records.loggers import LateLogger, LoggedRun, Logger, Row
from jaxspeed.records.tensorboard import TensorBoardLogger

# Seconds to wait for a server before a run is logged offline.
_SECONDS_FOR_SERVER = 15


class _Memory(pydantic.BaseModel):
  id: str
  step: int


class Tracker(LateLogger):
  """A logger that sends the rows of a run and of its resumes under one identity.

  The run lies in the project that NAME_PROJECT names, or "jaxspeed".
  """

  name = ""

  def init(self, run: LoggedRun) -> None:
    super().init(run)
    self._path = run.folder / "loggers" / f"{self.name}.json"
    advice = "delete it, and the run is logged under a new identity"
    stored = read_json(self._path, _Memory, advice) or {"id": secrets.token_hex(8), "step": 0}
    self._memory, self._sent = _Memory(**stored), 0
    self._opened: Any = None
    # Rows that a killed process did not send, or may not have.
    self._waiting = [(time.time(), row) for row in run.rows]
    self._project = os.environ.get(f"{self.name.upper()}_PROJECT", "jaxspeed")
    self._title = run.config.get("name") or run.folder.name

  def write(self, rows: Sequence[tuple[float, Row]]) -> bool:
    for _, row in rows:
      if row["step"] <= self._memory.step:
        continue
      if self._opened is None:
        self._store()  # first: a run that is killed now keeps its identity
        with _quiet():
          self._opened = self.open(importlib.import_module(self.name), self._memory.id)
      # Both have a step of their own.
      values = {k: v for k, v in row.items() if k != "step" and v is not None}
      self._opened.log(values, step=row["step"])
      self._sent = row["step"]
    return True

  def _store(self) -> None:
    self._path.parent.mkdir(exist_ok=True)
    write_atomically(self._path, self._memory.model_dump_json() + "\n")

  def finish(self) -> None:
    super().finish()
    if self._opened is not None:
      with _quiet():
        # The method of Trackio's run would be called once more at exit.
        importlib.import_module(self.name).finish()
      self._memory.step = self._sent
      self._store()
      self.run.say(f"{self.name}: {self.where()}")

  def open(self, tracker: Any, identity: str) -> Any:
    """Opens the run with the tracker's package."""
    raise NotImplementedError

  def where(self) -> str:
    """Where the run is, and the command that shows it or sends it there."""
    raise NotImplementedError


class WandbLogger(Tracker):
  """Logs to Weights & Biases: online with an API key and a network, else offline in loggers/wandb.

  WANDB_MODE and wandb's other variables count.
  """

  name = "wandb"

  def open(self, tracker: Any, identity: str) -> Any:
    mode = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    how: dict[str, Any] = {"silent": True, "console": "off", "x_disable_stats": True}
    how = {
      "project": self._project,
      "name": self._title,
      "id": identity,
      "resume": "allow",
      "dir": str(self._path.parent),
      "config": self.run.config,
      "settings": tracker.Settings(init_timeout=_SECONDS_FOR_SERVER, **how),
    }
    try:
      return tracker.init(mode=mode, **how)
    except (tracker.errors.CommError, tracker.errors.AuthenticationError):
      return tracker.init(mode="offline", **how)

  def where(self) -> str:
    folder = self._opened.sync_dir
    if self._opened.offline:
      return f"the run is in {folder}, offline; to send it: wandb sync {shlex.quote(folder)}"
    return f"the run is at {self._opened.url}"


def _has_wandb_key() -> bool:
  """Whether `wandb login` was done on this machine; without a key wandb would ask for one."""
  if os.environ.get("WANDB_API_KEY"):
    return True
  try:
    hosts = netrc.netrc(os.environ.get("NETRC")).hosts
  except (OSError, netrc.NetrcParseError):
    return False
  return any("wandb" in host for host in hosts)


class TrackioLogger(Tracker):
  """Logs to Trackio's local database; Trackio's variables count."""

  name = "trackio"

  def open(self, tracker: Any, identity: str) -> Any:
    return tracker.init(
      project=self._project,
      name=f"{self._title}-{identity}",
      resume="allow",
      config=self.run.config,
      auto_log_gpu=False,
      auto_log_cpu=False,
    )

  def where(self) -> str:
    folder = importlib.import_module("trackio.utils").TRACKIO_DIR
    shown = f"trackio show --project {shlex.quote(self._project)}"
    return f"the run is in the project {self._project} in {folder}; to look: {shown}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Trackio prints a dozen lines, also where nobody asked a library to print."""
  with contextlib.redirect_stdout(io.StringIO()):
    yield


LOGGERS: dict[str, Callable[[], Logger]] = {
  "tensorboard": TensorBoardLogger,
  "wandb": WandbLogger,
  "trackio": TrackioLogger,
}


def make_loggers(config: ConfigDict) -> list[Logger]:
  """New loggers: TensorBoard's and those that `config.records.loggers` names; none if it is ()."""
  names = config.records.loggers
  return [LOGGERS[name]() for name in dict.fromkeys(("tensorboard", *names))] if names else []
