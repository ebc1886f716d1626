"""Line charts in SVG: axes, ticks, bands of phases, intervals, and a text for those who do not see.

Coordinates are pixels of the viewBox; the page scales it.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxspeed.files import dump_json
from jaxspeed.report.markup import Html, element

WIDTH, HEIGHT = 520, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 20, 34
# Colours of the page's style; a chart has the lines of at most as many groups.
COLOURS = 8
_MOST_POINTS = 240


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a chart.

  Attributes:
    name: what the legend and the tooltip call it; "" for one that has none.
    x, y: its points.
    colour: the number of its colour, below `COLOURS`.
    dashed: whether it is dashed.
    faint: whether it is thin and pale, as one of several seeds.
    low, high: the ends of an interval around each point; () for none.
  """

  name: str
  x: Sequence[float]
  y: Sequence[float]
  colour: int = 0
  dashed: bool = False
  faint: bool = False
  low: Sequence[float] = ()
  high: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Band:
  """A range of x with a label, for a phase."""

  first: float
  last: float
  label: str


@dataclasses.dataclass(frozen=True)
class Axes:
  """The ranges of a chart's axes, with their places in pixels."""

  x: tuple[float, float]
  y: tuple[float, float]

  def left(self, value: float) -> float:
    """The place of an x."""
    first, last = self.x
    return _LEFT + (value - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)

  def top(self, value: float) -> float:
    """The place of a y."""
    low, high = self.y
    return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
  """At most `most` + 1 round numbers from `low` to `high`: multiples of 1, 2 or 5 times 10^k."""
  step = _step(low, high, most)
  first = math.ceil(low / step - 1e-9)
  return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _step(low: float, high: float, most: int = 5) -> float:
  """The distance of two ticks."""
  step = (high - low) / most
  magnitude = 10.0 ** math.floor(math.log10(step))
  return next(f * magnitude for f in (1, 2, 5, 10) if f * magnitude >= step * (1 - 1e-9))


def rounded_out(low: float, high: float) -> tuple[float, float]:
  """The nearest range around `low` to `high` that begins and ends with one of its own ticks."""
  while True:
    step = _step(low, high)
    outer = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    # A wider range may have wider steps, at most twice: it grows by less than two of them.
    # Equal but for rounding: 2.0000000000000004e-05 is 2e-05.
    if math.isclose(_step(*outer), step):
      return outer
    low, high = outer


def thinned(line: Line) -> Line:
  """The line with at most `_MOST_POINTS` points, the last one among them."""
  if len(line.x) <= _MOST_POINTS:
    return line
  kept = [round(i * (len(line.x) - 1) / (_MOST_POINTS - 1)) for i in range(_MOST_POINTS)]
  columns: dict[str, Any] = {name: getattr(line, name) for name in ("x", "y", "low", "high")}
  kept_of: dict[str, Any] = {name: [c[i] for i in kept] for name, c in columns.items() if c}
  return dataclasses.replace(line, **kept_of)


def _within(line: Line, low: float, high: float) -> Line:
  """The line with its interval cut off below `low` and above `high`."""
  ends = {name: [min(max(y, low), high) for y in getattr(line, name)] for name in ("low", "high")}
  return dataclasses.replace(line, low=ends["low"], high=ends["high"])


def line_chart(
  title: str,
  lines: Sequence[Line],
  *,
  x_label: str,
  show: Callable[[float], str],
  bands: Sequence[Band] = (),
  level: tuple[float, str] | None = None,
  floor: float | None = None,
  ceiling: float = math.inf,
  least_top: float = -math.inf,
) -> Html:
  """A figure with a chart, its title and its legend.

  Args:
    title: what is shown.
    lines: at least one line with a point.
    x_label: the name of the x axis, with its unit.
    show: a value of y in words.
    bands: the phases; shown where there are two or more.
    level: a y to mark, and its name.
    floor: where the y axis begins; None: at or below the least value.
    ceiling: the highest y that an interval may reach.
    least_top: a y that the axis reaches at least.
  """
  # No value is negative or above the ceiling, so neither are the ends of an interval.
  lines = [_within(thinned(line), 0.0, ceiling) for line in lines if line.x]
  axes = _axes(lines, level, floor, least_top)
  parts = [*_bands(bands, axes), *_grid(axes, x_label, show)]
  if level is not None:
    y = axes.top(level[0])
    parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="level"))
    # At the top there is no room above the line.
    place = y - 4 if y > _TOP + 12 else y + 13
    parts.append(element("text", level[1], x=_LEFT + 4, y=place, class_="note"))
  for line in lines:
    parts += _drawn(_within(line, *axes.y), axes)
  words = _in_words(title, lines, x_label, show)
  chart = element(
    "svg",
    element("title", words),
    *parts,
    viewBox=f"0 0 {WIDTH} {HEIGHT}",
    role="img",
    aria_label=words,
    data_chart=_for_tooltip(lines, axes, x_label, show),
    tabindex=0,
  )
  legend = [] if [line.name for line in lines] == [title] else _legend(lines)
  caption = element("figcaption", element("b", title), *legend)
  return element("figure", caption, chart, class_="chart")


