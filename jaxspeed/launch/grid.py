"""Overrides for sweeps: every combination of values."""

import itertools
from collections.abc import Iterable
from typing import Any

from jaxspeed.errors import UserError


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
  """Every combination of values, the last field changing fastest.

  grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)}) has six combinations.

  Args:
    **axes: the values of each field, by its dotted name.

  Raises:
    UserError: a field has no values, or a single value in place of several.
  """
  values = {}
  for name, axis in axes.items():
    if isinstance(axis, str | bytes) or not isinstance(axis, Iterable):
      raise UserError(f"{name}={axis!r} is one value: give a list of values, as in [{axis!r}].")
    values[name] = list(axis)
    if not values[name]:
      raise UserError(f"{name} has no values: give at least one.")
  return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]
