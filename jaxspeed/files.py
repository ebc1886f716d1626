"""Files that are written whole or not at all, and values as JSON holds them."""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any


def write_atomically(path: pathlib.Path, text: str) -> None:
  """Writes a file so that a reader, or a run after a kill, finds the old text or the new one."""
  # The process's number, for several processes that share a folder.
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    with open(temporary, "w", encoding="utf-8") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def plain(value: Any) -> Any:
  """`value` as JSON holds it: scalars of NumPy and JAX as numbers, NaN and infinities as None."""
  if isinstance(value, Mapping):
    return {str(key): plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [plain(item) for item in value]
  if hasattr(value, "item"):
    value = value.item()
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
