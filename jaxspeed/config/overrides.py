"""Overrides of a recipe from Python: what `--config.FIELD=VALUE` does on a command line."""

import ast
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks, families, names
from jaxspeed.config.schema import shown
from jaxspeed.errors import UserError


def with_overrides(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
  """A checked copy of a config in which fields have other values.

  Args:
    config: the config of a recipe, with every field of its model.
    overrides: values by dotted field name, as in {"schedule.peak": 0.5}. A list becomes a tuple,
      and a whole number a float where the field is one. Another "model.name" brings the defaults of
      that family in place of the recipe's fields of its own.

  Raises:
    UserError: a field is unknown, or its value is not valid.
  """
  config = config.copy_and_resolve_references()
  values = plain_values(overrides)
  with config.unlocked():
    config.model = families.of_family(config.model.to_dict(), values.get("model.name"))
  model = str(config.model.get("name", ""))
  known = names.declared(model)
  for name, value in values.items():
    if name not in known:
      raise UserError(names.no_field(str(name), model))
    group, _, last = name.rpartition(".")
    held = config[group] if group else config
    held[last] = _converted(name, value, held[last])
  scale_segments(config, overrides)
  checks.check(config)
  return config


def scale_segments(config: ConfigDict, given: Collection[str]) -> None:
  """Scales the segments of a recipe's learning rate to a peak that an override sets, in place.

  Args:
    config: a config that is not locked against other values.
    given: dotted names of the fields that are overridden.
  """
  segments, peak = config.schedule.segments, config.schedule.peak
  if "schedule.peak" not in given or "schedule.segments" in given or not segments:
    return
  highest = max(rate for segment in segments for rate in segment[2:])
  if highest:
    config.schedule.segments = tuple(
      (first, end, *(_scaled(rate, highest, peak) for rate in rates))
      for first, end, *rates in segments
    )


def _scaled(rate: float, highest: float, peak: float) -> float:
  # Exactly the peak at the peak: scaled once more, the segments stay as they are.
  return peak if rate == highest else rate if peak == highest else rate * (peak / highest)


def _converted(name: str, value: Any, before: Any) -> Any:
  """A value in the type that a field has, where that loses nothing."""
  if isinstance(before, float) and type(value) is int:
    with contextlib.suppress(OverflowError):  # refused below, as an int
      value = float(value)
  # ml_collections would raise its own error for a value of another type, or take True for 1.0.
  if type(value) is not type(before):
    raise UserError(f"config.{name}={shown(value)}: it must be {names.accepted(name)}.")
  return value


def plain_values(overrides: Any) -> Any:
  """Overrides with lists as tuples, and numbers and arrays of NumPy as Python's."""
  if not isinstance(overrides, Mapping):
    return overrides
  return {name: _plain(value) for name, value in overrides.items()}


def _plain(value: Any) -> Any:
  if isinstance(value, list | tuple):
    return tuple(map(_plain, value))
  return _plain(value.tolist()) if hasattr(value, "tolist") else value


def parse_value(name: str, text: str) -> Any:
  """The value of a field from the text behind `--config.FIELD=`.

  Raises:
    UserError: there is no such field, or the text is not its value.
  """
  field = names.field_of(name)
  if field is None:
    raise UserError(names.no_field(name))
  if isinstance(field.default, str):
    return text
  try:
    return ast.literal_eval(text.capitalize() if isinstance(field.default, bool) else text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    raise UserError(
      f"config.{name}={shown(text)}: it must be {names.accepted(name, text)}."
    ) from None


def to_flags(overrides: Mapping[str, Any]) -> list[str]:
  """The overrides as words of a command line: `--config.FIELD=VALUE`."""
  values = plain_values(overrides).items()
  return [f"--config.{name}={v if isinstance(v, str) else repr(v)}" for name, v in values]
