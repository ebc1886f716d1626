"""Overrides of sweeps: every combination, or random ones."""

import math

import pytest

from jaxspeed.errors import UserError
from jaxspeed.launch import grid, log_uniform, sample, uniform


def test_every_combination_the_last_field_fastest():
  found = grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)})
  pairs = [(1.0, 0), (1.0, 1), (1.0, 2), (2.0, 0), (2.0, 1), (2.0, 2)]
  assert found == [{"schedule.peak": peak, "seed": seed} for peak, seed in pairs]
  assert [*found[0]] == ["schedule.peak", "seed"]
  assert grid() == [{}]
  assert grid(a=iter("xy")) == [{"a": "x"}, {"a": "y"}]


def test_a_seed_decides_the_sample():
  axes = {"peak": log_uniform(0.1, 10.0), "mix": uniform(-1, 1), "size": [256, 512], "wd": range(9)}
  found = sample(200, random_seed=1, **axes)
  assert found == sample(200, random_seed=1, **axes) and found[:50] == sample(
    50, random_seed=1, **axes
  )
  assert found != sample(200, random_seed=2, **axes)
  assert all([*row] == [*axes] for row in found)
  assert {row["size"] for row in found} == {256, 512}
  assert {row["wd"] for row in found} == {*range(9)}
  assert all(0.0999 <= row["peak"] <= 10.001 and -1 <= row["mix"] <= 1 for row in found)


def test_the_logarithms_are_spread_evenly():
  drawn = [row["x"] for row in sample(2000, x=log_uniform(1e-4, 1.0))]
  # Of 2,000 in four equal parts 500 each, with a standard deviation of 19.
  counts = [sum(math.floor(-math.log10(x)) == i for x in drawn) for i in range(4)]
  assert all(400 < count < 600 for count in counts)
  evenly = [row["x"] for row in sample(2000, x=uniform(0, 4))]
  assert all(400 < sum(math.floor(x) == i for x in evenly) < 600 for i in range(4))


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: grid(seed=3), "seed=3 is one value: give a list of values, as in [3]."),
    (lambda: grid(name="ab"), "name='ab' is one value: give a list of values, as in ['ab']."),
    (lambda: grid(name=b"ab"), "name=b'ab' is one value"),
    (lambda: grid(seed=range(0)), "seed has no values: give at least one."),
    (lambda: sample(2, random_seed=3, size=[]), "size has no values: give at least one."),
    (lambda: sample(2, size=3), "size=3 is one value"),
    (lambda: log_uniform(0, 1), "log_uniform(0, 1): both bounds must be above 0."),
    (lambda: log_uniform(-1, 1), "log_uniform(-1, 1): both bounds must be above 0."),
  ],
)
def test_mistakes(make, message):
  with pytest.raises(UserError) as error:
    make()
  assert str(error.value).startswith(message)
