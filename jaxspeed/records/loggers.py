"""Loggers: what follows a run's rows besides metrics.jsonl and the screen.

A logger is any object with three methods:

  init(run)    before the first row; `run` is a `LoggedRun`
  log(row)     after each epoch, with its row of metrics.jsonl
  finish()     when the run ends or stops

A run that resumes begins again with `init`, which gets the rows so far.
"""

import dataclasses
import importlib.util
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from jaxspeed.errors import UserError

# Importing a logger's package takes about a second. A shorter run pays for it at its end, a longer
# one after its first epoch.
SECONDS_BEFORE_IMPORT = 10.0
Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LoggedRun:
  """What a logger is told of a run.

  Attributes:
    folder: the run's folder.
    config: its config, as config.json has it.
    rows: the rows of the run so far; () if it is new.
    say: prints a line, where the run prints.
  """

  folder: pathlib.Path
  config: dict[str, Any] = dataclasses.field(default_factory=dict)
  rows: Sequence[Row] = ()
  say: Callable[[str], None] = lambda _: None


class Logger(Protocol):
  """Follows the rows of a run; an exception of it is printed, and the run continues."""

  def init(self, run: LoggedRun) -> None: ...

  def log(self, row: Row) -> None: ...

  def finish(self) -> None: ...


class LateLogger:
  """A logger whose package is imported after `SECONDS_BEFORE_IMPORT`, or at the end.

  A subclass has `write`, which logs rows with their Unix times and returns whether it could.
  """

  def init(self, run: LoggedRun) -> None:
    self.run = run
    self._begun = time.monotonic()
    self._waiting: list[tuple[float, Row]] = []

  def log(self, row: Row) -> None:
    self._waiting.append((time.time(), row))
    if time.monotonic() - self._begun > SECONDS_BEFORE_IMPORT:
      self._write_waiting()

  def finish(self) -> None:
    self._write_waiting()

  def write(self, rows: Sequence[tuple[float, Row]]) -> bool:
    raise NotImplementedError

  def _write_waiting(self) -> None:
    if self._waiting and self.write(self._waiting):
      self._waiting = []


class Loggers:
  """The loggers of a run, each left out once it has failed.

  Args:
    loggers: the loggers.
    report: prints a line on a logger that failed.
  """

  def __init__(self, loggers: Iterable[Logger], report: Callable[[str], None]) -> None:
    self._loggers, self._report = list(loggers), report

  def init(self, run: LoggedRun) -> None:
    self._call("init", run)

  def log(self, row: Row) -> None:
    self._call("log", dict(row))

  def finish(self) -> None:
    self._call("finish")
    self._loggers = []

  def _call(self, method: str, *arguments: Any) -> None:
    for logger in list(self._loggers):
      try:
        getattr(logger, method)(*arguments)
      # Of a package, its server or the user; a call from Python never ends the process.
      except (Exception, SystemExit) as error:
        self._loggers = [each for each in self._loggers if each is not logger]
        self._report(
          f"{type(logger).__name__}.{method} failed ({_reason(error)}): the run "
          "continues, and this logger gets no more of its rows"
        )


def _reason(error: BaseException) -> str:
  """The type of an exception and the first line of its text, if it has any."""
  text = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
  return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_loggers(loggers: Any) -> tuple[Logger, ...]:
  """The objects as a tuple; raises a UserError where one is not a `Logger`."""
  if not isinstance(loggers, list | tuple):
    raise UserError("loggers= must be a list of objects with the methods init, log and finish.")
  for each in loggers:
    methods = (getattr(each, name, None) for name in ("init", "log", "finish"))
    if isinstance(each, type) or not all(map(callable, methods)):
      what = f"the class {each.__name__}" if isinstance(each, type) else f"a {type(each).__name__}"
      raise UserError(
        f"loggers= holds {what}: pass objects with the methods init(run), log(row) and finish()."
      )
  return tuple(loggers)


def ensure_installed(names: Iterable[str]) -> None:
  """Makes sure that the packages of `config.records.loggers` are installed.

  Raises:
    UserError: one is not; TensorBoard's may be missing, since every run has it by default.
  """
  for name in names:
    if name != "tensorboard" and importlib.util.find_spec(name) is None:
      raise UserError(
        f"config.records.loggers names {name}, which is not installed: pip install {name}."
      )
