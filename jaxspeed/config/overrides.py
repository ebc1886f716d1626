"""Overrides of a config: the fields that `--config.FIELD=VALUE`, Python or a sweep sets."""

import ast
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks, fields
from jaxspeed.config.registry import FAMILIES
from jaxspeed.errors import UserError


def with_overrides(config: ConfigDict, overrides: Mapping[str, Any]) -> ConfigDict:
  """A checked copy of a config in which fields have other values.

  Args:
    config: the config of a recipe or of a run.
    overrides: values by dotted field name, as in {"schedule.peak": 0.5}. Another "model.name"
      brings the defaults of that family in place of the recipe's fields of its own. A peak scales
      the segments of a recipe's learning rate.

  Raises:
    UserError: a field is unknown, or its value is not valid.
  """
  values = checks.to_plain(config)
  family = overrides.get("model.name", "")
  if family in FAMILIES and family != values["model"].get("name"):
    values["model"] = {"name": family}
  known = fields.known(model := str(values["model"].get("name", "")))
  for name, value in overrides.items():
    if name not in known:
      raise UserError(fields.no_field(str(name), model))
    group, _, last = name.rpartition(".")
    (values[group] if group else values)[last] = value
  found = checks.checked(values)
  segments, peak = found.schedule.segments, found.schedule.peak
  if "schedule.peak" in overrides and "schedule.segments" not in overrides and segments:
    highest = max(rate for segment in segments for rate in segment[2:])
    found.schedule.segments = tuple(
      (first, end, *(peak if rate == highest else rate * (peak / highest) for rate in rates))
      for first, end, *rates in segments
    )
  return found


def parse_value(name: str, text: str) -> Any:
  """The value of a field from the text behind `--config.FIELD=`.

  A text that is no value stays a text, and so does that of an unknown field: `with_overrides`
  refuses both.
  """
  default = fields.known()[name].default if name in fields.known() else ""
  if isinstance(default, str):
    return text
  try:
    return ast.literal_eval(text.capitalize() if isinstance(default, bool) else text)
  except (ValueError, SyntaxError, MemoryError, RecursionError):
    return text


def to_flags(overrides: Mapping[str, Any]) -> list[str]:
  """The overrides as words of a command line: `--config.FIELD=VALUE`."""
  values = checks.to_plain(overrides).items()
  return [f"--config.{name}={v if isinstance(v, str) else repr(v)}" for name, v in values]
