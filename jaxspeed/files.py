"""Files that are written whole or not at all, and values as JSON holds them."""

import errno
import math
import os
import pathlib
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO

NOT_REGULAR = "it is no regular file"


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


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
  """Opens a file to read it; what is no regular file (a pipe, a device) is refused, not waited for.

  Raises:
    OSError: it is missing, may not be read, or is no regular file.
  """
  # Without O_NONBLOCK a pipe would be waited for until someone writes into it.
  descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
  try:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
    return open(descriptor, "rb")
  except BaseException:
    os.close(descriptor)
    raise


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
