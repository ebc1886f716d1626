"""Loggers of experiment trackers: Weights & Biases and Trackio.

Both keep a run's identity and the last step logged in FOLDER/loggers/NAME.json, so that a resumed
run continues the same line, and the epochs that it repeats are logged once. Only the rows of the
last seconds before a kill may be logged twice: trackers write a row some time after they took it.
"""

import contextlib
import dataclasses
import io
import math
import netrc
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspeed.files import dump_json, read_json, write_atomically
from jaxspeed.records.loggers import LateLogger, LoggedRun, Row

# The project in which the runs lie, unless WANDB_PROJECT or TRACKIO_PROJECT names another.
PROJECT = "jaxspeed"
# Seconds to wait for a server before a run is logged offline.
_SECONDS_FOR_SERVER = 15
# Seconds after which a tracker has written a row: on a busy machine, wandb's process lost the rows
# of the last 7 seconds before a kill.
_SECONDS_TO_WRITE = 30.0


@dataclasses.dataclass
class _Memory:
  id: str
  step: int


class Tracker(LateLogger):
  """A logger that sends the rows of a run and of its resumes under one identity."""

  name = ""

  def init(self, run: LoggedRun) -> None:
    super().init(run)
    self._path = run.folder / "loggers" / f"{self.name}.json"
    advice = "delete it, and the run is logged under a new identity"
    stored = read_json(self._path, _Memory, advice) or {"id": secrets.token_hex(8), "step": 0}
    self._memory = _Memory(stored["id"], stored["step"])
    self._sent = [(-math.inf, self._memory.step)]  # times, and the last step that was sent
    self._started = False
    # Rows that were still waiting when an earlier process was killed; `write` drops the others.
    self._waiting = [(time.time(), row) for row in run.rows]

  def write(self, rows: Sequence[tuple[float, Row]]) -> bool:
    new = [row for _, row in rows if row["step"] > self._sent[-1][1]]
    if not new:
      return True
    now = time.monotonic()
    # Before the tracker has the identity, which a run keeps that is killed in between.
    self._store(now - _SECONDS_TO_WRITE)
    if not self._started:
      self.start(self._memory.id)
      self._started = True
    for row in new:
      # Both have a step of their own.
      values = {k: v for k, v in row.items() if k != "step" and v is not None}
      self.send(values, row["step"])
    self._sent.append((now, new[-1]["step"]))
    return True

  def _store(self, until: float) -> None:
    """Stores the last step of the rows that were sent `until` a time."""
    self._memory.step = [step for sent, step in self._sent if sent <= until][-1]
    self._path.parent.mkdir(exist_ok=True)
    write_atomically(self._path, dump_json(dataclasses.asdict(self._memory)) + "\n")

  def finish(self) -> None:
    super().finish()
    if self._started:
      self.end()
      self._store(math.inf)

  def start(self, identity: str) -> None:
    """Opens the run at the tracker."""
    raise NotImplementedError

  def send(self, row: Row, step: int) -> None:
    """Sends a row."""
    raise NotImplementedError

  def end(self) -> None:
    """Closes the run at the tracker."""
    raise NotImplementedError


class WandbLogger(Tracker):
  """Logs to Weights & Biases: online with an API key and a network, else offline in loggers/wandb.

  WANDB_MODE, WANDB_PROJECT and wandb's other variables count. `wandb sync` sends what was logged
  offline.
  """

  name = "wandb"

  def start(self, identity: str) -> None:
    import wandb

    mode = os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    try:
      self._run = self._open(wandb, identity, mode)
    except (wandb.errors.CommError, wandb.errors.AuthenticationError):
      self._run = self._open(wandb, identity, "offline")

  def _open(self, wandb: Any, identity: str, mode: str) -> Any:
    return wandb.init(
      project=os.environ.get("WANDB_PROJECT", PROJECT),
      name=self.run.config.get("name") or self.run.folder.name,
      id=identity,
      resume="allow",
      dir=str(self._path.parent),
      mode=mode,
      config=self.run.config,
      settings=wandb.Settings(
        silent=True, console="off", init_timeout=_SECONDS_FOR_SERVER, x_disable_stats=True
      ),
    )

  def send(self, row: Row, step: int) -> None:
    self._run.log(dict(row), step=step)

  def end(self) -> None:
    self._run.finish()


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
  """Logs to Trackio's local database; `trackio show` opens it.

  TRACKIO_PROJECT and Trackio's other variables count.
  """

  name = "trackio"

  def start(self, identity: str) -> None:
    import trackio

    with _quiet():
      self._run = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", PROJECT),
        name=f"{self.run.config.get('name') or self.run.folder.name}-{identity}",
        resume="allow",
        config=self.run.config,
        auto_log_gpu=False,
        auto_log_cpu=False,
      )

  def send(self, row: Row, step: int) -> None:
    self._run.log(dict(row), step=step)

  def end(self) -> None:
    import trackio

    with _quiet():
      trackio.finish()  # the run's own method would be called once more at exit


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Trackio prints a dozen lines, also where nobody asked a library to print."""
  with contextlib.redirect_stdout(io.StringIO()):
    yield
