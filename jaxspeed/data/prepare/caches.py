"""Listing and pruning of the cache of arrays and indices."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import time
from collections.abc import Sequence

from jaxspeed.data.formats import array_cache
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY

# Names from `array_cache.entry_of`, and of folders that a killed `remove` or `new_folder` leaves.
_ENTRY = re.compile(r".+-[0-9a-f]{16}")
_LEFTOVER = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{16}}|\..+-[0-9a-f]{{16}}\.[0-9a-f]{{32}}")
# A younger leftover may be an entry that another process is writing.
_LEFTOVER_SECONDS = 3_600


@dataclasses.dataclass(frozen=True)
class Entry:
  """An entry of the cache, or part of one, left by a killed process.

  Attributes:
    folder: the entry's folder.
    source: the folder or archive that it was made from; '' where that is not stored.
    bytes: total size of its files.
    age: age in seconds.
    fault: what is wrong with it; '' where it is usable.
    useless: whether to prune it.
  """

  folder: pathlib.Path
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
  try:
    names = sorted(os.listdir(root))
  except FileNotFoundError:
    return []
  except OSError as error:
    raise UserError(f"{root} cannot be read ({error.strerror or error}).") from error
  found = [_entry(root / name) for name in names if not (root / name).is_symlink()]
  return [each for each in found if each is not None]


def prune_cache(root: pathlib.Path, entries: Sequence[Entry]) -> list[Entry]:
  """Remove the useless entries, and return them.

  Args:
    root: the cache's folder.
    entries: the result of `list_cache`.

  Raises:
    UserError: an entry cannot be removed.
  """
  removed = []
  for each in entries:
    if each.useless:
      with contextlib.suppress(FileNotFoundError):
        try:
          shutil.rmtree(each.folder)
        except OSError as error:
          if isinstance(error, FileNotFoundError):
            raise
          raise UserError(
            f"{error.filename or each.folder} cannot be removed ({error.strerror or error})."
          ) from error
      removed.append(each)
  return removed


def _entry(folder: pathlib.Path) -> Entry | None:
  """Return the cache entry in a folder, or None if it is not a (finished) entry."""
  try:
    age = time.time() - folder.lstat().st_mtime
    if not folder.is_dir():
      return None
    leftover = _LEFTOVER.fullmatch(folder.name) is not None
    if leftover and age < _LEFTOVER_SECONDS:
      return None
    if not (leftover or _ENTRY.fullmatch(folder.name)) or not _holds_arrays(folder):
      return None
    size = sum(file.stat().st_size for file in folder.iterdir())
  except OSError:
    return None  # another process has removed it
  if leftover:
    return Entry(folder, "", size, age, "a killed run left it", True)
  try:
    about, fingerprint = array_cache.read_about(folder)
  except ValueError as error:
    # Not pruned: it may belong to another program.
    return Entry(folder, "", size, age, f"it cannot be used ({error})", False)
  source = str(about.get("root") or fingerprint.get("path") or "")
  # A source that has changed is read again, and its entry replaced.
  gone = bool(source) and not os.path.exists(source)
  return Entry(folder, source, size, age, "the source is gone" if gone else "", gone)


def _holds_arrays(folder: pathlib.Path) -> bool:
  """Return whether a folder holds only files that an entry may have."""
  return all(
    path.suffix in (".npy", ".json") and path.is_file() and not path.is_symlink()
    for path in folder.iterdir()
  )
