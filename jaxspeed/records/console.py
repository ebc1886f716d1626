"""The printed output of a run: a header, a row per epoch, its progress, the result.

A terminal shows the progress in a live line. A pipe or a file gets plain lines in fixed columns,
without control characters or wrapping, and a line of progress every minute.
"""

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
  BarColumn,
  MofNCompleteColumn,
  Progress,
  TextColumn,
  TimeRemainingColumn,
)

from jaxspeed.errors import printable

# Drawing the live line takes 0.6 ms: four times a second is 0.25 % of one core.
_SECONDS_BETWEEN_DRAWINGS = 0.25
_SECONDS_BETWEEN_LINES = 60.0

# Title, width, key of the row and format of each column; 98 characters in all.
_COLUMNS = (
  ("epoch", 5, "epoch", "g"),
  ("lr", 7, "learning_rate", ".3g"),
  ("px", 4, "image_size", ".0f"),
  ("batch", 5, "batch_size", ".0f"),
  ("train loss", 10, "train_loss", ".4f"),
  ("train top1", 10, "train_top1", ".2%"),
  ("eval loss", 9, "eval_loss", ".4f"),
  ("eval top1", 9, "eval_top1", ".2%"),
  ("eval top5", 9, "eval_top5", ".2%"),
  ("img/s", 7, "images_per_second", ".0f"),
  ("total train s", 13, "train_seconds", ".2f"),
)


