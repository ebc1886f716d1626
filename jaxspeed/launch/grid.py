"""Overrides for sweeps: every combination of values, or random ones."""

import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from jaxspeed.errors import UserError

Distribution = Callable[[random.Random], Any]


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
  """Every combination of values, the last field changing fastest.

  grid(**{"schedule.peak": [1.0, 2.0], "seed": range(3)}) has six combinations.

  Args:
    **axes: the values of each field, by its dotted name.

  Raises:
    UserError: a field has no values, or a single value in place of several.
  """
  values = {name: _values(name, axis) for name, axis in axes.items()}
  return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def sample(
  count: int, *, random_seed: int = 0, **axes: Iterable[Any] | Distribution
) -> list[dict[str, Any]]:
  """Random combinations of values, the same ones for the same seed.

  sample(20, **{"schedule.peak": log_uniform(0.1, 10.0), "batch_size": [256, 512]})

  Args:
    count: the number of combinations.
    random_seed: the seed of the random numbers; `seed` is a field like others.
    **axes: by dotted name, the values that a field can have, or a function of a `random.Random`,
      such as `uniform` and `log_uniform` return.

  Raises:
    UserError: as `grid`.
  """
  generator = random.Random(random_seed)
  draws = {name: _draw(name, axis) for name, axis in axes.items()}
  return [{name: draw(generator) for name, draw in draws.items()} for _ in range(count)]


def uniform(low: float, high: float) -> Distribution:
  """Numbers spread evenly from `low` to `high`, for `sample`."""
  return lambda generator: generator.uniform(low, high)


def log_uniform(low: float, high: float) -> Distribution:
  """Numbers whose logarithms are spread evenly, from `low` to `high`, for `sample`.

  Raises:
    UserError: a bound is not above 0.
  """
  if min(low, high) <= 0:
    raise UserError(f"log_uniform({low!r}, {high!r}): both bounds must be above 0.")
  return lambda generator: math.exp(generator.uniform(math.log(low), math.log(high)))


def _values(name: str, axis: Any) -> list[Any]:
  if isinstance(axis, str | bytes) or not isinstance(axis, Iterable):
    raise UserError(f"{name}={axis!r} is one value: give a list of values, as in [{axis!r}].")
  values = list(axis)
  if not values:
    raise UserError(f"{name} has no values: give at least one.")
  return values


def _draw(name: str, axis: Iterable[Any] | Distribution) -> Distribution:
  if callable(axis):
    return axis
  values = _values(name, axis)
  return lambda generator: generator.choice(values)
