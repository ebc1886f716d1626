"""Loggers: what follows a run's rows besides metrics.jsonl and the screen.

A logger is a function that takes a `LoggedRun` and returns a context manager. It is entered before
the first row and left when the run ends or stops; its value is called with each epoch's row:

  @contextlib.contextmanager
  def to_a_file(run):
    with open("losses.txt", "w") as file:
      yield lambda row: print(row["epoch"], row["train_loss"], file=file)

A run that resumes begins again, and `run.rows` has the rows so far.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jaxspeed.errors import UserError

Row = Mapping[str, Any]
Log = Callable[[Row], object]


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
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  rows: Sequence[Row] = ()
  say: Callable[[str], None] = lambda _: None


Logger = Callable[[LoggedRun], AbstractContextManager[Log]]


@contextlib.contextmanager
def following(
  loggers: Iterable[Logger], run: LoggedRun, report: Callable[[str], None]
) -> Iterator[Log]:
  """Enters loggers, and yields a function that calls each with a row.

  A logger that fails is left out from then on; `report` prints a line on it.
  """
  entered: list[tuple[str, contextlib.ExitStack, Log]] = []

  @contextlib.contextmanager
  def reported(name: str) -> Iterator[None]:
    """Reports what a package, its server or the user's function raises in the block."""
    try:
      yield
    except (Exception, SystemExit) as error:  # a call from Python never ends the process
      text = next(iter(str(error).splitlines()), "")[:200].rstrip(".")
      reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
      report(f"the logger {name} failed ({reason}): the run continues without it")

  def log(row: Row) -> None:
    for each in list(entered):
      with reported(each[0]):
        each[2](dict(row))
        continue
      entered.remove(each)

  for logger in loggers:
    name, stack = getattr(logger, "__name__", type(logger).__name__), contextlib.ExitStack()
    with reported(name):
      entered.append((name, stack, stack.enter_context(logger(run))))
  try:
    yield log
  finally:
    for name, stack, _ in entered:
      with reported(name):
        stack.close()


def check_loggers(loggers: Any) -> tuple[Logger, ...]:
  """The functions as a tuple; raises a UserError where one is not callable."""
  if not isinstance(loggers, list | tuple) or not all(map(callable, loggers)):
    raise UserError(
      "loggers= must be a list of functions, each of a run, that return a context manager whose "
      "value is called with each row (docs/library.md)."
    )
  return tuple(loggers)
