"""Shards that follow their images: of what each was packed, and which are to be packed again.

FOLDER/.jaxspeed holds shards.json, the source and the number of shards asked for, and for each
shard originals/FILE: its bytes, and the names, labels, sizes and times of its images as they were
read.
"""

import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Mapping, Sequence

from jaxspeed.data.disk.copies import Facts, originals_facts, records_folder, same
from jaxspeed.data.disk.imageset import Split
from jaxspeed.data.prepare.following import remove_copy
from jaxspeed.data.prepare.index import remove_indices
from jaxspeed.data.prepare.writing import finished_files, write_whole
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json

_SETTINGS = "shards.json"
_INFO = "dataset_info.json"


@dataclasses.dataclass(frozen=True)
class Shard:
  """A shard to write.

  Attributes:
    path: of the file.
    folder: what `names` are relative to.
    names: CLASS/FILE of each image, as the shard holds it.
    labels: of the images.
  """

  path: str
  folder: str
  names: tuple[str, ...]
  labels: tuple[int, ...]


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
    """
    path = self._folder / ".jaxspeed" / _SETTINGS
    for each in (path.parent, records_folder(self._folder)):
      finished_files(each)
    settings = {"source": root, "shards": shards, "names": digest}
    try:
      # No type is asked for: pydantic refuses the escapes of bytes that are no UTF-8.
      stored = load_json(path)
      number, source = int(stored["shards"]), str(stored["source"])
      other = source != root and stored["names"] != digest
    except FileNotFoundError:
      path.parent.mkdir(parents=True, exist_ok=True)
      write_whole(path, [dump_json(settings).encode()])
      return
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"{path} is damaged, or of an older version ({error}): remove {self._folder} and run again."
      ) from error
    if other or number != shards:
      what = f"another number (--shards={number})" if not other else f"other images ({source})"
      raise UserError(f"{self._folder} holds shards of {what}: remove it, or name another --name.")
    if stored != settings:
      write_whole(path, [dump_json(settings).encode()])

  def outdated(self, shards: Sequence[Shard]) -> list[Shard]:
    """The shards to write: missing ones, and those whose images are others than when it was packed.

    Where there are any, the folder is no set until `dataset_info.json` is written again. Shards
    of before that the set has no more are removed.

    Raises:
      UserError: an image cannot be asked for.
    """
    found = finished_files(self._folder)
    asked = originals_facts(self._folder, ((each.folder, each.names) for each in shards))
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
    try:
      record = load_json(_record(shard))
      if record["bytes"] != os.path.getsize(shard.path):
        return False  # a copy of the folder was cut off, or the disk lost a part
      stored = record["images"]
      return [(name, label) for name, label, _, _ in stored] == list(
        zip(shard.names, shard.labels, strict=True)
      ) and all(same((size, time), facts[name]) for name, _, size, time in stored)
    except (OSError, ValueError, KeyError, TypeError):
      return False


def write_recorded(shard: Shard, facts: Sequence[Facts]) -> None:
  """Keeps the sizes and times of a shard's images, as they were read.

  Raises:
    OSError: the record cannot be written.
  """
  images = [
    (name, label, *fact) for name, label, fact in zip(shard.names, shard.labels, facts, strict=True)
  ]
  content = {"bytes": os.path.getsize(shard.path), "images": images}
  path = _record(shard)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_whole(path, [dump_json(content).encode()])


def forget(shard: Shard) -> None:
  """Removes the record of a shard, before that is written anew."""
  _record(shard).unlink(missing_ok=True)


def _record(shard: Shard) -> pathlib.Path:
  path = pathlib.Path(shard.path)
  return records_folder(path.parent) / path.name


def names_digest(splits: Mapping[str, Split]) -> str:
  """A digest of the names of all images below their root."""
  digest = hashlib.sha256()
  for split in splits.values():
    names = (os.path.relpath(file, split.root) for file in split.files)
    digest.update(os.fsencode("\0".join(names) + "\0\0"))
  return digest.hexdigest()
