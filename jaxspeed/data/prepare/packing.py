"""Updates of shards to their images, decided by `data.disk.shard_records`."""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence

from jaxspeed.data.disk.copies import Facts, facts_at, originals_facts, records_folder, same
from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.disk.shard_records import (
  Settings,
  ShardRecord,
  read_record,
  read_settings,
  write_left_out,
  write_record,
  write_settings,
)
from jaxspeed.data.prepare.following import remove_copy
from jaxspeed.data.prepare.index import remove_indices
from jaxspeed.data.prepare.writing import finished_files
from jaxspeed.errors import UserError

_INFO = "dataset_info.json"


@dataclasses.dataclass(frozen=True)
class Shard:
  """A shard to write.

  Attributes:
    path: the shard's file.
    source: the folder of all images.
    folder: the folder of this shard's images below the source; '' is the source.
    names: CLASS/FILE of each image, in the shard's order.
    labels: label of each image.
  """

  path: str
  source: str
  folder: str
  names: tuple[str, ...]
  labels: tuple[int, ...]

  def file(self, name: str) -> str:
    """Return the file of an image."""
    return os.path.join(self.source, self.folder, name)


class PackedFolder:
  """A folder of shards that is updated to its images, and locked meanwhile."""

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder

  def keep_settings(self, root: str, shards: int, digest: str) -> None:
    """Store the source `root` and the number of the shards, which must not change in a folder.

    The digest of the images' names stays the same when the source is moved.

    Raises:
      UserError: the folder holds shards of other images, or another number of shards.
      OSError: the folder of a source cannot be read.
    """
    for each in (self._folder / ".jaxspeed", records_folder(self._folder)):
      finished_files(each)
    settings = Settings(root, shards, digest)
    stored = read_settings(self._folder)
    if stored is not None:
      # Sizes and times cannot tell folders' images apart. If the old folder is gone and the names
      # are the same, it was moved.
      there = os.path.isdir(stored.source) and not os.path.samefile(stored.source, root)
      other = stored.source != root and (there or stored.names != digest)
      if other or stored.shards != shards:
        number = f"another number (--shards={stored.shards})"
        what = f"other images ({stored.source})" if other else number
        advice = "remove it, or name another --name"
        raise UserError(f"{self._folder} holds shards of {what}: {advice}.")
    if stored != settings:
      write_settings(self._folder, settings)

  def keep_left_out(self, source: str, names: Sequence[str]) -> None:
    """Store which images are in no shard.

    Args:
      source: the folder of all images.
      names: names of these images below the source.
    """
    write_left_out(self._folder, {name: facts_at(os.path.join(source, name)) for name in names})

  def outdated(self, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards to write: missing ones, and those whose images have changed.

    Superfluous shards are removed, and so is `dataset_info.json` unless all shards are current.

    Raises:
      UserError: the size and time of an image cannot be read.
    """
    found = finished_files(self._folder)
    classes = ((each.folder, each.names) for each in shards)
    facts = originals_facts(pathlib.Path(shards[0].source), classes)
    outdated = [
      shard
      for shard, (_, now) in zip(shards, facts, strict=True)
      if os.path.basename(shard.path) not in found or not self._fits(shard, now)
    ]
    names = {os.path.basename(shard.path) for shard in shards}
    others = finished_files(records_folder(self._folder)) - names
    if outdated or others:
      (self._folder / _INFO).unlink(missing_ok=True)
      remove_indices(self._folder)
    for name in others:
      remove_copy(self._folder / name)
      (records_folder(self._folder) / name).unlink()
    return outdated

  def _fits(self, shard: Shard, facts: Mapping[str, Facts]) -> bool:
    record = read_record(self._folder, os.path.basename(shard.path))
    if record is None or record.bytes != os.path.getsize(shard.path):
      return False  # a copy of the folder was interrupted, or the disk lost a part
    content = (record.folder, record.names, record.labels)
    return content == (shard.folder, shard.names, shard.labels) and all(
      same(before, facts[name]) for name, before in zip(record.names, record.facts, strict=True)
    )


def write_recorded(shard: Shard, facts: Sequence[Facts]) -> None:
  """Record the sizes and times of a shard's images when they were read.

  Raises:
    OSError: the record cannot be written.
  """
  path = pathlib.Path(shard.path)
  size = os.path.getsize(path)
  record = ShardRecord(size, shard.folder, shard.names, shard.labels, tuple(facts))
  write_record(path.parent, path.name, record)


def forget(shard: Shard) -> None:
  """Remove the record of a shard before the shard is written again."""
  path = pathlib.Path(shard.path)
  (records_folder(path.parent) / path.name).unlink(missing_ok=True)


def names_digest(splits: Mapping[str, Split]) -> str:
  """Return a digest of the names of all images below their root."""
  digest = hashlib.sha256()
  for split in splits.values():
    names = (os.path.relpath(file, split.root) for file in split.files)
    digest.update(os.fsencode("\0".join(names) + "\0\0"))
  return digest.hexdigest()
