"""The curves of groups of runs over epochs and over seconds, and where the seconds went."""

import collections
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspeed.records.statistics import interval
from jaxspeed.report.charts import COLOURS, Chart, Line
from jaxspeed.report.data import Group, RunData
from jaxspeed.report.words import Cell, Table, duration, number, percent

# Groups whose curves are drawn, and seeds that are drawn beside their mean.
MOST_GROUPS = COLOURS
_MOST_SEEDS = 20
# Names of the clock, by what the report calls them. `compile_cold` and `compile_cached` are sums
# over threads inside `compile`.
_PARTS = {
  "load data": ("load",),
  "compile": ("compile",),
  "connect and wait for others": ("connect", "others"),
  "warm up, initialise, restore": ("warmup", "init", "restore"),
  "train": ("train",),
  "evaluate": ("validate", "final_validate"),
  "checkpoints": ("checkpoint",),
}
_REST = "start of Python, and the rest"


class _Figure(NamedTuple):
  """A chart: its title, the row's keys for evaluation and training, how it is drawn (`Chart`)."""

  title: str
  evaluated: str
  trained: str
  show: Callable[[float], str]
  how: dict[str, Any] = {}


def _share(value: float) -> str:
  return percent(value, 1)


_FIGURES = (
  _Figure("Top-1 accuracy", "eval_top1", "train_top1", _share, {"ceiling": 1.0}),
  _Figure("Loss", "eval_loss", "train_loss", number, {"cuts": True}),
  _Figure("Top-5 accuracy", "eval_top5", "train_top5", _share, {"ceiling": 1.0}),
  _Figure("Learning rate", "learning_rate", "", number, {"floor": 0.0}),
  _Figure("Momentum", "momentum", "", number),
  _Figure("Images per second in training", "images_per_second", "", number, {"floor": 0.0}),
  _Figure(
    "Share of training spent waiting for input",
    "data_wait",
    "",
    _share,
    {"floor": 0.0, "ceiling": 1.0, "least_top": 0.01},
  ),
)


class Curves(NamedTuple):
  """The charts over each x (the key of a row, and its label), and what is said below them."""

  charts: list[tuple[str, str, list[Chart]]]
  constant: str
  note: str


def curves(groups: Sequence[Group]) -> Curves | None:
  """All charts, over epochs and over seconds of training; None if no run has an epoch."""
  shown = [group for group in groups if any(run.rows for run in group.runs)][:MOST_GROUPS]
  if not shown:
    return None
  values = {figure.title: _values(shown, figure) for figure in _FIGURES}
  moving = [figure for figure in _FIGURES if len({*values[figure.title]}) > 1]
  still = [figure for figure in _FIGURES if len({*values[figure.title]}) == 1]
  charts = []
  for key, label in (("epoch", "epochs"), ("train_seconds", "seconds of training")):
    drawn = (_chart(shown, figure, key, label) for figure in moving)
    charts.append((key, label, [chart for chart in drawn if chart is not None]))
  constant = [f"{figure.title}: {figure.show(values[figure.title][0])}" for figure in still]
  notes = []
  if any(len(group.runs) > 1 for group in shown):
    notes.append("Thick lines are means over seeds.")
  if any(len(group.runs) > 2 for group in shown):
    notes.append("Areas are the 95 % interval of the mean, from three seeds on.")
  if len(shown) < len(groups):
    notes.append(f"Curves show the best {len(shown)} of {len(groups)} settings.")
  return Curves(charts, "; ".join(constant), " ".join(notes))


def _values(groups: Sequence[Group], figure: _Figure) -> list[float]:
  """Every value of a figure."""
  keys = [key for key in (figure.evaluated, figure.trained) if key]
  points = (_points(run, key, "epoch") for group in groups for run in group.runs for key in keys)
  return [y for each in points for _, _, y in each]


def _chart(groups: Sequence[Group], figure: _Figure, key: str, label: str) -> Chart | None:
  lines: list[Line] = []
  for place, group in enumerate(groups):
    alone = len(groups) == 1
    names = ("evaluation", "training") if alone else (group.name, "")
    if not figure.trained:
      names = ("mean" * (len(group.runs) > 1) if alone else group.name, "")
    colours = (place, 1) if alone else (place, place)
    fields = (figure.evaluated, figure.trained)
    for field, name, colour in zip(fields, names, colours, strict=True):
      if field and (name or field == figure.evaluated):
        dashed = field == figure.trained
        seeds = alone and field == figure.evaluated
        lines += _lines(group, field, key, name or figure.title, colour, dashed, seeds)
  if not any(line.x for line in lines):  # as of rows without train_seconds
    return None
  first = groups[0].runs[0]
  is_target = first.target and figure.evaluated == f"eval_{first.metric}"
  return Chart(
    figure.title,
    lines,
    label,
    figure.show,
    bands=_bands(first, key),
    level=(first.target, f"target {percent(first.target)}") if is_target else None,
    **figure.how,
  )


