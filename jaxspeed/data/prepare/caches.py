"""Listing and pruning of the cache of arrays and indices."""

import contextlib
import dataclasses
import os
import pathlib
import time

from jaxspeed.data.formats import npz
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY

# A younger temporary file may be one that another process is writing.
_LEFTOVER_SECONDS = 3_600


@dataclasses.dataclass(frozen=True)
class Entry:
  """A file of the cache.

  Attributes:
    path: the file.
    source: the folder or archive that it was made from; '' where that is not stored.
    bytes: its size.
    age: age in seconds.
    fault: what is wrong with it; '' where it is usable.
    useless: whether to prune it.
  """

  path: pathlib.Path
  source: str
  bytes: int
  age: float
  fault: str
  useless: bool


def list_cache(root: pathlib.Path) -> list[Entry]:
  """Return the entries of a cache, sorted by name; other files are ignored.

  Raises:
    UserError: the folder cannot be read.
  """
  if root.exists() and not root.is_dir():
    raise UserError(f"{root} cannot be read (Not a directory).")
  found = [_entry(path) for path in sorted(npz.entries(root))]
  left = [_entry(path) for path in sorted(root.glob(f"{TEMPORARY}*")) if path.is_file()]
  return found + [entry for entry in left if entry.age > _LEFTOVER_SECONDS]


def prune_cache(entries: list[Entry]) -> list[Entry]:
  """Remove the useless entries, and return them.

  Raises:
    UserError: an entry cannot be removed.
  """
  useless = [each for each in entries if each.useless]
  for each in useless:
    try:
      with contextlib.suppress(FileNotFoundError):
        each.path.unlink()
    except OSError as error:
      raise UserError(f"{each.path} cannot be removed ({error.strerror or error}).") from error
  return useless


def _entry(path: pathlib.Path) -> Entry:
  stat = path.lstat()
  age = time.time() - stat.st_mtime
  if path.name.startswith(TEMPORARY):
    return Entry(path, "", stat.st_size, age, "a killed run left it", True)
  try:
    source = str(npz.read_about(path).get("source", ""))
  except ValueError as error:
    # Not pruned: it may belong to another program.
    return Entry(path, "", stat.st_size, age, f"it cannot be used ({error})", False)
  # A source that has changed is read again, and its entry replaced.
  gone = bool(source) and not os.path.exists(source)
  return Entry(path, source, stat.st_size, age, "the source is gone" if gone else "", gone)
