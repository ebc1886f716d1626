"""The printed output of a run: a header, a row per epoch, its progress, the result.

A terminal and a notebook show the progress in a live line. A pipe or a file gets plain lines in
fixed columns, without control characters or wrapping, and a line of progress every minute. In JSON,
everything that is printed is an object on a line of its own.
"""

import contextlib
import datetime
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TextColumn,
  TimeRemainingColumn,
)

from jaxspeed.config import output
from jaxspeed.errors import printable
from jaxspeed.files import dump_json, to_json
from jaxspeed.records.result_lines import format_result
from jaxspeed.records.row_lines import (
  COLUMNS,
  columns_within,
  epoch_titles,
  format_epoch,
  format_missing,
)

# Drawing the live line takes 0.6 ms: four times a second is 0.25 % of one core.
_SECONDS_BETWEEN_DRAWINGS = 0.25
_SECONDS_BETWEEN_LINES = 60.0

# A browser gets each drawing as a message, and keeps it.
_SECONDS_BETWEEN_DRAWINGS_IN_A_NOTEBOOK = 1.0


def make_console(file: TextIO | None = None) -> Console:
  """A console on a file, or standard output, that is live only on a terminal and never raises.

  rich by itself would treat FORCE_COLOR, which CI services set, as a terminal, and end the process
  where nobody reads its output.
  """
  file = file or sys.stdout
  if not _is_notebook(file):
    file = output.unfailing(file)
  # In a notebook, rich would make a block of HTML of each line.
  live = None if file.isatty() else False
  return Console(file=file, force_interactive=live, force_jupyter=False)


def silent_console() -> Console:
  """A console that prints nothing, for every process of a run except the first."""
  return Console(quiet=True, force_interactive=False)


@contextlib.contextmanager
def progress_bar(console: Console, verb: str) -> Iterator[Callable[[int, int], None]]:
  """Yields show(done, total) for images: a bar on a terminal, otherwise a line every minute."""
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
        console.out(f"{verb}: {done:,} of {total:,} images", highlight=False)
        next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    yield show


class Screen:
  """Prints one run.

  Args:
    console: the console to print on, with a live line if it is interactive or in a notebook.
    total_epochs: the end of the progress line; may be fractional (airbench's 9.9).
    evaluated: the weights that are evaluated, for the title of the rows.
    quiet: whether to print the result only.

  Attributes:
    console: the console for progress bars beside the run's own lines.
  """

  def __init__(
    self, console: Console, *, total_epochs: int | float, evaluated: str = "", quiet: bool = False
  ) -> None:
    self.console = silent_console() if quiet else console
    self._out = console
    self._quiet = quiet or console.quiet
    self._notebook = _is_notebook(console.file)
    self._live = console.is_interactive or self._notebook
    self._evaluated = evaluated
    self._total_epochs = total_epochs
    self._columns = columns_within(console.width) if console.is_interactive else COLUMNS
    self._printed_titles = False
    self._progress: Progress | None = None
    self._shown: Any = None  # the handle of a notebook's live line
    self._next_drawing = 0.0
    self._begun = (0.0, time.monotonic())
    self._wait_for_line()

  def line(self, text: str) -> None:
    """Prints `text` above the live line, with control characters escaped."""
    if not self._quiet:
      self._print(text)

  def warn(self, text: str) -> None:
    """Prints `text` as `line` does; where nothing is printed, it is a Python warning."""
    if self._quiet:
      warnings.warn(printable(text), stacklevel=2)
    self.line(text)

  def _print(self, text: str) -> None:
    self._out.out(printable(text), highlight=False)

  def begin(self, epochs: float) -> None:
    """Marks the start of training, with `epochs` done, to estimate the time left from its pace."""
    self._begun = (epochs, time.monotonic())
    self._wait_for_line()

  def _wait_for_line(self) -> None:
    if not self._live:
      self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_LINES

  def header(self, fields: Mapping[str, str]) -> None:
    """Prints a line for each field, with aligned values; a terminal breaks them at words."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
      lines = [value]
      if self._out.is_interactive:
        room = max(self._out.width - width - 2, 20)
        # Neither paths nor words with hyphens are broken: they are copied from a terminal.
        how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
        lines = textwrap.wrap(printable(value), room, **how) or [""]
      for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
        self.line(f"{first:<{width}}  {line}")

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Prints the row of an epoch, and the titles before the first row."""
    if not self._printed_titles:
      for title in epoch_titles(self._evaluated, self._columns):
        self.line(title)
      self._printed_titles = True
    self.line(format_epoch(row, self._columns))
    if missing := format_missing(row):
      self.line(missing)
    self._wait_for_line()

  def progress_due(self) -> bool:
    """Whether new progress would be shown; check it before fetching a loss from the device."""
    return not self._quiet and time.monotonic() >= self._next_drawing

  def progress(
    self, *, epoch: int, step: int, steps: int, loss: float, images_per_second: float
  ) -> None:
    """Draws the live line; without a terminal, prints a line if one is due.

    Args:
      epoch: the current epoch, from 1.
      step: the number of steps done in this epoch.
      steps: the number of steps of this epoch.
      loss: the loss of a recent step.
      images_per_second: the pace of recent steps.
    """
    done = min(epoch - 1 + step / steps, self._total_epochs)
    text = (
      f"epoch {epoch}/{self._total_epochs:g}  step {step}/{steps}  loss {loss:.4f}  "
      f"{images_per_second:,.0f} img/s"
    )
    if self._out.is_interactive:
      self._draw(done, text)
    elif self.progress_due():
      text += f"  {self._time_left(done)} left"
      if self._notebook:
        self._show(text)
        self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS_IN_A_NOTEBOOK
      else:
        self.line(text)
        self._wait_for_line()

  def _draw(self, done: float, text: str) -> None:
    """Draws the live line, with `done` epochs."""
    self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
    if self._progress is None:
      self._progress = _start_progress(self._out, self._total_epochs)
    self._progress.update(
      self._progress.task_ids[0], completed=done, description=text, refresh=True
    )

  def _show(self, text: str) -> None:
    """Shows a notebook's live line, above the rows; it has one output, which is replaced.

    A line that "\\r" overwrites would be stored once for each drawing by programs that execute
    notebooks, such as nbconvert.
    """
    content = {"text/plain": text}
    if self._shown is not None:
      self._shown.update(content, raw=True)
    elif text:
      from IPython.display import display

      self._shown = display(content, raw=True, display_id=True)

  def _time_left(self, done: float) -> str:
    """The time left as H:MM:SS, from the pace since `begin`; "-" before there is one."""
    before, start = self._begun
    if done <= before:
      return "-"
    seconds = (self._total_epochs - done) * (time.monotonic() - start) / (done - before)
    return str(datetime.timedelta(seconds=round(seconds)))

  def result(self, result: Mapping[str, Any], *, finished_in: str = "") -> None:
    """Prints the result (`format_result`), where quiet too.

    Args:
      result: the content of result.json.
      finished_in: the folder of a run that an earlier start finished, which is said above; '': this
        start finished it.
    """
    self.close()
    said = [f"{finished_in} holds this run, already finished:"] if finished_in else []
    for line in [*said, *format_result(result)]:
      self._print(line)

  def close(self) -> None:
    """Removes the live line."""
    self._show("")
    self._shown = None
    if self._progress is not None:
      self._progress.stop()
      self._progress = None


