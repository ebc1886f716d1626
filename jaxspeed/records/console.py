"""The printed output of a run: a header, a row per epoch, its progress, the result.

A terminal shows the progress in a live line. A pipe, a file or a notebook gets plain lines in fixed
columns, without control characters or wrapping, and a line of progress every minute. In
JSON each is an object, whose "event" says what it is:

header    fields by name, all texts
note      {"text"}
epoch     the row of metrics.jsonl
progress  {"epoch", "epochs", "step", "steps", "loss", "images_per_second", "seconds_left"}
result    the content of result.json; "finished_in" is the folder of a run that an earlier start
          finished
"""

import contextlib
import datetime
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from jaxspeed.config import output
from jaxspeed.errors import printable
from jaxspeed.files import dump_json, to_json
from jaxspeed.records.results import images_of
from jaxspeed.records.rows import COLUMNS, Column
from jaxspeed.records.statistics import interval_of_share

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
  next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
  with Progress(console=console, transient=True, disable=not console.is_interactive) as progress:
    task = progress.add_task("", total=None, visible=False)

    def show(done: int, total: int) -> None:
      nonlocal next_line
      text = f"{verb}: {done:,} of {total:,}"
      progress.update(task, description=text, completed=done, total=total, visible=True)
      if not console.is_interactive and time.monotonic() >= next_line:
        console.out(text, highlight=False)
        next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    yield show


