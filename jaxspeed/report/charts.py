"""Line charts: axes, ticks and places in pixels of the viewBox; page.html draws them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence

from jaxspeed.files import dump_json

WIDTH, HEIGHT = 520, 250
LEFT, RIGHT, TOP, BOTTOM = 56, WIDTH - 12, 20, HEIGHT - 34
# Colours of the page's style; a chart has the lines of at most as many groups.
COLOURS = 8
_MOST_POINTS = 240
# A value is an outlier if the gap below it is so many times the range of all lower ones.
_OUTLIER = 10


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
class Axes:
  """The ranges of a chart's axes; what lies outside of them is drawn at their ends.

  Attributes:
    x, y: the ranges.
    box: left, right, top and bottom of the places.
  """

  x: tuple[float, float]
  y: tuple[float, float]
  box: tuple[float, float, float, float] = (LEFT, RIGHT, TOP, BOTTOM)

  def left(self, value: float) -> float:
    """The place of an x."""
    (first, last), (left, right, _, _) = self.x, self.box
    return left + (min(max(value, first), last) - first) / (last - first) * (right - left)

  def top(self, value: float) -> float:
    """The place of a y."""
    (low, high), (_, _, top, bottom) = self.y, self.box
    return bottom - (min(max(value, low), high) - low) / (high - low) * (bottom - top)

  def points(self, xs: Iterable[float], ys: Iterable[float]) -> str:
    """The places of points, as SVG has them."""
    return " ".join(f"{self.left(x):.1f},{self.top(y):.1f}" for x, y in zip(xs, ys, strict=True))


@dataclasses.dataclass(frozen=True)
class Chart:
  """A chart of lines, of which one at least has a point.

  Attributes:
    title: what is shown.
    lines: the lines.
    x_label: the name of the x axis, with its unit.
    show: a value of y in words.
    bands: the first and last x of each phase, and its label; shown where there are two or more.
    level: a y to mark, and its name.
    floor: where the y axis begins; None: at or below the least value.
    ceiling: the highest y that an interval may reach.
    least_top: a y that the axis reaches at least.
    cuts: whether the axis leaves out outliers (`without_outliers`).
  """

  title: str
  lines: Sequence[Line]
  x_label: str
  show: Callable[[float], str]
  bands: Sequence[tuple[float, float, str]] = ()
  level: tuple[float, str] | None = None
  floor: float | None = None
  ceiling: float = math.inf
  least_top: float = -math.inf
  cuts: bool = False

  @functools.cached_property
  def drawn(self) -> list[Line]:
    """The lines with a point, thinned, and with what is possible of their intervals."""
    return [_thinned(line, self.ceiling) for line in self.lines if line.x]

  @property
  def named(self) -> list[Line]:
    """The lines of the legend and the tooltip."""
    return [line for line in self.drawn if line.name]

  @property
  def legend(self) -> list[Line]:
    """The named lines, but for one that has the name of the chart."""
    return [] if [line.name for line in self.named] == [self.title] else self.named

  @property
  def highest(self) -> float:
    """The highest y."""
    return max(y for line in self.drawn for y in line.y)

  @functools.cached_property
  def most(self) -> float:
    """The highest y that is no outlier, where these are left out."""
    values = [y for line in self.drawn for y in line.y]
    return without_outliers(values)[-1] if self.cuts else self.highest

  @functools.cached_property
  def axes(self) -> Axes:
    """Axes with round ends that hold the lines, the level, and the interval at each line's end.

    An interval of two seeds is often wide at first: the axis would begin far below the lines.
    """
    xs = [x for line in self.drawn for x in (line.x[0], line.x[-1])]
    ys = [y for line in self.drawn for y in (*line.y, *line.low[-1:], *line.high[-1:])]
    ys = [y for y in ys if y <= self.most or not self.cuts] + (
      [self.level[0]] if self.level else []
    )
    low, high = min(ys), max(*ys, self.least_top)
    low = low if self.floor is None else min(self.floor, low)
    size = max(abs(low), abs(high))
    if high - low <= 1e-5 * size:  # its labels would be the same, and rounding would set its ticks
      low, high = low - 0.05 * (size or 1.0), high + 0.05 * (size or 1.0)
    first, last = min(xs), max(xs)
    if last == first:
      half = max(0.5, 1e-9 * abs(first))  # 1e20 + 0.5 is 1e20
      first, last = first - half, last + half
    return Axes((first, last), rounded_out(low, high))

  @property
  def x_ticks(self) -> list[float]:
    """Round numbers of the x axis, whole ones if two of them are."""
    found = ticks(*self.axes.x, most=6)
    whole = [x for x in found if x == round(x)]
    return whole if len(whole) > 1 else found

  @property
  def words(self) -> str:
    """The chart in a sentence for each named line."""
    shown = [
      f"{line.name} from {self.show(line.y[0])} to {self.show(line.y[-1])}, between "
      f"{self.show(min(line.y))} and {self.show(max(line.y))}"
      for line in self.named[:12]
    ]
    return f"{self.title} over {self.x_label}: {'; '.join(shown)}."

  @property
  def for_tooltip(self) -> str:
    """What the page's script shows where the pointer is, as JSON."""
    series = [
      {
        "name": line.name,
        "x": [round(self.axes.left(x), 1) for x in line.x],
        "at": [f"{x:,.4g}" for x in line.x],
        "y": [self.show(y) for y in line.y],
      }
      for line in self.named
    ]
    return dump_json({"x": self.x_label, "series": series}, ensure_ascii=False)


def _thinned(line: Line, ceiling: float) -> Line:
  """The line with at most `_MOST_POINTS` points, the last one among them.

  No value is negative or above the ceiling, so neither are the ends of an interval.
  """
  last, most = len(line.x) - 1, min(len(line.x), _MOST_POINTS)
  kept = [round(i * last / max(most - 1, 1)) for i in range(most)]
  x, y = ([values[i] for i in kept] for values in (line.x, line.y))
  low = [max(line.low[i], 0.0) for i in kept if line.low]
  high = [min(line.high[i], ceiling) for i in kept if line.high]
  return dataclasses.replace(line, x=x, y=y, low=low, high=high)


def without_outliers(values: Iterable[float]) -> list[float]:
  """Values in order, without the highest ones if these are outliers; more than half are none."""
  ordered = sorted(values)
  for place in range(len(ordered) // 2 + 1, len(ordered)):
    least, below = ordered[0], ordered[place - 1]
    if below > least and ordered[place] - below > _OUTLIER * (below - least):
      return ordered[:place]
  return ordered


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