def make_console() -> Console:
  """A console on standard output that is live only on a terminal.

  rich by itself would treat FORCE_COLOR, which CI services set, as a terminal.
  """
  live = None if sys.stdout.isatty() else False
  return Console(file=sys.stdout, force_interactive=live)


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
    console: the console to print on, with a live line if it is interactive.
    total_epochs: the end of the progress line; may be fractional (airbench's 9.9).
    evaluated: the weights that are evaluated, for the title of the rows.
  """

  def __init__(self, console: Console, *, total_epochs: int | float, evaluated: str = "") -> None:
    self.console = console
    self._evaluated = evaluated
    self._total_epochs = total_epochs
    self._printed_titles = False
    self._progress: Progress | None = None
    self._next_drawing = 0.0
    self._begun = (0.0, time.monotonic())
    self._wait_for_line()

  def line(self, text: str) -> None:
    """Prints `text` above the live line, with control characters escaped."""
    self.console.out(printable(text), highlight=False)

  def begin(self, epochs: float) -> None:
    """Marks the start of training, with `epochs` done, to estimate the time left from its pace."""
    self._begun = (epochs, time.monotonic())
    self._wait_for_line()

  def _wait_for_line(self) -> None:
    if not self.console.is_interactive:
      self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_LINES

  def header(self, fields: Mapping[str, str]) -> None:
    """Prints a line for each field, with aligned values."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
      self.line(f"{name:<{width}}  {value}")

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Prints the row of an epoch, and the titles before the first row."""
    if not self._printed_titles:
      for title in epoch_titles(self._evaluated):
        self.line(title)
      self._printed_titles = True
    self.line(format_epoch(row))
    self._wait_for_line()

  def progress_due(self) -> bool:
    """Whether new progress would be shown; check it before fetching a loss from the device."""
    return not self.console.quiet and time.monotonic() >= self._next_drawing

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
    if self.console.is_interactive:
      self._draw(done, text)
    elif self.progress_due():
      self.line(f"{text}  {self._time_left(done)} left")
      self._wait_for_line()

  def _draw(self, done: float, text: str) -> None:
    """Draws the live line, with `done` epochs."""
    self._next_drawing = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
    if self._progress is None:
      self._progress = _start_progress(self.console, self._total_epochs)
    self._progress.update(
      self._progress.task_ids[0], completed=done, description=text, refresh=True
    )

  def _time_left(self, done: float) -> str:
    """The time left as H:MM:SS, from the pace since `begin`; "-" before there is one."""
    before, start = self._begun
    if done <= before:
      return "-"
    seconds = (self._total_epochs - done) * (time.monotonic() - start) / (done - before)
    return str(datetime.timedelta(seconds=round(seconds)))

  def result(self, result: Mapping[str, Any]) -> None:
    """Prints the result (`format_result`)."""
    self.close()
    for line in format_result(result):
      self.line(line)

  def close(self) -> None:
    """Removes the live line."""
    if self._progress is not None:
      self._progress.stop()
      self._progress = None


def epoch_titles(evaluated: str = "") -> tuple[str, str]:
  """The two title lines above the rows of `format_epoch`, which name the evaluated weights."""
  widths = [width for _, width, _, _ in _COLUMNS]
  evaluation = f"evaluation: {evaluated}" if evaluated else "evaluation"
  groups = "training".rjust(sum(widths[:6]) + 5) + evaluation.rjust(sum(widths[6:9]) + 3)
  return groups, " ".join(title.rjust(width) for title, width, _, _ in _COLUMNS)


def format_epoch(row: Mapping[str, Any]) -> str:
  """An epoch's row in fixed columns, with "-" for missing values and broken images at the end.

  Args:
    row: a row of `Records.epoch`: accuracies as fractions (printed as percent), times in seconds.
  """
  line = " ".join(_format(row.get(key), spec).rjust(width) for _, width, key, spec in _COLUMNS)
  return line + _format_missing(row)


def _format_missing(row: Mapping[str, Any]) -> str:
  """The numbers of broken images, to follow the columns; '' if there are none."""
  parts = []
  if skipped := row.get("eval_images_skipped"):
    parts.append(f"{skipped:,} of {row['eval_images'] + skipped:,} evaluation images skipped")
  if broken := row.get("train_images_broken"):
    parts.append(f"{broken:,} training image{'s' * (broken > 1)} replaced")
  return f"  ({', '.join(parts)})" if parts else ""


def format_phase(
  number: int, row: Mapping[str, Any], pace: Mapping[str, float], *, epochs: int | float
) -> str:
  """A line on a phase of training.

  Args:
    number: the phase's number, from 1.
    row: the row of its last epoch.
    pace: the mean pace of its epochs (`results.mean_pace`).
    epochs: the number of its epochs so far; may be fractional.
  """
  return (
    f"phase {number}: {row['image_size']} px, batch {row['batch_size']:,}: "
    f"{epochs:.3g} {'epoch' if epochs == 1 else 'epochs'}, "
    f"{pace['images_per_second']:,.0f} images/s, "
    f"{pace['images_per_second_per_device']:,.0f} per device, "
    f"waited for input {pace['data_wait']:.1%} of the time"
  )


def format_result(result: Mapping[str, Any]) -> list[str]:
  """The lines that show a result: titles and values; for several runs also their rows and a t-test.

  Args:
    result: the return value of `results.write_result`.
  """
  if "n" not in result:
    return _format_figures(result)
  return [*_format_runs(result["runs"]), *_format_figures(result), *_format_test(result)]


def _format_runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
  """A row for each run, in fixed columns below their titles."""
  cells = [
    (
      str(run["seed"]),
      _format(run["top1"], ".3%"),
      _format(run["seconds"]["train"], ".2f"),
      _format(run["seconds"]["to_target"], ".2f"),
    )
    for run in runs
  ]
  return _align_rows([("seed", "top1", "train s", "target s"), *cells])


def _format_test(result: Mapping[str, Any]) -> list[str]:
  """Lines on the speed of the runs, how many reached the target, and the t-test of their mean."""
  seconds, target = result["seconds"], _format(result["target"], ".3%")
  when = f", after {_format(seconds['to_target'], '.2f')} s on average" if result["reached"] else ""
  return [
    f"train s: mean {_format(seconds['train'], '.3f')}, "
    f"min {_format(result['seconds_min']['train'], '.3f')}",
    f"target: {target}, reached by {result['reached']} of {result['n']} runs{when}",
    f'p = {result["p_value"]:.2g} for "the true mean is at most {target}" (one-sided t-test): a '
    "small p says that it is above",
  ]


def _format_figures(result: Mapping[str, Any]) -> list[str]:
  """The line on compiling, then titles and values of one run or of the means of several."""
  seconds = result["seconds"]
  cells = [("top1", _format(result["top1"], ".3%"))]
  if "n" in result:
    cells += [
      ("95 % CI", f"+-{_format(result['ci95'], '.3%')}"),
      ("sd", _format(result["sd"], ".3%")),
      ("runs", str(result["n"])),
    ]
  cells += [
    ("top5", _format(result["top5"], ".3%")),
    *([("skipped", _format_skipped(result["skipped_steps"]))] if "skipped_steps" in result else []),
    ("train s", _format(seconds["train"], ".2f")),
    ("dawn s", _format(seconds["dawn"], ".2f")),
    ("compile s", _format(seconds["compile"].get("wall"), ".2f")),
    ("process s", _format(seconds["process"], ".2f")),
    *([("cost $", _format_cost(result["cost_usd"]))] if "cost_usd" in result else []),
    ("evaluated on", _format_evaluated(result)),
    *([("weights", result["evaluated_weights"])] if result.get("evaluated_weights") else []),
    ("device", str(result["device"])),
  ]
  return _format_compile(seconds["compile"]) + _align_rows(list(zip(*cells, strict=True)))


def images_of(evaluated_on: str) -> str:
  """The words for the evaluated images, one of `results.EVALUATED_ON`."""
  return "test images" if evaluated_on == "test" else "held-out images"


def _format_evaluated(result: Mapping[str, Any]) -> str:
  kind = images_of(result["evaluated_on"])
  if skipped := result.get("eval_images_skipped"):
    return f"{result['eval_images']:,} of {result['eval_images'] + skipped:,} {kind}"
  return kind


def _align_rows(rows: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
  ]


def _format(value: Any, spec: str) -> str:
  # float: rows may contain scalars of NumPy or JAX, which support fewer formats.
  return "-" if value is None else format(float(value), spec)


def _format_compile(seconds: Mapping[str, float | None]) -> list[str]:
  """The line on compile times, summed over threads: the sum may exceed the elapsed seconds."""
  names = {"cold": "cold", "cached": "from the cache"}
  parts = [
    f"{seconds[kind]:.2f} s {name}" for kind, name in names.items() if seconds.get(kind) is not None
  ]
  return [f"programs, summed over threads: {', '.join(parts)}"] if parts else []


def _format_skipped(steps: Mapping[str, float]) -> str:
  """Steps skipped because their gradients were not finite, as a number and a share of all."""
  return f"{steps['number']:g} steps, {steps['share']:.2%}"


def _format_cost(dollars: Mapping[str, Any]) -> str:
  to_target = dollars["to_target"]
  reached = "" if to_target is None else f", {_dollars(to_target)} to target"
  return f"{_dollars(dollars['dawn'])}{reached}"


def _dollars(value: float) -> str:
  # A run of CIFAR-10 costs a fraction of a cent.
  return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


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
