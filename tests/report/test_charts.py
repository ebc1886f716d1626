"""Axes, ticks and lines of charts."""

import random

import pytest

from jaxspeed.report.charts import Chart, Line, rounded_out, ticks, without_outliers


def chart(*lines, **how):
  return Chart("a", lines, "epochs", lambda y: f"{y:.2f}", **how)


def axis(*lines, **how):
  """The labels of the y axis."""
  shown = chart(*lines, **how)
  return [float(shown.show(y)) for y in ticks(*shown.axes.y)]


def test_a_range_is_rounded_out_to_its_ticks_and_none_hangs_a_chart():
  draw = random.Random(0)
  ranges = [(0, 1), (0.012, 0.013), (-3, 1e6), (99.1, 99.9), (1, 1.0001)]
  for low, high in ranges:
    outer = rounded_out(low, high)
    found = ticks(*outer)
    assert (found[0], found[-1]) == pytest.approx(outer) and outer[1] - outer[0] < 2 * (high - low)
  for _ in range(3000):  # narrow ones, too
    low = draw.uniform(-1, 1) * 10 ** draw.uniform(-12, 12)
    ranges.append((low, low + abs(low) * 10 ** draw.uniform(-17, 0)))
  for low, high in ranges:
    y = chart(Line("", [0.0, 1.0], [low, high])).axes.y
    assert y[0] <= low <= high <= y[1] and 2 <= len(ticks(*y)) <= 7
  assert chart(Line("b", [1e100, 1e100], [1, 2])).axes.left(1e100)


def test_an_axis_follows_the_lines_and_its_ends_are_ticks():
  high = Line("b", [1, 2, 3], [0.61, 0.86, 0.93], low=[0.05, 0.8, 0.92], high=[1.2, 0.92, 0.94])
  assert axis(high, ceiling=1.0) == [0.6, 0.7, 0.8, 0.9, 1.0]
  # The interval holds what is possible only, and is cut off where the axis ends.
  shown = chart(high, ceiling=1.0)
  assert shown.drawn[0].high == [1.0, 0.92, 0.94]
  assert shown.axes.points([1], [0.05]).endswith(f",{shown.axes.top(0.6):.1f}")
  ends = Line("b", [1, 2], [0.1, 0.9], low=[-0.4, 0.5], high=[0.6, 1.3])
  assert axis(ends, ceiling=1.0)[::5] == [0.0, 1.0]
  first = Line("b", [1, 2], [0.1, 0.93])
  assert axis(high, first, ceiling=1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
  assert axis(Line("b", [1, 2], [0.61, 0.62]), level=(0.94, "t"))[0::4] == [0.6, 1.0]
  assert axis(Line("b", [1], [2.0])) == [1.9, 1.95, 2.0, 2.05, 2.1]
  assert axis(Line("b", [1, 2], [0.0, 0.0]), floor=0.0, least_top=0.01)[0] == 0


@pytest.mark.parametrize(
  "values, kept",
  [
    ([2300.0, 2.0, 1.5, 1.0], [1.0, 1.5, 2.0]),
    ([2.0, 9e9, 9e8, 1.5, 1.1, 1.0, 0.9], [0.9, 1.0, 1.1, 1.5, 2.0]),
    ([6.9, 4.1, 3.3, 2.5, 1.9], None),  # ImageNet's first epochs
    ([5.0, 5.0, 5.0, 9.0], None),
  ],
)
def test_an_outlier_does_not_flatten_a_loss(values, kept):
  assert without_outliers(values) == (kept or sorted(values))
  shown = chart(Line("b", range(len(values)), values), cuts=True)
  assert (shown.highest > shown.most) == (kept is not None)
  assert shown.axes.y[1] < 3 * (kept or sorted(values))[-1]
  assert chart(Line("b", range(len(values)), values)).most == max(values)