class JsonScreen(Screen):
  """Prints one run as lines of JSON: objects whose "event" says what they are.

  {"event": "header", ...}, with texts; {"event": "note", "text"}; {"event": "epoch", ...}, with
  the row of metrics.jsonl; {"event": "progress", "epoch", "step", "steps", "loss",
  "images_per_second"} every minute; {"event": "result", ...}, with the content of result.json, and
  "finished_in", the folder, if an earlier start had finished the run.

  Args:
    console: as in `Screen`, as are the others; never live.
  """

  def __init__(self, console: Console, **how: Any) -> None:
    super().__init__(console, **how)
    self.console = silent_console()
    self._live = self._notebook = False
    self._wait_for_line()

  def _event(self, event: str, content: Mapping[str, Any]) -> None:
    self._out.out(dump_json({"event": event} | to_json(content)), highlight=False)

  def line(self, text: str) -> None:
    """Prints a note."""
    if not self._quiet:
      self._event("note", {"text": text})

  def header(self, fields: Mapping[str, str]) -> None:
    """Prints the fields."""
    if not self._quiet:
      self._event("header", fields)

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Prints the row of an epoch."""
    if not self._quiet:
      self._event("epoch", row)
    self._wait_for_line()

  def progress(
    self, *, epoch: int, step: int, steps: int, loss: float, images_per_second: float
  ) -> None:
    """Prints the progress if a line is due."""
    if self.progress_due():
      pace = {"loss": loss, "images_per_second": images_per_second}
      self._event("progress", {"epoch": epoch, "step": step, "steps": steps} | pace)
      self._wait_for_line()

  def result(self, result: Mapping[str, Any], *, finished_in: str = "") -> None:
    """Prints the result."""
    self._event("result", {**result, **({"finished_in": finished_in} if finished_in else {})})


def _is_notebook(file: Any) -> bool:
  """Whether a file is a cell of a Jupyter notebook, whose outputs can be replaced."""
  return type(file).__module__ == "ipykernel.iostream"


def _start_progress(console: Console, total_epochs: int | float) -> Progress:
  # No refresh thread: it would interrupt the training loop ten times a second.
  progress = Progress(
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=16),
    TimeRemainingColumn(),
    console=console,
    # With rich's default, 30 s, longer steps would show no time left.
    speed_estimate_period=300,
    auto_refresh=False,
    transient=True,
  )
  progress.add_task("", total=total_epochs)
  progress.start()
  return progress
