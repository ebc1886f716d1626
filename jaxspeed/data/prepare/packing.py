"""Shards that follow their images: which are to be packed again, by `data.disk.shard_records`."""

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
    path: of the file.
    source: the folder of all images.
    folder: of this shard's images, below the source; '' is the source.
    names: CLASS/FILE of each image, as the shard holds it.
    labels: of the images.
  """

  path: str
  source: str
  folder: str
  names: tuple[str, ...]
  labels: tuple[int, ...]

  def file(self, name: str) -> str:
    """The file of an image."""
    return os.path.join(self.source, self.folder, name)


class PackedFolder:
  """A folder of shards while they are made to fit their images; nobody else writes to it."""

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = folder

  def keep_settings(self, root: str, shards: int, digest: str) -> None:
    """Keeps the shards of one folder to one source and number.

    Args:
      root: of the source.
      shards: the number asked for.
      digest: of the names of the images: a source that was moved keeps them.

    Raises:
      UserError: the folder holds shards of other images, or of another number.
      OSError: a source cannot be asked for.
    """
    for each in (self._folder / ".jaxspeed", records_folder(self._folder)):
      finished_files(each)
    settings = Settings(root, shards, digest)
    stored = read_settings(self._folder)
    if stored is not None:
      # Sizes and times tell images of one folder apart, not those of two; a moved folder is one.
      there = os.path.isdir(stored.source) and not os.path.samefile(stored.source, root)
      other = stored.source != root and (there or stored.names != digest)
      if other or stored.shards != shards:
        number = f"another number (--shards={stored.shards})"
        what = f"other images ({stored.source})" if other else number
        raise UserError(
          f"{self._folder} holds shards of {what}: remove it, or name another --name."
        )
    if stored != settings:
      write_settings(self._folder, settings)

  def keep_left_out(self, source: str, names: Sequence[str]) -> None:
    """Stores which images are in no shard.

    Args:
      source: the folder of all images.
      names: of the images, below the source.
    """
    write_left_out(self._folder, {name: facts_at(os.path.join(source, name)) for name in names})

  def outdated(self, shards: Sequence[Shard]) -> list[Shard]:
    """The shards to write: missing ones, and those whose images are others than when it was packed.

    Where there are any, the folder is no set until `dataset_info.json` is written again. Shards
    of before that the set has no more are removed.

    Raises:
      UserError: an image cannot be asked for.
    """
    found = finished_files(self._folder)
    asked = originals_facts(
      pathlib.Path(shards[0].source), ((each.folder, each.names) for each in shards)
    )
    outdated = [
      shard
      for shard, (_, facts) in zip(shards, asked, strict=True)
      if os.path.basename(shard.path) not in found or not self._fits(shard, facts)
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
      return False  # a copy of the folder was cut off, or the disk lost a part
    content = (record.folder, record.names, record.labels)
    return content == (shard.folder, shard.names, shard.labels) and all(
      same(before, facts[name]) for name, before in zip(record.names, record.facts, strict=True)
    )


def write_recorded(shard: Shard, facts: Sequence[Facts]) -> None:
  """Keeps the sizes and times of a shard's images, as they were read.

  Raises:
    OSError: the record cannot be written.
  """
  path = pathlib.Path(shard.path)
  size = os.path.getsize(path)
  record = ShardRecord(size, shard.folder, shard.names, shard.labels, tuple(facts))
  write_record(path.parent, path.name, record)


def forget(shard: Shard) -> None:
  """Removes the record of a shard, before that is written anew."""
  path = pathlib.Path(shard.path)
  (records_folder(path.parent) / path.name).unlink(missing_ok=True)


def names_digest(splits: Mapping[str, Split]) -> str:
  """A digest of the names of all images below their root."""
  digest = hashlib.sha256()
  for split in splits.values():
    names = (os.path.relpath(file, split.root) for file in split.files)
    digest.update(os.fsencode("\0".join(names) + "\0\0"))
  return digest.hexdigest()
