"""Records of the images in each shard, and how the images on disk differ from them now.

FOLDER holds the shards of one data set, and FOLDER/.jaxspeed their records:

    shards.json      the folder of all images, the number of shards requested, a digest of all names
    originals/SHARD  the shard's size in bytes, its images' folder below that of all images, and the
                     name, label, size and time of each image when it was read
    left_out.json    size and time of each image without a header, which is in no shard

Folders without shards.json were not written by `prepare shards` and are not checked.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxspeed.data.disk.copies import (
  AWAY,
  Difference,
  Facts,
  facts_at,
  originals_facts,
  records_folder,
  same,
)
from jaxspeed.data.formats.folders import EVAL_FOLDERS, list_folder
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json, write_atomically

# The version folder that TFDS's layout needs; `prepare shards` writes no other.
VERSION = "1.0.0"


@dataclasses.dataclass(frozen=True)
class Settings:
  """How shards are made: source, number requested (0: the default), digest of all names."""

  source: str
  shards: int
  names: str


@dataclasses.dataclass(frozen=True)
class ShardRecord:
  """The images that were packed into a shard.

  Attributes:
    bytes: size of the shard's file.
    folder: the images' folder below the source; '' is the source.
    names: CLASS/FILE of each image.
    labels: label of each image.
    facts: size and time of each image.
  """

  bytes: int
  folder: str
  names: tuple[str, ...]
  labels: tuple[int, ...]
  facts: tuple[Facts, ...]


def _own(folder: pathlib.Path, name: str) -> pathlib.Path:
  return folder / ".jaxspeed" / name


def read_settings(folder: pathlib.Path) -> Settings | None:
  """Return a folder's settings, or None where `prepare shards` did not write it.

  Raises:
    UserError: the settings are damaged.
  """
  path = _own(folder, "shards.json")
  try:
    # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
    stored = load_json(path)
    settings = Settings(stored["source"], int(stored["shards"]), str(stored["names"]))
    if not isinstance(settings.source, str) or settings.shards < 0:
      raise ValueError("it names no source, or less than no shards")
    return settings
  except (FileNotFoundError, NotADirectoryError):
    return None
  except (ValueError, KeyError, TypeError, OverflowError) as error:
    why = f" ({error})" if isinstance(error, ValueError) else ""
    raise UserError(
      f"{path} is damaged{why}: remove {folder} and make the shards again."
    ) from error


def write_settings(folder: pathlib.Path, settings: Settings) -> None:
  """Write the settings of a folder of shards.

  Raises:
    OSError: the settings cannot be written.
  """
  _write(_own(folder, "shards.json"), dataclasses.asdict(settings))


def read_record(folder: pathlib.Path, file: str) -> ShardRecord | None:
  """Return the record of a shard, or None where it is missing or damaged."""
  try:
    stored = load_json(records_folder(folder) / file)
    names, labels, lengths, times = zip(*stored["images"], strict=True)
    facts = tuple((int(size), int(time)) for size, time in zip(lengths, times, strict=True))
    labels = tuple(map(int, labels))
    return ShardRecord(
      int(stored["bytes"]), str(stored["folder"]), tuple(map(str, names)), labels, facts
    )
  except (OSError, ValueError, KeyError, TypeError):
    return None


def write_record(folder: pathlib.Path, file: str, record: ShardRecord) -> None:
  """Write the record of a shard.

  Raises:
    OSError: the record cannot be written.
  """
  images = [
    (name, label, *facts)
    for name, label, facts in zip(record.names, record.labels, record.facts, strict=True)
  ]
  content = {"bytes": record.bytes, "folder": record.folder, "images": images}
  _write(records_folder(folder) / file, content)


def write_left_out(folder: pathlib.Path, facts: Mapping[str, Facts]) -> None:
  """Write the list of images that are in no shard.

  Args:
    folder: the shards' folder.
    facts: size and time of each image, by its name below the source.

  Raises:
    OSError: the list cannot be written.
  """
  _write(_own(folder, "left_out.json"), dict(sorted(facts.items())))


def _read_left_out(folder: pathlib.Path) -> dict[str, Facts]:
  try:
    stored = load_json(_own(folder, "left_out.json"))
    return {str(name): (int(size), int(time)) for name, (size, time) in stored.items()}
  except (OSError, ValueError, TypeError, AttributeError):
    return {}


def _write(path: pathlib.Path, content: Any) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, dump_json(content), sync=False)


def mending(folder: pathlib.Path, settings: Settings) -> str:
  """Return the command that updates shards to their images.

  Args:
    folder: the shards' folder, NAME/VERSION.
    settings: the folder's settings.
  """
  words = [shlex.quote(settings.source), shlex.quote(str(folder.parent.parent))]
  words.append(f"--name={folder.parent.name}")
  words += [f"--shards={settings.shards}"] * bool(settings.shards)
  return f"python -m jaxspeed.prepare shards {' '.join(words)}"


def require_complete(root: pathlib.Path) -> None:
  """Refuse a folder of incomplete shards, which is no data set yet.

  Args:
    root: NAME/VERSION, or one of the two folders above it.

  Raises:
    UserError: `root` holds incomplete shards.
  """
  for folder in (root, root / VERSION, *sorted(root.glob(f"*/{VERSION}"))):
    if settings := read_settings(folder):
      raise UserError(
        f"{folder} holds shards that are not complete: run {mending(folder, settings)}, which "
        "resumes where it was."
      )


def shard_differences(
  folder: pathlib.Path, settings: Settings, files: Sequence[str], *, tune: bool
) -> Difference:
  """Return how the images on disk differ from those that the shards were packed from.

  Unchanged images without a header do not count.

  Args:
    folder: the shards' folder.
    settings: the folder's settings; its source exists.
    files: names of the shards.
    tune: whether to leave out the evaluation split.

  Raises:
    UserError: a shard has no record, or the size of an image cannot be read.
    OSError: a folder cannot be read.
  """
  found, source = Difference(), pathlib.Path(settings.source)
  left_out = _read_left_out(folder)
  packed = [np.array([_key(name) for name in left_out], np.int64)]
  records = []
  for file in files:
    if (record := read_record(folder, file)) is None:
      raise UserError(
        f"{records_folder(folder) / file} is missing or damaged: run {mending(folder, settings)}."
      )
    packed.append(np.array([_key(_below(record.folder, name)) for name in record.names], np.int64))
    if not (tune and record.folder in EVAL_FOLDERS):
      records.append(record)
  asked = originals_facts(source, ((record.folder, record.names) for record in records))
  for record, (_, facts) in zip(records, asked, strict=True):
    for name, before in zip(record.names, record.facts, strict=True):
      if facts[name] == AWAY:
        found.removed.append(_below(record.folder, name))
      elif not same(before, facts[name]):
        found.changed.append(_below(record.folder, name))
  known = np.sort(np.concatenate(packed))
  for below in dict.fromkeys(record.folder for record in records):
    found.new += _unknown(source, below, known)
  for name, before in left_out.items():
    if tune and name.partition("/")[0] in EVAL_FOLDERS:
      continue
    now = facts_at(str(source / name))
    if now != AWAY and not same(before, now):
      found.changed.append(name)
  # Shards hold their images in a pseudo-random order.
  return Difference(sorted(found.new), sorted(found.changed), sorted(found.removed))


def _unknown(source: pathlib.Path, folder: str, known: np.ndarray) -> list[str]:
  """Return the names of images in a folder of classes whose keys are not in `known`."""
  new: list[str] = []
  if not (source / folder).is_dir():
    return new  # all of its images are gone, and each is reported
  for name in list_folder(source / folder).folders:
    images = list_folder(source / folder / name).images
    names = [_below(folder, f"{name}/{image}") for image in images]
    keys = np.array([_key(each) for each in names], np.int64)
    new += [names[i] for i in np.flatnonzero(~np.isin(keys, known))]
  return new


def _below(folder: str, name: str) -> str:
  return f"{folder}/{name}" if folder else name


def _key(name: str) -> int:
  """Hash a name to 64 bits, for this process only; a million names collide once in 10^7 times."""
  return hash(name)