def _lines(
  group: Group, field: str, key: str, name: str, colour: int, dashed: bool, seeds: bool
) -> list[Line]:
  """The mean over a group's runs with its interval, and each run where `seeds`."""
  lines = []
  if seeds and 1 < len(group.runs) <= _MOST_SEEDS:
    for run in group.runs:
      points = _points(run, field, key)
      lines.append(
        Line("", [x for _, x, _ in points], [y for _, _, y in points], colour, faint=True)
      )
  columns = collections.defaultdict[float, list[tuple[float, float]]](list)
  for run in group.runs:
    for step, x, y in _points(run, field, key):
      columns[step].append((x, y))
  # By step: x and y of each run.
  ordered = [tuple(zip(*column, strict=True)) for _, column in sorted(columns.items())]
  means_x, means_y = ([statistics.fmean(each[axis]) for each in ordered] for axis in (0, 1))
  widths: list[float] = []
  if len(group.runs) > 2:  # of two, it reaches 6 times their distance
    widths = [interval(y)[2] if len(y) > 2 else 0.0 for _, y in ordered]
  low = [mean - width for mean, width in zip(means_y, widths, strict=False)]
  high = [mean + width for mean, width in zip(means_y, widths, strict=False)]
  return [*lines, Line(name, means_x, means_y, colour, dashed, low=low, high=high)]


def _points(run: RunData, field: str, key: str) -> list[tuple[float, float, float]]:
  """Step, x and y of each row that has both; of the learning rate, of each step that is known."""
  found = [(row["step"], row.get(key), row.get(field)) for row in run.rows]
  if field == "learning_rate" and run.rates:
    # Seconds and epochs of a step lie between those of the rows.
    ends = [(0, 0.0), *((step, x) for step, x, _ in found if x is not None)]
    steps, rates = zip(*run.rates, strict=True)
    xs = np.interp(steps, [step for step, _ in ends], [x for _, x in ends]).tolist()
    return [each for each in zip(steps, xs, rates, strict=True) if each[0] <= ends[-1][0]]
  return [(step, x, y) for step, x, y in found if x is not None and y is not None]


def _bands(run: RunData, key: str) -> list[tuple[float, float, str]]:
  """The range of x of each phase with one image size and batch size, and its label."""
  bands: list[tuple[float, float, str]] = []
  for row in run.rows:
    size, batch = (number(row.get(name)) for name in ("image_size", "batch_size"))
    label, end = f"{size} px, batch {batch}", row.get(key)
    if end is not None:
      begin = bands[-1][1] if bands else 0.0
      if bands and bands[-1][2] == label:
        begin = bands.pop()[0]
      bands.append((begin, end, label))
  return bands


def parts_of(run: RunData) -> dict[str, float]:
  """The seconds of each part of a run's process, in order; {} if its clock is not known.

  Its checkpoint has them; what follows the checkpoint, and the imports before, are the rest.
  """
  if not run.clock:
    return {}
  named = {name: sum(run.clock.get(key, 0.0) for key in keys) for name, keys in _PARTS.items()}
  whole = run.result["seconds"]["process"] if run.result else run.clock["process"]
  # The clock of a resumed run has all its processes; its result counts them alike.
  rest = max(whole, run.clock["process"]) - sum(named.values())
  return {_REST: max(rest, 0.0), **named}


def times(group: Group) -> list[tuple[RunData, dict[str, float]]]:
  """The runs of a group whose clock is known, with their parts."""
  return [(run, parts) for run in group.runs if (parts := parts_of(run))]


def mean_table(runs: Sequence[dict[str, float]], head: str) -> Table:
  """The means over runs of each part that took a while in one of them, and their shares."""
  means = {name: statistics.fmean(parts[name] for parts in runs) for name in runs[0]}
  total = sum(means.values()) or 1.0
  rows = [
    [Cell(name, key=place), Cell(duration(mean)), Cell(percent(mean / total, 1))]
    for place, (name, mean) in enumerate(means.items())
    if any(parts[name] >= 0.05 for parts in runs)
  ]
  return Table(["part of the process", head, "share"], rows)