def _axes(
  lines: Sequence[Line], level: tuple[float, str] | None, floor: float | None, least_top: float
) -> Axes:
  """Axes with round ends that hold the lines, the level, and the interval at each line's end.

  An interval of two seeds is often wide at first: the axis would begin far below the lines.
  """
  xs = [x for line in lines for x in (line.x[0], line.x[-1])]
  ys = [y for line in lines for y in (*line.y, *line.low[-1:], *line.high[-1:])]
  ys += [level[0]] if level else []
  low, high = min(ys), max(*ys, least_top)
  low = low if floor is None else min(floor, low)
  size = max(abs(low), abs(high))
  if high - low <= 1e-5 * size:  # its labels would be the same, and rounding would set its ticks
    low, high = low - 0.05 * (size or 1.0), high + 0.05 * (size or 1.0)
  first, last = min(xs), max(xs)
  if last == first:
    half = max(0.5, 1e-9 * abs(first))  # 1e20 + 0.5 is 1e20
    first, last = first - half, last + half
  return Axes((first, last), rounded_out(low, high))


def _grid(axes: Axes, x_label: str, show: Callable[[float], str]) -> list[Html]:
  bottom, parts = HEIGHT - _BOTTOM, []
  for y in ticks(*axes.y):
    place = axes.top(y)
    parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=place, y2=place, class_="grid"))
    label = show(y).replace(".0\u00a0%", "\u00a0%")
    parts.append(element("text", label, x=_LEFT - 6, y=place + 4, text_anchor="end"))
  found = ticks(*axes.x, most=6)
  whole = [x for x in found if x == round(x)]
  for x in whole if len(whole) > 1 else found:
    place = axes.left(x)
    parts.append(element("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis"))
    parts.append(element("text", f"{x:,g}", x=place, y=bottom + 16, text_anchor="middle"))
  parts.append(element("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
  name = element("text", x_label, x=WIDTH - _RIGHT, y=HEIGHT - 4, text_anchor="end", class_="note")
  return [*parts, name]


def _bands(bands: Sequence[Band], axes: Axes) -> list[Html]:
  if len(bands) < 2:
    return []
  parts = []
  for number, band in enumerate(bands):
    first, last = (axes.left(min(max(x, axes.x[0]), axes.x[1])) for x in (band.first, band.last))
    box = dict(x=first, width=max(last - first, 0.0), y=_TOP, height=HEIGHT - _TOP - _BOTTOM)
    parts.append(element("rect", **box, class_=f"band band{number % 2}"))
    # A narrow band keeps the first part of its label.
    labels = (band.label, band.label.partition(",")[0])
    if label := next((each for each in labels if last - first > 6.5 * len(each)), ""):
      middle = (first + last) / 2
      parts.append(element("text", label, x=middle, y=_TOP - 6, text_anchor="middle"))
  return parts


def _drawn(line: Line, axes: Axes) -> list[Html]:
  """The line's interval, the line, and a dot at its end."""
  colour = f"c{line.colour}"
  points = [f"{axes.left(x):.1f},{axes.top(y):.1f}" for x, y in zip(line.x, line.y, strict=True)]
  kind = " faint" * line.faint + " dashed" * line.dashed
  parts = []
  if line.low:
    there = zip(line.x, line.high, strict=True)
    back = zip(reversed(line.x), reversed(line.low), strict=True)
    outline = [f"{axes.left(x):.1f},{axes.top(y):.1f}" for x, y in [*there, *back]]
    parts.append(element("path", d=f"M{' '.join(outline)}Z", class_=f"interval {colour}"))
  parts.append(element("polyline", points=" ".join(points), class_=f"line {colour}{kind}"))
  if not line.faint:
    place = dict(cx=axes.left(line.x[-1]), cy=axes.top(line.y[-1]))
    parts.append(element("circle", **place, r=3, class_=f"dot {colour}"))
  return parts


def _legend(lines: Sequence[Line]) -> list[Html]:
  named = [line for line in lines if line.name]
  return [
    element(
      "span",
      element("i", class_=f"key c{line.colour}{' dashed' * line.dashed}"),
      line.name,
      class_="legend",
    )
    for line in named
  ]


def _in_words(title: str, lines: Sequence[Line], x_label: str, show: Callable[[float], str]) -> str:
  """The chart in a sentence for each named line."""
  shown = [
    f"{line.name} from {show(line.y[0])} to {show(line.y[-1])}, between {show(min(line.y))} and "
    f"{show(max(line.y))}"
    for line in lines
    if line.name
  ]
  return f"{title} over {x_label}: " + "; ".join(shown[:12]) + "."


def _for_tooltip(
  lines: Sequence[Line], axes: Axes, x_label: str, show: Callable[[float], str]
) -> str:
  """What the page's script shows where the pointer is, as JSON."""
  series = [
    {
      "name": line.name,
      "x": [round(axes.left(x), 1) for x in line.x],
      "at": [f"{x:,.4g}" for x in line.x],
      "y": [show(y) for y in line.y],
    }
    for line in lines
    if line.name
  ]
  return dump_json({"x": x_label, "series": series}, only_ascii=False)
