"""Copies that follow their originals: which are to be made, and which have lost theirs."""

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

# A record of a class is written when that is done, and from time to time before: after a kill the
# copies that no record has are made again.
_SECONDS = 5.0
# Of a class of a million images the record takes 2 s to write: at most a 20th of the time.
_SHARE = 20


class Follower:
  """The folder of the copies of one size while these are made to fit their originals.

  A record never names a copy that is not whole: before copies of a class are made, its record is
  written without them, and the folder's mark and index are removed.

  Attributes:
    folder: of the copies.
    orphans: by SPLIT/CLASS the copies whose originals are gone and that are still there.
    pruned: the number of those that were removed.
    strangers: images among the copies that `prepare resize` did not write.
    unrecorded: the number of copies that no record has, which are made again.
  """

  def __init__(self, folder: pathlib.Path, source: pathlib.Path, quality: int) -> None:
    """Checks that the copies that may be there are of this quality.

    Args:
      folder: of the copies; it need not be there.
      source: the folder of the originals.
      quality: of the JPEGs.

    Raises:
      UserError: there are copies of another quality or source, or images that are no such copies.
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
    if self._stored is not None and self._stored.quality != quality:
      raise UserError(
        f"{folder} holds copies of quality {self._stored.quality}, not {quality}: write "
        f"--quality={self._stored.quality}, remove it, or name another folder."
      )
    before = self._stored.source if self._stored is not None else ""
    # Sizes and times tell images of one folder apart, not those of two; a moved folder is one.
    if os.path.isdir(before) and not os.path.samefile(before, source):
      raise UserError(
        f"{folder} holds copies of {before}, not of {source}: remove it, or name another folder."
      )
    if self._stored is None and any((folder / split).exists() for split in copies.SPLITS):
      raise UserError(
        f"{folder} holds images that prepare resize did not write: train on them as they are, or "
        "name another folder for the copies."
      )

  def begin(self) -> None:
    """Stores the settings, without which no copy is written."""
    for folder in (self.folder, self.folder / ".jaxspeed"):
      finished_files(folder)
    for split in copies.SPLITS:
      finished_files(copies.records_folder(self.folder) / split)
    if self._stored != self._settings:
      if self._stored is None:
        self._unmark()
      copies.write_settings(self.folder, self._settings)

  def plan(self, name: str, originals: Mapping[str, Facts]) -> set[str]:
    """The names of the originals of a class whose copies are to be made.

    Args:
      name: SPLIT/CLASS.
      originals: facts by name.
    """
    record = copies.read_record(self.folder, name)
    found = finished_files(self.folder / name)
    regular = _regular_files(self.folder / name)  # a link or a folder is no copy, and is replaced
    sound = {
      file: facts
      for file, facts in record.copies.items()
      if file in originals and file in regular and copies.same(facts, originals[file])
    }
    broken = {
      file: facts
      for file, facts in record.broken.items()
      if file in originals and copies.same(facts, originals[file])
    }
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
    """Finds the copies, and other images, of classes that have no originals.

    Args:
      names: SPLIT/CLASS of those that have.
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
          if not images:  # what a kill leaves of a class that was removed
            _remove_empty(self.folder / split / name)
          self.strangers += [f"{split}/{name}/{image}" for image in images]

  def prune(self) -> None:
    """Removes the copies whose originals are gone; never others, and nothing behind a link."""
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
    """Takes the facts of originals, as they were read, whose copies were made, or that are broken.

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
    """Writes the records that are not yet written, when the work ends early."""
    for name in list(self._made):
      with contextlib.suppress(OSError):
        self._write(name)

  def finish(self, splits: Sequence[str]) -> None:
    """Marks the copies as complete.

    Raises:
      OSError: the mark cannot be written.
    """
    images = {split: self._copies[split] for split in splits}
    copies.write_mark(self.folder, images, sum(map(len, self.orphans.values())))


def _regular_files(folder: pathlib.Path) -> set[str]:
  """Names of the files in a folder that are no links."""
  try:
    with os.scandir(folder) as entries:
      return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
  except (FileNotFoundError, NotADirectoryError):
    return set()


def _forget(copies_folder: pathlib.Path, name: str) -> None:
  """Removes the record of a class that has neither originals nor copies, and its empty folder."""
  path = copies.records_folder(copies_folder) / name
  path.unlink(missing_ok=True)
  for folder in (copies_folder / name, (copies_folder / name).parent, path.parent):
    _remove_empty(folder)


def _remove_empty(folder: pathlib.Path) -> None:
  with contextlib.suppress(OSError):
    folder.rmdir()


def _refuse_originals(folder: pathlib.Path, source: pathlib.Path, name: str) -> None:
  """Raises a UserError where a link would have copies written over originals."""
  with contextlib.suppress(FileNotFoundError):
    if os.path.samefile(folder, source / name):
      raise UserError(f"{folder} is the folder of the originals: remove that link and run again.")
  if (target := folder.resolve()).is_relative_to(source.resolve()):
    raise UserError(
      f"{folder} leads to {target}, among the originals: remove that link and run again."
    )


def remove_copy(path: pathlib.Path) -> bool:
  """Removes a file; False where there is a link or a folder, which is no copy of ours."""
  try:
    if not stat.S_ISREG(os.lstat(path).st_mode):
      return False
    path.unlink()
  except FileNotFoundError:
    pass
  return True
