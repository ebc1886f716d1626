"""Overrides of sweeps: every combination."""

import pytest

from jaxspeed.errors import UserError
from jaxspeed.launch import grid


def test_every_combination_the_last_field_fastest():
  found = grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)})
  pairs = [(1.0, 0), (1.0, 1), (1.0, 2), (2.0, 0), (2.0, 1), (2.0, 2)]
  assert found == [{"schedule.peak": peak, "seed": seed} for peak, seed in pairs]
  assert grid() == [{}] and grid(a=iter("xy")) == [{"a": "x"}, {"a": "y"}]


@pytest.mark.parametrize(
  "axis, message",
  [
    (3, "a=3 is one value: give a list of values, as in [3]."),
    ("ab", "a='ab' is one value: give a list of values, as in ['ab']."),
    (range(0), "a has no values: give at least one."),
  ],
)
def test_mistakes(axis, message):
  with pytest.raises(UserError) as error:
    grid(a=axis)
  assert str(error.value) == message
