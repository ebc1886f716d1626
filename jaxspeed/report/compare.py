"""Groups of runs beside each other: a table of what differs, parallel lines, tests of means."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxspeed.records.statistics import interval, p_value_of_equal_means
from jaxspeed.report.charts import COLOURS
from jaxspeed.report.data import Group
from jaxspeed.report.evaluated import image_sets, named_sets
from jaxspeed.report.head import mean_duration
from jaxspeed.report.words import METRICS, Cell, Table, number, p_value, percent, points

WIDTH, HEIGHT, SIDE, TOP = 900, 260, 60, 30
# Columns of the table and axes of the parallel lines; groups in the lines.
_MOST_FIELDS, _MOST_LINES = 12, 60


class Axis(NamedTuple):
  """An axis of the parallel lines: its x, its name, and the share of its height of each label."""

  x: float
  name: str
  labels: list[tuple[str, float]]


class Parallel(NamedTuple):
  """A line for each group through its values of the fields that differ, to its accuracy.

  `lines` has the words, the points and the class of each line.
  """

  words: str
  axes: list[Axis]
  lines: list[tuple[str, str, str]]


class Comparison(NamedTuple):
  """Two or more groups, the best first; `sets` names the evaluation sets if there are several."""

  settings: int
  sets: str
  sentences: list[str]
  table: Table
  footnote: str
  parallel: Parallel | None


def comparison(groups: Sequence[Group]) -> Comparison | None:
  """The comparison of two or more groups, the best first; None of one."""
  if len(groups) < 2:
    return None
  numbers, sentences = image_sets(groups), []
  if any(group.runs[0].metric != group.metric for group in groups):
    metric = METRICS[groups[0].metric]
    words = f"All are compared by {metric} accuracy, the target_metric of the first run named"
    sentences.append(f"{words}; some have another one.")
  if numbers[0] == numbers[1]:
    sentences.append(_in_a_sentence(*groups[:2]))
  differing = len(groups[0].settings)
  some = f"the first {_MOST_FIELDS} of {differing}" if differing > _MOST_FIELDS else "only"
  footnote = (
    f"Sorted by the accuracy; {some} fields that differ are shown. p is that of Welch’s two-sided "
    "t-test of equal means; among many settings some p are small by chance."
  )
  shown = _table(groups, numbers), footnote, _parallel(groups)
  return Comparison(len(groups), named_sets(groups, numbers), sentences, *shown)


def _in_a_sentence(first: Group, second: Group) -> str:
  """Whether the best group is better than the next by more than chance."""
  if first.mean is None or second.mean is None:
    return "Not enough runs have an accuracy to compare."
  words = f"{first.name} is {points(first.mean - second.mean)} above {second.name}"
  if len(first.finished) < 2 or len(second.finished) < 2:
    return f"{words}. With one seed each, chance may be the reason."
  p = p_value_of_equal_means(first.finished, second.finished)
  verdict = "seeds alone may explain it" if p > 0.05 else "seeds alone hardly explain it"
  return f"{words}: {verdict} ({p_value(p)}, Welch’s two-sided t-test of equal means)."


def _table(groups: Sequence[Group], sets: Sequence[int]) -> Table:
  fields = [*groups[0].settings][:_MOST_FIELDS]
  metric = METRICS[groups[0].metric]
  heads = ["", *["folder"] * bool(groups[0].folder), *fields, "seeds", metric, "95 % interval"]
  heads += ["p against the best", "training", "to the target"]
  rows = []
  for place, group in enumerate(groups):
    settings = [*[group.folder] * bool(group.folder), *(group.settings[name] for name in fields)]
    figures = [str(len(group.runs)), percent(group.mean), _width(group)]
    figures.append(_p(groups[0], group) if sets[place] == sets[0] else "–")
    seconds = [mean_duration(group, name) for name in ("train", "to_target")]
    key = Cell(str(place + 1), key=place % COLOURS)
    rows.append([key, *map(Cell, [*settings, *figures, *seconds])])
  return Table(heads, rows)


def _width(group: Group) -> str:
  if len(group.finished) > 1:
    return f"± {points(interval(group.finished)[2])}"
  unfinished = [run for run in group.runs if run.result is None]
  if not unfinished:
    return "–"
  return "stopped" if all(run.is_stopped for run in unfinished) else "running"


def _p(best: Group, group: Group) -> str:
  if group is best or min(len(best.finished), len(group.finished)) < 2:
    return "–"
  return p_value(p_value_of_equal_means(best.finished, group.finished)).removeprefix("p = ")


def _parallel(groups: Sequence[Group]) -> Parallel | None:
  known = [group for group in groups if group.mean is not None][:_MOST_LINES]
  fields = [*groups[0].settings][:_MOST_FIELDS]
  if len(known) < 3 or len(fields) < 2:
    return None
  places = {name: _places([group.settings[name] for group in known]) for name in fields}
  means = [group.mean or 0.0 for group in known]
  low, high = min(means), max(means)
  gap = (WIDTH - 2 * SIDE) / len(fields)
  lines = []
  for place, group in enumerate(known):
    ends = [places[name][group.settings[name]] for name in fields]
    ends.append((means[place] - low) / (high - low) if high > low else 0.5)
    through = " ".join(f"{SIDE + i * gap:.1f},{height(end):.1f}" for i, end in enumerate(ends))
    kind = f"line c{place % COLOURS}{' faint' if place >= COLOURS else ''}"
    lines.append((f"{group.name}: {percent(group.mean)}", through, kind))
  metric = METRICS[known[0].metric]
  places[metric] = {percent(low): 0.0, percent(high): 1.0}
  axes = [
    Axis(SIDE + i * gap, name, _labels(found)) for i, (name, found) in enumerate(places.items())
  ]
  words = f"Each setting as a line through {', '.join(fields)} to its {metric}. "
  return Parallel(words + "; ".join(said for said, *_ in lines[:12]), axes, lines)


def height(share: float) -> float:
  """The place of a share of an axis' height."""
  return HEIGHT - TOP - share * (HEIGHT - 2 * TOP)


def _places(values: Sequence[str]) -> dict[str, float]:
  """Each value's place on an axis from 0 to 1: numbers in their order, evenly spaced."""
  distinct = sorted(set(values), key=lambda text: (_number(text) is None, _number(text) or 0, text))
  return {text: i / max(len(distinct) - 1, 1) for i, text in enumerate(distinct)}


def _number(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None


def _labels(places: dict[str, float]) -> list[tuple[str, float]]:
  ends = [(text, share) for text, share in places.items() if len(places) <= 8 or share in (0, 1)]
  shown = [text if _number(text) is None else number(_number(text)) for text, _ in ends]
  short = [text if len(text) <= 16 else f"{text[:15]}…" for text in shown]
  return [(text, share) for text, (_, share) in zip(short, ends, strict=True)]
