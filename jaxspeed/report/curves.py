"""The curves of groups of runs over epochs and over seconds."""

import collections
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxspeed.records.statistics import interval
from jaxspeed.report.charts import COLOURS, Band, Line, line_chart
from jaxspeed.report.data import Group, RunData, number_in
from jaxspeed.report.markup import Html, element, join
from jaxspeed.report.words import number, percent

# Groups whose curves are drawn, and seeds that are drawn beside their mean.
MOST_GROUPS = COLOURS
_MOST_SEEDS = 20


class _Figure(NamedTuple):
  """A chart: its title, the row's keys for evaluation and training, how a value is shown."""

  title: str
  evaluated: str
  trained: str
  show: Callable[[float], str]
  floor: float | None = None
  ceiling: float = math.inf
  least_top: float = -math.inf


def _share(value: float) -> str:
  return percent(value, 1)


_FIGURES = (
  _Figure("Top-1 accuracy", "eval_top1", "train_top1", _share, ceiling=1.0),
  _Figure("Loss", "eval_loss", "train_loss", number),
  _Figure("Top-5 accuracy", "eval_top5", "train_top5", _share, ceiling=1.0),
  _Figure("Learning rate", "learning_rate", "", number, 0.0),
  _Figure("Momentum", "momentum", "", number),
  _Figure("Images per second in training", "images_per_second", "", number, 0.0),
  _Figure("Share of training spent waiting for input", "data_wait", "", _share, 0.0, 1.0, 0.01),
)


def curves(groups: Sequence[Group]) -> Html:
  """All charts, over epochs and over seconds of training; "" if no run has an epoch."""
  shown = [group for group in groups if any(run.rows for run in group.runs)][:MOST_GROUPS]
  if not shown:
    return Html("")
  figures = [figure for figure in _FIGURES if _values(shown, figure)]
  still = [figure for figure in figures if len(set(_values(shown, figure))) == 1]
  moving = [figure for figure in figures if figure not in still]
  parts = []
  for key, label in (("epoch", "epochs"), ("train_seconds", "seconds of training")):
    charts = [chart for figure in moving if (chart := _chart(shown, figure, key, label))]
    heading = element("h3", f"Over {label}")
    parts.append(element("div", heading, element("div", *charts, class_="charts"), class_=key))
  constant = [f"{figure.title}: {figure.show(_values(shown, figure)[0])}" for figure in still]
  note = element("p", "The same in every epoch: ", "; ".join(constant), ".") if still else ""
  return join([_switch(), *parts, note, _note(groups, shown)])


def _switch() -> Html:
  """Two buttons that choose the x axis, without a script; on paper both are shown."""
  buttons = []
  for key, label in (("epoch", "epochs"), ("train_seconds", "seconds")):
    checked = "" if key == "epoch" else None
    button = element("input", type="radio", name="x", id=f"x-{key}", checked=checked)
    buttons.append(join([button, element("label", f"over {label}", for_=f"x-{key}")]))
  return element("div", *buttons, class_="switch", role="group", aria_label="x axis of the curves")


def _note(groups: Sequence[Group], shown: Sequence[Group]) -> Html:
  words = []
  if any(len(group.runs) > 1 for group in shown):
    words.append("Thick lines are means over seeds.")
  if any(len(group.runs) > 2 for group in shown):
    words.append("Areas are the 95 % interval of the mean, from three seeds on.")
  if len(shown) < len(groups):
    words.append(f"Curves show the best {len(shown)} of {len(groups)} settings.")
  return element("p", " ".join(words), class_="quiet") if words else Html("")


def _values(groups: Sequence[Group], figure: _Figure) -> list[float]:
  """Every value of a figure."""
  rows = [row for group in groups for run in group.runs for row in run.rows]
  keys = [key for key in (figure.evaluated, figure.trained) if key]
  found = (number_in(row, key) for row in rows for key in keys)
  return [value for value in found if value is not None]


def _chart(groups: Sequence[Group], figure: _Figure, key: str, label: str) -> Html:
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
    return Html("")
  metric = groups[0].runs[0].metric
  target = groups[0].runs[0].target
  level = (target, f"target {percent(target)}") if figure.evaluated == f"eval_{metric}" else None
  return line_chart(
    figure.title,
    lines,
    x_label=label,
    show=figure.show,
    bands=_bands(groups[0].runs[0], key),
    level=level if target else None,
    floor=figure.floor,
    ceiling=figure.ceiling,
    least_top=figure.least_top,
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
    for epoch, x, y in _points(run, field, key):
      columns[epoch].append((x, y))
  # By epoch: x and y of each run.
  ordered = [tuple(zip(*column, strict=True)) for _, column in sorted(columns.items())]
  means_x, means_y = ([statistics.fmean(each[axis]) for each in ordered] for axis in (0, 1))
  widths: list[float] = []
  if len(group.runs) > 2:  # of two, it reaches 6 times their distance
    widths = [interval(y)[2] if len(y) > 2 else 0.0 for _, y in ordered]
  low = [mean - width for mean, width in zip(means_y, widths, strict=False)]
  high = [mean + width for mean, width in zip(means_y, widths, strict=False)]
  return [*lines, Line(name, means_x, means_y, colour, dashed, low=low, high=high)]


def _points(run: RunData, field: str, key: str) -> list[tuple[float, float, float]]:
  """Epoch, x and y of each row that has both."""
  found = [(number_in(row, key), number_in(row, field), row["epoch"]) for row in run.rows]
  return [(epoch, x, y) for x, y, epoch in found if x is not None and y is not None]


def _bands(run: RunData, key: str) -> list[Band]:
  """A band for each range of epochs with one image size and batch size."""
  bands: list[Band] = []
  for row in run.rows:
    size, batch = (number(number_in(row, name)) for name in ("image_size", "batch_size"))
    label, end = f"{size} px, batch {batch}", number_in(row, key)
    if end is not None:
      begin = bands[-1].last if bands else 0.0
      if bands and bands[-1].label == label:
        begin = bands.pop().first
      bands.append(Band(begin, end, label))
  return bands
