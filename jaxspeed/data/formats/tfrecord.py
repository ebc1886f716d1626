"""A reader of data sets that TensorFlow Datasets (TFDS) prepared, without TensorFlow; downloads.

    images, labels = read_shards(list_tfds(folder))  # .../cifar10/3.0.2

A shard is a sequence of TFRecord frames, each a serialized tf.train.Example. The formats are those
of TensorFlow's tsl/lib/io/record_writer.h and tensorflow/core/example/{example,feature}.proto, and
of TFDS 4.9's core/splits.py and core/naming.py (names of shards).
"""

import contextlib
import contextvars
import functools
import glob
import importlib
import logging
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from jaxtyping import Int32, UInt8

from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.folders import choose_splits
from jaxspeed.data.formats.protobuf import masked_checksum
from jaxspeed.data.remote import INFO
from jaxspeed.data.table import Names, Table
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import expanded, open_regular, parse_json, read_bytes

_log = logging.getLogger("jaxspeed")

_may_download = contextvars.ContextVar("may_download", default=True)
_MOST_RECORDS = 10**8  # in a split
_INT32 = np.iinfo(np.int32)
# tf.train.Example, without its lists of floats, which are skipped.
_EXAMPLE = """
name: "example.proto" package: "x" syntax: "proto3"
message_type { name: "Bytes"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Integers"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type_name: ".x.Bytes" }
  field { name: "int64_list" number: 3 type_name: ".x.Integers" } }
message_type { name: "Entry"
  field { name: "key" number: 1 type: TYPE_STRING }
  field { name: "value" number: 2 type_name: ".x.Feature" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".x.Entry" } }
message_type { name: "Example" field { name: "features" number: 1 type_name: ".x.Features" } }
"""
# TFDS's name of the feature in imagenet2012, its subsets and the shards of `prepare shards`.
FILE_NAME = "file_name"
# Bytes of a record beside its data: length and checksum before, checksum after.
_FRAME_BEGIN, _FRAME = 12, 16


