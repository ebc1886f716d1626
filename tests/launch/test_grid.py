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
  assert all(0.1 <= row["peak"] <= 10 and -1 <= row["mix"] <= 1 for row in found)


def test_the_logarithms_are_spread_evenly():
  drawn = [row["x"] for row in sample(2000, x=log_uniform(1e-4, 1.0))]
  # Of 2,000 in four equal parts 500 each, with a standard deviation of 19.
  counts = [sum(math.floor(-math.log10(x)) == i for x in drawn) for i in range(4)]
  assert all(400 < count < 600 for count in counts)
  evenly = [row["x"] for row in sample(2000, x=uniform(0, 4))]
  assert all(400 < sum(math.floor(x) == i for x in evenly) < 600 for i in range(4))


def test_equal_bounds_give_that_number():
  assert sample(3, x=log_uniform(0.3, 0.3), y=uniform(2, 2)) == [{"x": 0.3, "y": 2.0}] * 3


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: grid(seed=3), "seed=3 is one value: give a list of values, as in [3]."),
    (lambda: grid(name="ab"), "name='ab' is one value: give a list of values, as in ['ab']."),
    (lambda: grid(name=b"ab"), "name=b'ab' is one value"),
    (lambda: grid(seed=range(0)), "seed has no values: give at least one."),
    (lambda: sample(2, random_seed=3, size=[]), "size has no values: give at least one."),
    (lambda: sample(2, size=3), "size=3 is one value"),
    (lambda: sample(0, size=[1]), "sample(0): the number of combinations must be 1 or more."),
    (lambda: sample(True, size=[1]), "sample(True): the number"),
    (lambda: sample(2.0, size=[1]), "sample(2.0): the number"),
    (lambda: uniform(2, 1), "uniform(2, 1): give two numbers, the lower one first."),
    (lambda: uniform(0, math.inf), "uniform(0, inf): give two numbers"),
    (lambda: uniform("a", 1), "uniform('a', 1): give two numbers"),
    (lambda: log_uniform(2, 1), "log_uniform(2, 1): give two numbers"),
    (lambda: log_uniform(0, 1), "log_uniform(0, 1): both bounds must be above 0."),
    (lambda: log_uniform(-1, 1), "log_uniform(-1, 1): both bounds must be above 0."),
    (lambda: log_uniform(math.nan, 1), "log_uniform(nan, 1): give two numbers"),
  ],
)
def test_mistakes(make, message):
  with pytest.raises(UserError) as error:
    make()
  assert str(error.value).startswith(message)


def test_a_field_named_seed_is_sampled_as_any():
  found = sample(50, **{"seed": range(5)})
  assert {row["seed"] for row in found} == {*range(5)}
  with pytest.raises(UserError, match="random_seed=1.5"):
    sample(3, random_seed=1.5, size=[1])
