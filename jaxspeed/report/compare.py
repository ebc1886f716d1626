"""Groups of runs beside each other: a table of what differs, parallel lines, tests of means."""

from collections.abc import Sequence

from jaxspeed.records.statistics import interval, p_value_of_equal_means
from jaxspeed.report.charts import COLOURS
from jaxspeed.report.data import Group
from jaxspeed.report.evaluated import image_sets, warning
from jaxspeed.report.head import mean_duration
from jaxspeed.report.markup import Html, element, join, table
from jaxspeed.report.words import METRICS, number, p_value, percent, points

_WIDTH, _HEIGHT, _SIDE, _TOP = 900, 260, 60, 30
# Columns of the table and axes of the parallel lines; groups in the lines.
_MOST_FIELDS, _MOST_LINES = 12, 60


def comparison(groups: Sequence[Group]) -> Html:
  """The comparison of two or more groups, the best first; "" of one."""
  if len(groups) < 2:
    return Html("")
  title = element("h2", f"{len(groups)} settings compared")
  note = ""
  if any(group.runs[0].metric != group.metric for group in groups):
    metric = METRICS[groups[0].metric]
    words = f"All are compared by {metric} accuracy, the target_metric of the first run named"
    note = element("p", f"{words}; some have another one.")
  sets = image_sets(groups)
  said = [note, warning(groups, sets), _in_a_sentence(groups, sets)]
  return join([title, *said, _table(groups, sets), _parallel(groups)])


def _in_a_sentence(groups: Sequence[Group], sets: Sequence[int]) -> Html:
  """Whether the best group is better than the next by more than chance; "" on other images."""
  if sets[0] != sets[1]:
    return Html("")
  first, second = groups[:2]
  if first.mean is None or second.mean is None:
    return element("p", "Not enough runs have an accuracy to compare.")
  gap = points(first.mean - second.mean)
  words = f"{first.name} is {gap} above {second.name}"
  if len(first.finished) < 2 or len(second.finished) < 2:
    return element("p", f"{words}. With one seed each, chance may be the reason.")
  p = p_value_of_equal_means(first.finished, second.finished)
  verdict = "seeds alone may explain it" if p > 0.05 else "seeds alone hardly explain it"
  test = f" ({p_value(p)}, Welch’s two-sided t-test of equal means)"
  return element("p", f"{words}: {verdict}{test}.")


def _table(groups: Sequence[Group], sets: Sequence[int]) -> Html:
  fields = [*groups[0].settings][:_MOST_FIELDS]
  metric = METRICS[groups[0].metric]
  heads = ["", *["folder"] * bool(groups[0].folder), *fields, "seeds", metric, "95 % interval"]
  heads += ["p against the best", "training", "to the target"]
  rows = []
  for place, group in enumerate(groups):
    key = element("i", class_=f"key c{place % COLOURS}")
    settings = [*[group.folder] * bool(group.folder), *(group.settings[name] for name in fields)]
    figures = [str(len(group.runs)), percent(group.mean), _width(group)]
    figures.append(_p(groups[0], group) if sets[place] == sets[0] else "–")
    seconds = [mean_duration(group, name) for name in ("train", "to_target")]
    rows.append((join([key, str(place + 1)]), *settings, *figures, *seconds))
  differing = len(groups[0].settings)
  some = f"the first {len(fields)} of {differing}" if len(fields) < differing else "only"
  note = element(
    "p",
    f"Sorted by the accuracy; {some} fields that differ are shown. p is that of Welch’s two-sided "
    "t-test of equal means; among many settings some p are small by chance.",
    class_="quiet",
  )
  return join([element("div", table(heads, rows, class_="numbers"), class_="wide"), note])


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


def _parallel(groups: Sequence[Group]) -> Html:
  """A line for each group through its values of the fields that differ, to its accuracy."""
  known = [group for group in groups if group.mean is not None][:_MOST_LINES]
  fields = [*groups[0].settings][:_MOST_FIELDS]
  if len(known) < 3 or len(fields) < 2:
    return Html("")
  metric = METRICS[known[0].metric]
  axes = {name: _places([group.settings[name] for group in known]) for name in fields}
  means = [group.mean or 0.0 for group in known]
  low, high = min(means), max(means)
  gap = (_WIDTH - 2 * _SIDE) / len(fields)
  lines = []
  for place, group in enumerate(known):
    ends = [axes[name][group.settings[name]] for name in fields]
    ends.append((means[place] - low) / (high - low) if high > low else 0.5)
    points_of = " ".join(f"{_SIDE + i * gap:.1f},{_y(end):.1f}" for i, end in enumerate(ends))
    words = f"{group.name}: {percent(group.mean)}"
    style = f"line c{place % COLOURS}{' faint' if place >= COLOURS else ''}"
    lines.append(element("polyline", element("title", words), points=points_of, class_=style))
  drawn = [_axis(i * gap, name, axes[name]) for i, name in enumerate(fields)]
  drawn.append(_axis(len(fields) * gap, metric, {percent(low): 0.0, percent(high): 1.0}))
  drawn = [*lines, *drawn]  # the labels above the lines
  words = f"Each setting as a line through {', '.join(fields)} to its {metric}. " + "; ".join(
    f"{group.name}: {percent(group.mean)}" for group in known[:12]
  )
  size = f"0 0 {_WIDTH} {_HEIGHT}"
  parts = (element("title", words), *drawn)
  chart = element("svg", *parts, viewBox=size, role="img", aria_label=words)
  caption = element("figcaption", element("b", "Settings as lines"), " to their accuracy")
  return element("figure", caption, chart, class_="chart")


def _y(share: float) -> float:
  return _HEIGHT - _TOP - share * (_HEIGHT - 2 * _TOP)


def _places(values: Sequence[str]) -> dict[str, float]:
  """Each value's place on an axis from 0 to 1: numbers in their order, evenly spaced."""
  distinct = sorted(set(values), key=lambda text: (_number(text) is None, _number(text) or 0, text))
  return {text: i / max(len(distinct) - 1, 1) for i, text in enumerate(distinct)}


def _number(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None


def _axis(left: float, name: str, places: dict[str, float]) -> Html:
  x = _SIDE + left
  ends = [(text, share) for text, share in places.items() if len(places) <= 8 or share in (0, 1)]
  labels = [
    element("text", _short(text), x=x + 5, y=_y(share) + 4, class_="halo") for text, share in ends
  ]
  line = element("line", x1=x, x2=x, y1=_y(0), y2=_y(1), class_="axis")
  # The first name begins and the last one ends where the chart does.
  anchor, place = ("start", 4.0) if not left else ("middle", x)
  return join([line, element("text", name, x=place, y=14, text_anchor=anchor), *labels])


def _short(text: str) -> str:
  shown = text if _number(text) is None else number(_number(text))
  return shown if len(shown) <= 16 else f"{shown[:15]}…"
