"""A reader of data sets that TensorFlow Datasets (TFDS) prepared, without TensorFlow.

    info = open_tfds(folder)  # .../cifar10/3.0.2, which holds dataset_info.json
    images, labels = read_shards(info, info.train)

A shard is a sequence of TFRecord frames, each a serialized tf.train.Example. The formats are those
of TensorFlow's tsl/lib/io/record_writer.h and tensorflow/core/example/{example,feature}.proto, and
of TFDS 4.9's core/splits.py and core/naming.py (names of shards).
"""

import dataclasses
import pathlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.formats.protobuf import masked_checksum
from jaxspeed.errors import UserError
from jaxspeed.files import open_regular, parse_json, read_bytes

_MOST_RECORDS = 10**12  # in a shard
# TFDS's name of the feature in imagenet2012, its subsets and the shards of `prepare shards`.
FILE_NAME = "file_name"


@dataclasses.dataclass(frozen=True)
class Shard:
  """A file of TFRecords, and its number of records according to dataset_info.json."""

  path: pathlib.Path
  records: int


@dataclasses.dataclass(frozen=True)
class TfdsInfo:
  """Content of dataset_info.json and label.labels.txt; class_names is () without names."""

  name: str
  folder: pathlib.Path
  train: tuple[Shard, ...]
  eval: tuple[Shard, ...]
  eval_split: str
  image_key: str
  label_key: str
  class_names: tuple[str, ...]


