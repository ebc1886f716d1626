"""Names of jobs, made from their recipes and overrides."""

import hashlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

# A folder's name has at most 255 bytes; TensorBoard and terminals show less.
_MOST = 100
# What a name that a shell takes for a word may contain, but not begin with.
_NOT_FIRST = ".-+="


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