class Screen:
  """Prints the events of a session's runs.

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
    self._quiet, self._as_json = quiet or self._out.quiet, as_json
    self._columns = fitting_columns(self._out.width if self._out.is_interactive else None)
    self._is_live = self._out.is_interactive and not as_json
    self._live: Progress | None = None
    self.begin()

  def begin(self, done: float = 0.0, total: float = 0.0) -> None:
    """Marks the start of a run's training.

    Args:
      done: the epochs done, from which on the pace tells the time left.
      total: the epochs of the whole run; may be fractional (airbench's 9.9).
    """
    self._total, self._begun, self._has_titles = total, (done, time.monotonic()), False
    self._next = 0.0 if self._is_live else time.monotonic() + _SECONDS_BETWEEN_LINES

  def line(self, text: str) -> None:
    """Prints `text` above the live line, with control characters escaped."""
    self._print("note", {"text": text}, [text])

  def warn(self, text: str) -> None:
    """Prints `text` as `line` does; where nothing is printed, it is a Python warning."""
    if self._quiet:
      warnings.warn(printable(text), stacklevel=2)
    self.line(text)

  def header(self, fields: Mapping[str, str]) -> None:
    """Prints a line for each field."""
    margin = max(map(len, fields), default=0)
    self._print("header", fields, [f"{name:<{margin}}  {text}" for name, text in fields.items()])

  def epoch(self, row: Mapping[str, Any]) -> None:
    """Prints the row of an epoch; above the first one, titles."""
    titles = [] if self._has_titles else [format_titles(self._columns)]
    self._print("epoch", row, [*titles, *format_row(row, self._columns)])
    self._has_titles = True
    if not self._is_live:
      self._next = time.monotonic() + _SECONDS_BETWEEN_LINES

  def result(self, result: Mapping[str, Any], *, finished_in: str = "") -> None:
    """Prints the content of result.json, where quiet too.

    Args:
      result: the content.
      finished_in: the folder of a run that an earlier start finished; '': this start finished it.
    """
    self.close()
    lines = format_result(result)
    if finished_in:
      lines.insert(0, f"{finished_in} holds this run, already finished:")
      result = {**result, "finished_in": finished_in}
    self._print("result", result, lines)

  def _print(self, event: str, content: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Prints an event as its content in JSON, or as lines."""
    if self._quiet and event != "result":
      return
    if self._as_json:
      lines = [dump_json({"event": event} | to_json(content))]
    for line in lines:
      self._out.out(printable(line), highlight=False)

  def progress_due(self) -> bool:
    """Whether new progress would be shown; check it before fetching a loss from the device."""
    return not self._quiet and time.monotonic() >= self._next

  def progress(self, **now: Any) -> None:
    """Shows progress if it is due: in the live line, or in a line of its own.

    Args:
      now: "epoch", from 1; "step" and "steps", those done in it and all of it; "loss", of a recent
        step; "images_per_second", the pace of recent steps.
    """
    if not self.progress_due():
      return
    done = min(now["epoch"] - 1 + now["step"] / now["steps"], self._total)
    before, start = self._begun
    pace = (time.monotonic() - start) / (done - before) if done > before else None
    left = None if pace is None else (self._total - done) * pace
    time_left = "-" if left is None else str(datetime.timedelta(seconds=round(left)))
    text = (
      f"epoch {now['epoch']}/{self._total:g}  step {now['step']}/{now['steps']}  "
      f"loss {now['loss']:.4f}  {now['images_per_second']:,.0f} img/s  {time_left} left"
    )
    if self._is_live:
      self._draw(text, done / self._total)
      self._next = time.monotonic() + _SECONDS_BETWEEN_DRAWINGS
    else:
      self._print("progress", {**now, "epochs": self._total, "seconds_left": left}, [text])
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


def fitting_columns(width: int | None) -> dict[str, Column]:
  """The columns of the rows that fit into so many characters; None: all."""
  columns = dict(COLUMNS)
  for name in sorted(COLUMNS, key=lambda name: COLUMNS[name].dropped):
    if width is not None and COLUMNS[name].dropped and len(format_titles(columns)) > width:
      del columns[name]
  return columns


def format_titles(columns: Mapping[str, Column]) -> str:
  return " ".join(column.title.rjust(column.width) for column in columns.values())


def format_row(row: Mapping[str, Any], columns: Mapping[str, Column]) -> Iterator[str]:
  """The row in fixed columns, with "-" for missing values; below it, a line on broken images."""
  cells = []
  for name, column in columns.items():
    whole = name == "epoch" and float(row["epoch"]).is_integer()
    cell = _figure(row.get(name), "g" if whole else column.format)
    cells.append(cell.rjust(column.width))
  yield " ".join(cells)
  parts = []
  if skipped := row.get("eval_images_skipped"):
    parts.append(f"{skipped:,} of {row['eval_images'] + skipped:,} evaluation images skipped")
  if broken := row.get("train_images_broken"):
    parts.append(f"{broken:,} training image{'s' * (broken > 1)} replaced")
  if parts:
    yield f"      ({', '.join(parts)})"


def format_result(result: Mapping[str, Any]) -> list[str]:
  """The lines that show a `Result`; of several runs with a row for each, and a t-test."""
  several, seconds = "n" in result, result["seconds"]
  cells = {"top1": _figure(result["top1"], ".3%")}
  if several:
    cells["95 % CI"] = f"+-{_figure(result['ci95'], '.3%')}"
    cells |= {"sd": _figure(result["sd"], ".3%"), "runs": str(result["n"])}
  cells["top5"] = _figure(result["top5"], ".3%")
  if skipped := result.get("skipped_steps"):
    cells["skipped"] = f"{skipped['number']:g} steps, {skipped['share']:.2%}"
  if not several:
    cells["target s"] = _figure(seconds["to_target"], ".2f")
  clocks = seconds | {"compile": seconds["compile"].get("wall")}
  for name in ("train", "dawn", "compile", "process"):
    cells[f"{name} s"] = _figure(clocks[name], ".2f")
  if cost := result.get("cost_usd"):
    reached = "" if cost["to_target"] is None else f", {_dollars(cost['to_target'])} to target"
    cells["cost $"] = f"{_dollars(cost['dawn'])}{reached}"
  table = output.table([[*cells], [*cells.values()]])
  if several:
    return [*_runs(result["runs"]), *table, *_about(result), *_test(result)]
  return [*table, *_about(result), *_best(result)]


def _about(result: Mapping[str, Any]) -> Iterator[str]:
  """Lines on what a result's figures are about."""
  kind, weights = images_of(result["evaluated_on"]), result.get("evaluated_weights")
  images, skipped = result.get("eval_images"), result.get("eval_images_skipped")
  if images:
    kind = f"{images:,} of {images + skipped:,} {kind}" if skipped else f"{images:,} {kind}"
  yield f"evaluated  {kind}" + (f", weights: {weights}" if weights else "")
  if images and "n" not in result and result["top1"] is not None:
    low, high = interval_of_share(result["top1"], images)
    yield f"95 % CI    top1 {low:.1%} to {high:.1%}, by the number of images"
  if result.get("config", {}).get("compile") == "quick":
    yield "compiled   quick programs (config.compile), whose times are no record"
  yield f"device     {result['device']}"


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
  rows: list[tuple[str, ...]] = [("seed", "top1", "train s", "target s")]
  for run in runs:
    seconds = [_figure(run["seconds"][name], ".2f") for name in ("train", "to_target")]
    rows.append((str(run["seed"]), _figure(run["top1"], ".3%"), *seconds))
  return output.table(rows)


def _test(result: Mapping[str, Any]) -> Iterator[str]:
  """Lines on the speed of the runs, how many reached the target if any, and the t-test."""
  seconds, target = result["seconds"], _figure(result["target"], ".3%")
  least = _figure(result["seconds_min"]["train"], ".3f")
  yield f"train s: mean {_figure(seconds['train'], '.3f')}, min {least}"
  if result["target"]:
    mean = _figure(seconds["to_target"], ".2f")
    when = f", after {mean} s on average" if result["reached"] else ""
    yield f"target: {target}, reached by {result['reached']} of {result['n']} runs{when}"
    yield (
      f'p = {result["p_value"]:.2g} for "the true mean is at most {target}" (one-sided t-test): a '
      "small p says that it is above"
    )


def _best(result: Mapping[str, Any]) -> Iterator[str]:
  """A line on a run's best evaluation; none if its config keeps none."""
  if best := result.get("best"):
    metric = best["metric"]
    figure = _figure(best[metric], ".4f" if metric == "loss" else ".3%")
    yield (
      f"best {metric}: {figure} after epoch {best['epoch']:g}, step {best['step']}; it was chosen "
      f"on the {images_of(result['evaluated_on'])}, which flatters it: the last epoch counts"
    )


def _figure(value: Any, spec: str) -> str:
  """A number in a format; "-" for None."""
  # float: rows may contain scalars of NumPy or JAX, which support fewer formats.
  return "-" if value is None else format(float(value), spec)


def _dollars(value: float) -> str:
  # A run of CIFAR-10 costs a fraction of a cent.
  return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"