def find_tfds(path: pathlib.Path, name: str) -> pathlib.Path | None:
  """Return the newest version of a data set, or None.

  Args:
    path: the folder of a version, of a data set, or of several (TFDS's data_dir).
    name: the data set, of several; another one that is alone in a data_dir is found too.

  Raises:
    UserError: there are several, none of this name.
  """
  if (path / INFO).is_file():
    return path
  for pattern in ("*", f"{glob.escape(name or '*')}/*", "*/*"):
    versions = [info.parent for info in path.glob(f"{pattern}/{INFO}")]
    versions = [each for each in versions if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", each.name)]
    sets = sorted({each.parent.name for each in versions})
    if len(sets) > 1:
      raise UserError(
        f"{path} holds {len(sets)} data sets ({some(sets, 5)}): name the folder of one of them."
      )
    if versions:
      return max(versions, key=lambda each: tuple(map(int, each.name.split("."))))
  return None


@contextlib.contextmanager
def no_downloads() -> Iterator[None]:
  """A block in which data sets are only looked for: a stranger's config may name them."""
  before = _may_download.set(False)
  try:
    yield
  finally:
    _may_download.reset(before)


def prepare_with_tfds(name: str, accepted: str) -> pathlib.Path:
  """Return the folder of the version of `name` in TFDS_DATA_DIR; let TFDS prepare it if needed.

  Raises:
    UserError: TFDS is missing or failed, or a download is needed in a block of `no_downloads`; the
      message says what config.data.path accepts (`accepted`).
  """
  root = expanded(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets"), "TFDS_DATA_DIR")
  if found := find_tfds(root / name.replace(":", "/"), ""):
    return found
  if not _may_download.get():
    raise UserError(
      f"config.data.path is not set, no {name} is in {root}, and evaluate downloads nothing: name "
      f"{accepted}."
    )
  _log.info("config.data.path is not set: TensorFlow Datasets prepares %s", name)
  try:
    tfds = importlib.import_module("tensorflow_datasets")
    builder = tfds.builder(name, file_format="tfrecord")
    builder.download_and_prepare()
    return pathlib.Path(builder.data_dir)
  # Builders raise whatever their network, file system and TensorFlow raise.
  except Exception as error:
    reason = next(iter(str(error).splitlines()), "")
    raise UserError(
      f"config.data.path is not set, and TFDS (pip install 'jaxspeed[images]') could not prepare "
      f"{name} ({type(error).__name__}: {reason}): name {accepted}."
    ) from error


def list_tfds(folder: pathlib.Path, *, evaluation: bool | None = True) -> Table:
  """List the shards that dataset_info.json of one version's folder names.

  Args:
    folder: the version's folder.
    evaluation: whether to list the evaluation split; None: if there is one.

  Returns:
    A table whose labels are in the shards; class_names is () where they have no names.

  Raises:
    UserError: the JSON is damaged, the format is not TFRecord, or a split is missing.
  """
  path = folder / INFO
  try:
    info = parse_json(read_bytes(path))
    name, file_format = info["name"], info.get("fileFormat", "tfrecord")
    shards = {split["name"]: _shards(name, split) for split in info.get("splits", ())}
    items = info.get("supervisedKeys", {}).get("tuple", {}).get("items", ())
    keys = [str(item["featureKey"]) for item in items] or ["image", "label"]
    _, label_key = keys
    names_file = folder / f"{label_key}.labels.txt"
    class_names = names_file.read_text(encoding="utf-8") if names_file.is_file() else ""
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
  found = [split for split in shards if shards[split]]
  splits, words = choose_splits(found, path, evaluation=evaluation)
  files = [shard for split in splits for shard in shards[split]]
  records = [images for _, images in files]
  return Table(
    root=str(folder.absolute()),
    names=Names.of(file for file, _ in files),
    file=np.repeat(np.arange(len(files), dtype=np.int32), records),
    label=np.zeros(sum(records), np.int32),
    class_names=tuple(each.strip() for each in class_names.split("\n") if each.strip()),
    source=printable(f"TFDS {name} {folder.name}, {words}"),
    place=folder.absolute(),
    train=sum(images for _, images in shards["train"]),
    keys=tuple(keys),
  )


def _shards(name: str, split: dict[str, Any]) -> list[tuple[str, int]]:
  """Return file and records of each shard in an entry of "splits", without empty ones."""
  lengths = [int(length) for length in split.get("shardLengths", ())]
  if min(lengths, default=0) < 0 or sum(lengths) > _MOST_RECORDS:
    raise ValueError(f"shardLengths of {split['name']} are not from 0 to {_MOST_RECORDS:,} in all")
  digits = max(5, len(str(len(lengths))))
  shards = []
  for index, length in enumerate(lengths):
    place = f"{index:0{digits}d}-of-{len(lengths):0{digits}d}"
    file = split["filepathTemplate"]
    known = {"DATASET": name, "SPLIT": split["name"], "FILEFORMAT": "tfrecord"}
    for variable, value in (known | {"SHARD_X_OF_Y": place}).items():
      file = file.replace(f"{{{variable}}}", value)
    if b"\0" in os.fsencode(file):
      raise ValueError(f"{file!r} is no name of a file")
    shards += [(file, length)] * (length > 0)
  return shards


def read_shards(table: Table) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"]]:
  """Return all images and labels of shards, in stored order.

  Both checksums of every record are verified. Grey images are repeated to three channels.

  Raises:
    UserError: a shard is cut off or damaged, or its images differ in size.
    OSError: a shard is missing or cannot be read.
  """
  images, labels = list[np.ndarray](), list[int]()
  records = np.bincount(table.file).tolist()
  for name, count in zip(table.names.decoded(), records, strict=True):
    path = os.path.join(table.root, name)
    with open_regular(path) as file:
      content = np.fromfile(file, np.uint8)
    for example in read_examples(content, path, table.keys, count):
      try:
        images.append(pixels.decode(example.image))
      except Exception as error:  # Pillow raises almost anything
        reason = pixels.reason_of(error)
        raise UserError(f"{path}: an image cannot be decoded: {reason}") from error
      labels.append(example.label)
      if images[-1].shape != images[0].shape:
        raise UserError(f"{path}: its images differ in size; data in memory need one size.")
  return np.stack(images), np.array(labels, np.int32)


def read_records(content: UInt8[np.ndarray, "bytes"], path: object) -> list[memoryview]:
  """Split a file of TFRecords: length (8 bytes), its checksum (4), data, its checksum (4).

  Args:
    content: the file.
    path: its name, for messages.

  Raises:
    UserError: a record is cut off or does not fit its checksums; the message names the first one.
  """
  view, position = content.data, 0
  records: list[memoryview] = []
  advice = "remove it, and copy it or prepare the data set again."
  while position < len(view):
    part = view[:0]
    for is_data in (False, True):
      size = int.from_bytes(part, "little") if is_data else 8
      part, checksum = view[position : position + size], view[position + size :][:4]
      position += size + 4
      if position > len(view):
        raise UserError(
          f"{path} ends in the middle of record {len(records)}, at byte {len(view)}: it was cut "
          f"off; {advice}"
        )
      if masked_checksum(part) != int.from_bytes(checksum, "little"):
        raise UserError(
          f"{path} is damaged: record {len(records)} does not fit its checksum; {advice}"
        )
    records.append(part)
  return records


class Example(NamedTuple):
  """An encoded image, its first byte's place, its label, and its file's name; b"" if unknown."""

  image: bytes
  place: int
  label: int
  name: bytes


def read_examples(
  content: UInt8[np.ndarray, "bytes"], path: object, keys: Sequence[str], records: int
) -> Iterator[Example]:
  """Yield the examples of a shard.

  Args:
    content, path: as in `read_records`.
    keys: names of the features that hold an image and its label.
    records: their number according to dataset_info.json.

  Raises:
    UserError: as `read_records`; or it does not hold so many labelled images.
  """
  found = read_records(content, path)
  if len(found) != records:
    raise UserError(
      f"{path} holds {len(found)} records and dataset_info.json promises {records}: prepare the "
      "data set again."
    )
  start = _FRAME_BEGIN
  for number, record in enumerate(found):
    example = parse_example(bytes(record), keys, f"{path}: record {number}")
    # Clipped, not wrapped: a label too large for int32 must not become a valid one.
    label = min(max(example.label, _INT32.min), _INT32.max)
    yield example._replace(place=start + example.place, label=label)
    start += len(record) + _FRAME


def parse_example(record: bytes, keys: Sequence[str], where: str) -> Example:
  """Parse a serialized tf.train.Example; `where` names it in messages.

  Raises:
    UserError: it is not an Example, or lacks the image or the label.
  """
  try:
    entries = _example_class().FromString(record).features.feature
  except DecodeError as error:
    raise UserError(f"{where} is not a labelled image: {error}") from None
  features = {entry.key: entry.value for entry in entries}
  found = []
  for key, kind in (keys[0], "bytes_list"), (keys[1], "int64_list"):
    values = getattr(features[key], kind).value if key in features else ()
    if not values:
      what = f"it has no feature {key!r} of the right type"
      raise UserError(f"{where} is not a labelled image: {what}")
    found.append(values[0])
  image, label = found
  names = features[FILE_NAME].bytes_list.value if FILE_NAME in features else ()
  place = record.find(image[:64])  # ten times as fast as to search for all of it
  if not record.startswith(image, place):
    place = record.find(image)
  return Example(image, place, label, names[0] if names else b"")


@functools.cache
def _example_class() -> Any:
  """Return the class of tf.train.Example."""
  file = text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto())
  pool = descriptor_pool.DescriptorPool()
  pool.AddSerializedFile(file.SerializeToString())
  return message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Example"))
