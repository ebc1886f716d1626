"""Updates of resized copies to their originals: copies to make, and copies without originals."""

import collections
import contextlib
import os
import pathlib
import stat
import time
from collections.abc import Mapping, Sequence

from jaxspeed.data.disk import copies
from jaxspeed.data.disk.copies import Facts, Record, Settings
from jaxspeed.data.formats.folders import list_folder
from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.data.prepare.index import remove_indices
from jaxspeed.data.prepare.writing import finished_files
from jaxspeed.errors import UserError

# A class's record is written every few seconds and at its end; after a kill, copies without a
# record are made again.
_SECONDS = 5.0
# The record of a million images takes 2 s to write: spend at most a 20th of the time on it.
_SHARE = 20


class Follower:
  """A folder of copies of one size that is updated to its originals.

  A record names complete copies only: before copies of a class are made, they are removed from its
  record, and the folder's mark and index are removed.

  Attributes:
    folder: the copies' folder.
    orphans: remaining copies without originals, by SPLIT/CLASS.
    pruned: number of removed copies without originals.
    strangers: images in the folder that `prepare resize` did not write.
    unrecorded: number of copies without a record, which are made again.
  """

  def __init__(self, folder: pathlib.Path, source: pathlib.Path, quality: int) -> None:
    """Check that existing copies have this quality and source.

    Args:
      folder: the copies' folder, which may be missing.
      source: the originals' folder.
      quality: quality of the JPEGs.

    Raises:
      UserError: the folder holds copies of another quality or source, or other images.
    """
    self.folder = folder
    self.orphans: dict[str, list[str]] = {}
    self.pruned = 0
    self.strangers: list[str] = []
    self.unrecorded = 0
    self._source, self._settings = source, Settings(quality, str(source.absolute()))
    self._stored = copies.read_settings(folder)
    self._copies: collections.Counter[str] = collections.Counter()
    self._left: dict[str, int] = {}
    self._made: dict[str, tuple[dict[str, Facts], dict[str, Facts]]] = {}
    self._due: dict[str, float] = {}
    self._marked = True
    _refuse_other(folder, source, quality, self._stored)

  def begin(self) -> None:
    """Store the settings, before any copy is written."""
    for folder in (self.folder, self.folder / ".jaxspeed"):
      finished_files(folder)
    for split in copies.SPLITS:
      finished_files(copies.records_folder(self.folder) / split)
    if self._stored != self._settings:
      if self._stored is None:
        self._unmark()
      copies.write_settings(self.folder, self._settings)

  def plan(self, name: str, originals: Mapping[str, Facts]) -> set[str]:
    """Return the names of a class's originals that need a new copy.

    Args:
      name: the class, SPLIT/CLASS.
      originals: facts of the class's originals, by name.
    """
    record = copies.read_record(self.folder, name)
    found = finished_files(self.folder / name)
    regular = _regular_files(self.folder / name)  # links and folders are replaced by copies
    unchanged = _unchanged(record.copies, originals)
    sound = {file: facts for file, facts in unchanged.items() if file in regular}
    broken = _unchanged(record.broken, originals)
    missing = originals.keys() - sound.keys()
    orphans = (record.names & found) - originals.keys()
    images = {each for each in found if each.lower().endswith(SUFFIXES) and each[0] != "."}
    self.strangers += sorted(f"{name}/{each}" for each in images - originals.keys() - orphans)
    self.unrecorded += len((missing & found) - record.names - record.broken.keys())
    self._copies[name.partition("/")[0]] += len(sound)
    if orphans:
      self.orphans[name] = sorted(orphans)
    elif not originals:
      _forget(self.folder, name)
      return set()
    before = Record(
      copies=sound | {file: record.copies.get(file, copies.AWAY) for file in orphans},
      broken=broken,
      pending=missing - broken.keys(),
    )
    if before != record:
      self._unmark()
      copies.write_record(self.folder, name, before)
    if missing:
      _refuse_originals(self.folder / name, self._source, name)
      (self.folder / name).mkdir(parents=True, exist_ok=True)
      self._left[name] = len(missing)
      self._due[name] = time.monotonic() + _SECONDS
    return missing

  def plan_others(self, names: Sequence[str]) -> None:
    """Find copies and other images of classes without originals.

    Args:
      names: SPLIT/CLASS of the classes with originals.
    """
    for name in copies.recorded_classes(self.folder):
      if name not in names:
        self.plan(name, {})
    for split in copies.SPLITS:
      if not (self.folder / split).is_dir():
        continue
      for name in list_folder(self.folder / split).folders:
        if f"{split}/{name}" not in names and f"{split}/{name}" not in self.orphans:
          images = list_folder(self.folder / split / name).images
          if not images:  # left by a kill while the class was removed
            _remove_empty(self.folder / split / name)
          self.strangers += [f"{split}/{name}/{image}" for image in images]

  def prune(self) -> None:
    """Remove the copies without originals; never other files, and nothing behind a link."""
    for name, files in list(self.orphans.items()):
      split = name.partition("/")[0]
      if (self.folder / split).is_symlink() or (self.folder / name).is_symlink():
        continue
      self._unmark()
      gone = {file for file in files if remove_copy(self.folder / name / file)}
      record = copies.read_record(self.folder, name)
      record.copies = {file: facts for file, facts in record.copies.items() if file not in gone}
      copies.write_record(self.folder, name, record)
      self.pruned += len(gone)
      self.orphans[name] = [file for file in files if file not in gone]
      if not self.orphans[name]:
        del self.orphans[name]
        if not (record.names or record.broken):
          _forget(self.folder, name)

  def _unmark(self) -> None:
    if self._marked:
      copies.remove_mark(self.folder)
      remove_indices(self.folder)
      self._marked = False

  def add(self, name: str, made: Mapping[str, Facts], broken: Mapping[str, Facts]) -> None:
    """Record facts of originals whose copies were made (`made`), or that are broken.

    Raises:
      OSError: a record cannot be written.
    """
    if not made and not broken:
      return
    all_made, all_broken = self._made.setdefault(name, ({}, {}))
    all_made.update(made)
    all_broken.update(broken)
    self._copies[name.partition("/")[0]] += len(made)
    self._left[name] -= len(made) + len(broken)
    if not self._left[name] or time.monotonic() > self._due[name]:
      self._write(name)

  def _write(self, name: str) -> None:
    began = time.monotonic()
    made, broken = self._made.pop(name)
    record = copies.read_record(self.folder, name)
    kept = {file: facts for file, facts in record.broken.items() if file not in made}
    copies.write_record(
      self.folder,
      name,
      Record(
        copies={k: v for k, v in record.copies.items() if k not in broken} | made,
        broken=kept | broken,
        pending=record.pending - made.keys() - broken.keys(),
      ),
    )
    now = time.monotonic()
    self._due[name] = now + max(_SECONDS, _SHARE * (now - began))

  def flush(self) -> None:
    """Write the remaining records, when the work ends early."""
    for name in list(self._made):
      with contextlib.suppress(OSError):
        self._write(name)

  def finish(self, splits: Sequence[str]) -> None:
    """Mark the copies as complete.

    Raises:
      OSError: the mark cannot be written.
    """
    images = {split: self._copies[split] for split in splits}
    copies.write_mark(self.folder, images, sum(map(len, self.orphans.values())))


