"""The events of a run as lines: to be read, or as JSON.

header    fields by name, all texts
note      {"text"}
epoch     the row of metrics.jsonl
progress  {"epoch", "epochs", "step", "steps", "loss", "images_per_second", "seconds_left"}
result    the content of result.json; "finished_in" is the folder of a run that an earlier start
          finished
"""

import datetime
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jaxspeed.errors import printable
from jaxspeed.files import dump_json, to_json
from jaxspeed.records.results import images_of
from jaxspeed.records.rows import COLUMNS
from jaxspeed.records.statistics import interval_of_share

Event = Literal["header", "note", "epoch", "progress", "result"]


class JsonFormat:
  """Each event as an object of JSON on a line, whose "event" says what it is."""

  def lines(self, event: Event, content: Mapping[str, Any]) -> Iterator[str]:
    yield dump_json({"event": event} | to_json(content))


class TextFormat:
  """Lines to be read: aligned fields, and rows in fixed columns below their titles.

  Args:
    width: the characters of a terminal, at which a header is broken and columns are left out;
      None: none, as in a file.
  """

  def __init__(self, width: int | None) -> None:
    self._width, self._columns = width, dict(COLUMNS)
    for name in sorted(COLUMNS, key=lambda name: COLUMNS[name].dropped):
      if width is not None and COLUMNS[name].dropped and len(self._titles()) > width:
        del self._columns[name]
    self.begin()

  def begin(self) -> None:
    """Begins a table of rows."""
    self._has_titles = False

  def lines(self, event: Event, content: Mapping[str, Any]) -> Iterator[str]:
    yield from map(printable, getattr(self, f"_{event}")(content))

  def _note(self, content: Mapping[str, Any]) -> Iterator[str]:
    yield content["text"]

  def _header(self, fields: Mapping[str, str]) -> Iterator[str]:
    margin = max(map(len, fields), default=0) + 2
    for name, value in fields.items():
      title, how = f"{name:<{margin}}", dict[str, Any](subsequent_indent=" " * margin)
      if self._width is None:
        yield title + value
        continue
      # Neither paths nor words with hyphens are broken: they are copied from a terminal.
      how |= {"initial_indent": title, "break_long_words": False, "break_on_hyphens": False}
      yield from textwrap.wrap(printable(value), max(self._width, margin + 20), **how) or [title]

  def _titles(self) -> str:
    return " ".join(column.title.rjust(column.width) for column in self._columns.values())

  def _epoch(self, row: Mapping[str, Any]) -> Iterator[str]:
    """The row in fixed columns, with "-" for missing values; below it, a line on broken images."""
    if not self._has_titles:
      yield self._titles()
    self._has_titles = True
    cells = []
    for name, column in self._columns.items():
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

  def _progress(self, now: Mapping[str, Any]) -> Iterator[str]:
    left = now["seconds_left"]
    time_left = "-" if left is None else str(datetime.timedelta(seconds=round(left)))
    yield (
      f"epoch {now['epoch']}/{now['epochs']:g}  step {now['step']}/{now['steps']}  "
      f"loss {now['loss']:.4f}  {now['images_per_second']:,.0f} img/s  {time_left} left"
    )

  def _result(self, result: Mapping[str, Any]) -> Iterator[str]:
    if "finished_in" in result:
      yield f"{result['finished_in']} holds this run, already finished:"
    yield from format_result(result)


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
  table = _aligned([tuple(cells), tuple(cells.values())])
  about = [f"{name:<9}  {value}" for name, value in _about(result).items() if value]
  if several:
    return [*_runs(result["runs"]), *table, *about, *_test(result)]
  return [*table, *about, *_best(result)]


def _about(result: Mapping[str, Any]) -> dict[str, str]:
  """What a result's figures are about; '' where it is not known."""
  kind, weights = images_of(result["evaluated_on"]), result.get("evaluated_weights")
  about = {"evaluated": "", "95 % CI": ""}
  if images := result.get("eval_images"):
    skipped = result.get("eval_images_skipped")
    kind = f"{images:,} of {images + skipped:,} {kind}" if skipped else f"{images:,} {kind}"
    if "n" not in result and result["top1"] is not None:
      low, high = interval_of_share(result["top1"], images)
      about["95 % CI"] = f"top1 {low:.1%} to {high:.1%}, by the number of images"
  about["evaluated"] = f"{kind}, weights: {weights}" if weights else kind
  compiled = result["seconds"]["compile"]
  parts = [
    f"{compiled[kind]:.2f} s {words}"
    for kind, words in (("cold", "cold"), ("cached", "from the cache"))
    if compiled.get(kind) is not None
  ]
  # The sum may exceed the elapsed seconds.
  about["compiled"] = f"{', '.join(parts)}, summed over threads" if parts else ""
  if result.get("config", {}).get("compile") == "quick":
    about["compiled"] += "; quick programs (config.compile), whose times are no record"
  return about | {"device": str(result["device"])}


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[str]:
  rows: list[tuple[str, ...]] = [("seed", "top1", "train s", "target s")]
  for run in runs:
    seconds = [_figure(run["seconds"][name], ".2f") for name in ("train", "to_target")]
    rows.append((str(run["seed"]), _figure(run["top1"], ".3%"), *seconds))
  return _aligned(rows)


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


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
  ]


def _figure(value: Any, spec: str) -> str:
  """A number in a format; "-" for None."""
  # float: rows may contain scalars of NumPy or JAX, which support fewer formats.
  return "-" if value is None else format(float(value), spec)


def _dollars(value: float) -> str:
  # A run of CIFAR-10 costs a fraction of a cent.
  return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"
