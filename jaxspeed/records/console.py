"""The printed output of a run: a header, a row per epoch, its progress, the result.

A terminal shows the progress in a live line. A pipe, a file or a notebook gets plain lines in fixed
columns, without control characters or wrapping, and a line of progress every minute; in JSON, each
is an object. `formats` makes the lines.
"""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jaxspeed.config import output
from jaxspeed.errors import printable
from jaxspeed.records.formats import Event, JsonFormat, TextFormat

_SECONDS_BETWEEN_LINES = 60.0
_SECONDS_BETWEEN_DRAWINGS = 0.25  # one takes 0.6 ms


def make_console(file: TextIO | None = None) -> Console:
  """A console on a file, or standard output, that is live only on a terminal and never raises.

  rich by itself would treat FORCE_COLOR, which CI services set, as a terminal, and end the process
  where nobody reads its output.
  """
  file = output.unfailing(file or sys.stdout)
  # In a notebook, rich would make a block of HTML of each line.
  live = None if file.isatty() else False
  return Console(file=file, force_interactive=live, force_jupyter=False)


def silent_console() -> Console:
  """A console that prints nothing, for every process of a run except the first."""
  return Console(quiet=True, force_interactive=False)


@contextlib.contextmanager
def progress_bar(console: Console, verb: str) -> Iterator[Callable[[int, int], None]]:
  """Yields show(done, total): a bar on a terminal, otherwise a line every minute."""
  columns = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
  )
  with Progress(
    *columns, console=console, transient=True, disable=not console.is_interactive
  ) as progress:
    task = progress.add_task(verb, total=None, visible=False)
    next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def show(done: int, total: int) -> None:
      nonlocal next_line
      progress.update(task, completed=done, total=total, visible=True)
      if not console.is_interactive and time.monotonic() >= next_line:
        console.out(f"{verb}: {done:,} of {total:,}", highlight=False)
        next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    yield show


class Screen:
  """Prints the events of a session's runs, each as its format has it.

  Args:
    console: the console to print on; None: standard output.
    as_json: whether to print JSON, and no live line.
    quiet: whether to print the result only.

  Attributes:
    console: the console for progress bars beside the run's own lines.
  """

  def __init__(
    self, console: Console | None = None, *, as_json: bool = False, quiet: bool = False
  ) -> None:
    self._out = console or make_console()
    self.console = silent_console() if quiet or as_json else self._out
    self._quiet = quiet or self._out.quiet
    width = self._out.width if self._out.is_interactive else None
    self._format: JsonFormat | TextFormat = JsonFormat() if as_json else TextFormat(width)
    self._is_live = self._out.is_interactive and not as_json
    self._live: Progress | None = None
    self.begin()

  def begin(self, done: float = 0.0, total: float = 0.0) -> None:
    """Marks the start of a run's training.

    Args:
      done: the epochs done, from which on the pace tells the time left.
      total: the epochs of the whole run; may be fractional (airbench's 9.9).
    """
    self._total, self._begun = total, (done, time.monotonic())
    if isinstance(self._format, TextFormat):
      self._format.begin()
    self._next = 0.0 if self._is_live else time.monotonic() + _SECONDS_BETWEEN_LINES

  def line(self, text: str) -> None:
    """Prints `text` above the live line, with control characters escaped."""
    self._print("note", {"text": text})

  def warn(self, text: str) -> None:
    """Prints `text` as `line` does; where nothing is printed, it is a Python warning."""
    if self._quiet:
      warnings.warn(printable(text), stacklevel=2)
    self.line(text)

  def header(self, fields: Mapping[str, str]) -> None:
    """Prints a line for each field."""
    self._print("header", fields)

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Prints the row of an epoch."""
    self._print("epoch", row)
    if not self._is_live:
      self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

  def result(self, result: Mapping[str, Any], *, finished_in: str = "") -> None:
    """Prints the content of result.json, where quiet too.

    Args:
      result: the content.
      finished_in: the folder of a run that an earlier start finished; '': this start finished it.
    """
    self.close()
    self._print("result", {**result, **({"finished_in": finished_in} if finished_in else {})})

  def _print(self, event: Event, content: Mapping[str, Any]) -> None:
    if self._quiet and event != "result":
      return
    for line in self._format.lines(event, content):
      self._out.out(line, highlight=False)

  def progress_due(self) -> bool:
    """Whether new progress would be shown; check it before fetching a loss from the device."""
    return not self._quiet and time.monotonic() >= self._next

  def progress(
    self, *, epoch: int, step: int, steps: int, loss: float, images_per_second: float
  ) -> None:
    """Shows progress if it is due: in the live line, or in a line of its own.

    Args:
      epoch: the current epoch, from 1.
      step: the number of steps done in this epoch.
      steps: the number of steps of this epoch.
      loss: the loss of a recent step.
      images_per_second: the pace of recent steps.
    """
    if not self.progress_due():
      return
    done = min(epoch - 1 + step / steps, self._total)
    before, start = self._begun
    pace = (time.monotonic() - start) / (done - before) if done > before else None
    now = {
      "epoch": epoch,
      "epochs": self._total,
      "step": step,
      "steps": steps,
      "loss": loss,
      "images_per_second": images_per_second,
      "seconds_left": None if pace is None else (self._total - done) * pace,
    }
    if self._is_live:
      self._draw(next(self._format.lines("progress", now)), done / self._total)
      self._next = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
    else:
      self._print("progress", now)
      self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

  def _draw(self, text: str, share: float) -> None:
    """Draws the live line with a bar."""
    if self._live is None:
      columns = TextColumn("{task.description}", markup=False), BarColumn(bar_width=16)
      # No refresh thread: it would interrupt the training loop ten times a second.
      self._live = Progress(*columns, console=self._out, auto_refresh=False, transient=True)
      self._live.add_task("", total=1.0)
      self._live.start()
    task = self._live.task_ids[0]
    self._live.update(task, completed=share, description=text, refresh=True)

  def close(self) -> None:
    """Removes the live line."""
    if self._live is not None:
      self._live.stop()
      self._live = None