def _unchanged(recorded: Mapping[str, Facts], originals: Mapping[str, Facts]) -> dict[str, Facts]:
  return {
    file: facts
    for file, facts in recorded.items()
    if file in originals and copies.same(facts, originals[file])
  }


def _regular_files(folder: pathlib.Path) -> set[str]:
  """Return the names of the files in a folder that are not links."""
  try:
    with os.scandir(folder) as entries:
      return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
  except (FileNotFoundError, NotADirectoryError):
    return set()


def _refuse_other(
  folder: pathlib.Path, source: pathlib.Path, quality: int, stored: Settings | None
) -> None:
  """Raise a UserError where a folder holds other images than copies of `source` and `quality`."""
  if stored is not None and stored.quality != quality:
    raise UserError(
      f"{folder} holds copies of quality {stored.quality}, not {quality}: write "
      f"--quality={stored.quality}, remove it, or name another folder."
    )
  before = stored.source if stored is not None else ""
  # Sizes and times cannot tell two folders' images apart; a folder that was moved is the same.
  if os.path.isdir(before) and not os.path.samefile(before, source):
    raise UserError(
      f"{folder} holds copies of {before}, not of {source}: remove it, or name another folder."
    )
  if stored is None and any((folder / split).exists() for split in copies.SPLITS):
    raise UserError(
      f"{folder} holds images that prepare resize did not write: train on them as they are, or "
      "name another folder for the copies."
    )


def _forget(copies_folder: pathlib.Path, name: str) -> None:
  """Remove the record and the empty folder of a class that has neither originals nor copies."""
  path = copies.records_folder(copies_folder) / name
  path.unlink(missing_ok=True)
  for folder in (copies_folder / name, (copies_folder / name).parent, path.parent):
    _remove_empty(folder)


def _remove_empty(folder: pathlib.Path) -> None:
  with contextlib.suppress(OSError):
    folder.rmdir()


def _refuse_originals(folder: pathlib.Path, source: pathlib.Path, name: str) -> None:
  """Raise a UserError where a link would let copies overwrite originals."""
  with contextlib.suppress(FileNotFoundError):
    if os.path.samefile(folder, source / name):
      raise UserError(f"{folder} is the folder of the originals: remove that link and run again.")
  if (target := folder.resolve()).is_relative_to(source.resolve()):
    raise UserError(
      f"{folder} leads to {target}, among the originals: remove that link and run again."
    )


def remove_copy(path: pathlib.Path) -> bool:
  """Remove a file; return False for a link or a folder, which `resize` never writes."""
  try:
    if not stat.S_ISREG(os.lstat(path).st_mode):
      return False
    path.unlink()
  except FileNotFoundError:
    pass
  return True