def find_tfds(path: pathlib.Path, name: str) -> pathlib.Path | None:
  """Return the newest version of a data set, or None.

  Args:
    path: the folder of a version, of a data set, or of several (TFDS's data_dir).
    name: the data set, of several; another one that is alone in a data_dir is found too.

  Raises:
    UserError: there are several, none of this name.
  """
  for folder in (path, path / name):
    if (folder / "dataset_info.json").is_file():
      return folder
    versions = [info.parent for info in folder.glob("*/dataset_info.json")]
    versions = [each for each in versions if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", each.name)]
    if versions:
      return max(versions, key=lambda each: tuple(map(int, each.name.split("."))))
  sets = sorted({info.parent.parent for info in path.glob("*/*/dataset_info.json")})
  if len(sets) > 1:
    raise UserError(
      f"{path} holds {len(sets)} data sets ({', '.join(each.name for each in sets[:5])}): name the "
      "folder of one of them."
    )
  return find_tfds(sets[0], name) if sets else None


def open_tfds(folder: pathlib.Path, *, tune: bool = False) -> TfdsInfo:
  """Read dataset_info.json of one version's folder.

  Args:
    folder: the version's folder.
    tune: whether the evaluation split may be missing.

  Raises:
    UserError: the JSON is damaged, the format is not TFRecord, or a split is missing.
  """
  path = folder / "dataset_info.json"
  try:
    info = parse_json(read_bytes(path))
    name, file_format = info["name"], info.get("fileFormat", "tfrecord")
    shards = {split["name"]: _shards(folder, name, split) for split in info.get("splits", ())}
    items = info.get("supervisedKeys", {}).get("tuple", {}).get("items", ())
    keys = [item["featureKey"] for item in items] or ["image", "label"]
    image_key, label_key = keys
    names = folder / f"{label_key}.labels.txt"
    class_names = names.read_text(encoding="utf-8").split("\n") if names.is_file() else []
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise UserError(
      f"{path} cannot be read as TFDS writes it ({type(error).__name__}: {error}): "
      "prepare the data set again."
    ) from error
  if file_format != "tfrecord":
    raise UserError(
      f"{folder} is stored as {file_format}, and only tfrecord is read here: prepare it again with "
      f"tfds.builder({name!r}, file_format='tfrecord', data_dir=ANOTHER_FOLDER)"
      ".download_and_prepare()."
    )
  eval_split = next((split for split in EVAL_FOLDERS if split in shards), "")
  if not (shards.get("train") and (tune or shards.get(eval_split))):
    raise UserError(
      f"{path} names the splits {sorted(shards)}, but training needs 'train' and one of "
      f"{list(EVAL_FOLDERS)}."
    )
  return TfdsInfo(
    name=name,
    folder=folder,
    train=shards["train"],
    eval=shards.get(eval_split, ()),
    eval_split=eval_split,
    image_key=image_key,
    label_key=label_key,
    class_names=tuple(each.strip() for each in class_names if each.strip()),
  )


def _shards(folder: pathlib.Path, name: str, split: dict[str, Any]) -> tuple[Shard, ...]:
  """Return the shards in one entry of dataset_info.json's "splits", without empty ones."""
  lengths = [int(length) for length in split.get("shardLengths", ())]
  if any(not 0 <= length < _MOST_RECORDS for length in lengths):
    raise ValueError(f"shardLengths of {split['name']} are not from 0 to {_MOST_RECORDS:,}")
  digits = max(5, len(str(len(lengths))))
  shards = []
  for index, length in enumerate(lengths):
    x, y = f"{index:0{digits}d}", f"{len(lengths):0{digits}d}"
    file = split["filepathTemplate"]
    for variable, value in {
      "DATASET": name,
      "SPLIT": split["name"],
      "FILEFORMAT": "tfrecord",
      "SHARD_X_OF_Y": f"{x}-of-{y}",
      "SHARD_INDEX": x,
      "NUM_SHARDS": y,
    }.items():
      file = file.replace(f"{{{variable}}}", value)
    if length:
      shards.append(Shard(folder / file, length))
  return tuple(shards)


def read_shards(
  info: TfdsInfo, shards: Sequence[Shard]
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"]]:
  """Return all images and labels of `shards`, in stored order.

  Both checksums of every record are verified. Grey images are repeated to three channels.

  Raises:
    UserError: a shard is cut off or damaged, or its images differ in size.
    OSError: a shard is missing or cannot be read.
  """
  images: list[UInt8[np.ndarray, "h w 3"]] = []
  labels: list[int] = []
  for shard in shards:
    with open_regular(shard.path) as file:
      content = np.fromfile(file, np.uint8)
    for example in read_examples(
      content, shard.path, info.image_key, info.label_key, shard.records
    ):
      try:
        images.append(pixels.decode(example.image))
      except Exception as error:  # Pillow raises almost anything
        reason = pixels.reason_of(error)
        raise UserError(f"{shard.path}: an image cannot be decoded: {reason}") from error
      if images[-1].shape != images[0].shape:
        (h, w), (i, j) = images[-1].shape[:2], images[0].shape[:2]
        raise UserError(
          f"{shard.path}: an image is {h} x {w} pixels and the first one {i} x {j}; data in memory "
          "need one size."
        )
      labels.append(example.label)
  # Clipped, not wrapped: a label too large for int32 must not become a valid one.
  int32 = np.iinfo(np.int32)
  return np.stack(images), np.clip(labels, int32.min, int32.max).astype(np.int32)


def read_records(
  content: UInt8[np.ndarray, "bytes"], path: object, *, verify: bool = True
) -> list[memoryview]:
  """Split a file of TFRecords: length (8 bytes), its checksum (4), data, its checksum (4).

  Args:
    content: the file.
    path: its name, for messages.
    verify: whether to read the data, too, and to verify their checksums.

  Raises:
    UserError: a record is cut off or does not fit its checksums; the message names the first one.
  """
  view, position = content.data, 0
  records: list[memoryview] = []
  while position + 12 <= len(view):
    _check(view, position, 8, path, len(records))
    start = position + 12
    (length,) = struct.unpack_from("<Q", view, position)
    position = start + length + 4
    if position <= len(view):
      if verify:
        _check(view, start, length, path, len(records))
      records.append(view[start : start + length])
  if position != len(view):
    raise UserError(
      f"{path} ends in the middle of record {len(records)}, at byte {len(view)}: it was cut off; "
      "remove it, and copy it or prepare the data set again."
    )
  return records


def _check(view: memoryview, begin: int, size: int, path: object, record: int) -> None:
  """Compare the checksum of some bytes with the four bytes after them."""
  (stored,) = struct.unpack_from("<I", view, begin + size)
  if masked_checksum(view[begin : begin + size]) != stored:
    raise UserError(
      f"{path} is damaged: record {record} does not fit its checksum; remove it, "
      "and copy it or prepare the data set again."
    )


class Example(NamedTuple):
  """An encoded image, its label, and the name of its original file; b"" if unknown."""

  image: memoryview
  label: int
  name: bytes


def read_examples(
  content: UInt8[np.ndarray, "bytes"],
  path: object,
  image_key: str,
  label_key: str,
  records: int,
  *,
  verify: bool = True,
) -> Iterator[Example]:
  """Yield the examples of a shard.

  Args:
    content, path, verify: as in `read_records`.
    image_key, label_key: names of the features.
    records: their number according to dataset_info.json.

  Raises:
    UserError: as `read_records`; or it does not hold so many labelled images.
  """
  found = read_records(content, path, verify=verify)
  if len(found) != records:
    raise UserError(
      f"{path} holds {len(found)} records and dataset_info.json promises {records}: prepare the "
      "data set again."
    )
  for number, record in enumerate(found):
    try:
      example = parse_example(record, image_key, label_key)
    except (ValueError, IndexError) as error:
      raise UserError(f"{path}: record {number} is not a labelled image: {error}") from error
    yield example


def parse_example(record: memoryview, image_key: str, label_key: str) -> Example:
  """Parse a serialized tf.train.Example; the image is a view of `record`.

  Raises:
    ValueError, IndexError: it is not an Example, or lacks the image or the label.
  """
  features = {
    b"".join(_submessages(entry, 1)).decode(): feature
    for entry in _submessages(record, 1, 1)
    for feature in _submessages(entry, 2)
  }
  nothing = memoryview(b"")
  image, name = (
    next(_submessages(features.get(key, nothing), 1, 1), None) for key in (image_key, FILE_NAME)
  )
  lists = _submessages(features.get(label_key, nothing), 3)
  label = next((value for each in lists for value in _integers(each)), None)
  if image is None or label is None:
    missing = image_key if image is None else label_key
    raise ValueError(f"it has no feature {missing!r} of the right type")
  return Example(image, label, bytes(name or b""))


def _submessages(message: memoryview, number: int, *inner: int) -> Iterator[memoryview]:
  """Yield the fields of bytes with a number, or those with the next number inside each of them."""
  for field, value in _fields(message):
    if field == number and isinstance(value, memoryview):
      if inner:
        yield from _submessages(value, *inner)
      else:
        yield value


def _integers(int64_list: memoryview) -> Iterator[int]:
  """Yield the values of an Int64List, packed or not; negative ones are two's complement."""
  for field, value in _fields(int64_list):
    if field == 1 and isinstance(value, memoryview):
      position = 0
      while position < len(value):
        unsigned, position = _varint(value, position)
        yield unsigned - (unsigned >> 63 << 64)
    elif field == 1 and isinstance(value, int):
      yield value - (value >> 63 << 64)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
  """Yield (field number, value) of a protocol buffer: an int for a varint, else the bytes."""
  position = 0
  while position < len(message):
    tag, position = _varint(message, position)
    wire_type = tag & 7
    if wire_type == 0:
      value, position = _varint(message, position)
      yield tag >> 3, value
      continue
    if wire_type == 2:
      length, position = _varint(message, position)
    elif wire_type in (1, 5):
      length = 8 if wire_type == 1 else 4
    else:
      raise ValueError(f"wire type {wire_type} at byte {position}")
    if position + length > len(message):
      raise ValueError(f"a field of {length} bytes at byte {position} of {len(message)}")
    yield tag >> 3, message[position : position + length]
    position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
  """Return the base-128 integer at `position`, low groups first, and the position after it."""
  value = 0
  for shift in range(0, 70, 7):
    byte = message[position]
    position += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, position
  raise ValueError(f"an integer of more than ten bytes at byte {position}")
