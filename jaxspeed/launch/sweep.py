"""The jobs of a sweep: every combination of overrides, and names that tell the jobs apart."""

import hashlib
import itertools
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxspeed.errors import UserError

# A folder's name has at most 255 bytes; TensorBoard and terminals show less.
_MOST = 100
# What a name that a shell takes for a word may contain, but not begin with.
_NOT_FIRST = ".-+="


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


def job_name(recipe: str, overrides: Mapping[str, Any]) -> str:
  """A name that recipe and overrides alone decide: the same job has the same name.

  job_name("configs/imagenet18.py:4", {"schedule.peak": 2.0, "seed": 1}) is
  "imagenet18-4_peak=2.0_seed=1".
  """
  file, _, variant = recipe.partition(":")
  parts = [pathlib.PurePath(file).stem + (f"-{variant}" if variant else "")]
  lasts = [field.rpartition(".")[2] for field in overrides]
  # In the order of the fields' names, whatever the order of the dict.
  for field, value in sorted(overrides.items()):
    last = field.rpartition(".")[2]
    parts.append(f"{last if lasts.count(last) == 1 else field}={_text(value)}")
  name = "_".join(re.sub(r"[^A-Za-z0-9._=+-]+", "-", part) for part in parts)
  if name and len(name) <= _MOST and name[0] not in _NOT_FIRST:
    return name
  # The end of a long name may be all that differs.
  digest = hashlib.sha256(repr((recipe, sorted(overrides.items()))).encode()).hexdigest()[:8]
  return f"{name[: _MOST - 9].lstrip(_NOT_FIRST) or 'job'}-{digest}"


def _text(value: Any) -> str:
  if isinstance(value, list | tuple):
    return "-".join(map(_text, value)) or "none"
  if isinstance(value, float) and len(str(value)) > 8:  # a sample has 17 digits
    return f"{value:.6g}"
  # The last parts of a path say most.
  return "-".join(pathlib.PurePath(value).parts[-2:]) if isinstance(value, str) else str(value)
