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
    **axes: by dotted name, the values that a field can have, or `uniform` or `log_uniform`.

  Raises:
    UserError: as `grid`, or `count` is no positive number.
  """
  if type(count) is not int or count < 1:
    raise UserError(f"sample({count!r}): the number of combinations must be 1 or more.")
  if type(random_seed) is not int:
    raise UserError(f"sample(random_seed={random_seed!r}): it must be a whole number.")
  generator = random.Random(random_seed)
  draws = {name: _draw(name, axis) for name, axis in axes.items()}
  return [{name: draw(generator) for name, draw in draws.items()} for _ in range(count)]


def uniform(low: float, high: float) -> Distribution:
  """Numbers spread evenly from `low` to `high`, for `sample`.

  Raises:
    UserError: the bounds are not two finite numbers, the lower one first.
  """
  _check_bounds("uniform", low, high)
  return lambda generator: generator.uniform(low, high)


def log_uniform(low: float, high: float) -> Distribution:
  """Numbers whose logarithms are spread evenly, from `low` to `high`, for `sample`.

  Raises:
    UserError: the bounds are not two positive finite numbers, the lower one first.
  """
  _check_bounds("log_uniform", low, high)
  if low <= 0:
    raise UserError(f"log_uniform({low!r}, {high!r}): both bounds must be above 0.")
  # Rounding may leave the interval by one unit in the last place.
  return lambda generator: min(
    max(math.exp(generator.uniform(math.log(low), math.log(high))), low), high
  )


def _check_bounds(name: str, low: Any, high: Any) -> None:
  numbers = all(isinstance(bound, int | float) and math.isfinite(bound) for bound in (low, high))
  if not numbers or low > high:
    raise UserError(f"{name}({low!r}, {high!r}): give two numbers, the lower one first.")


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
