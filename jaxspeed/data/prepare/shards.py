"""A writer of TFRecords from a folder of images, in TFDS's layout but without TensorFlow.

write_shards(images, "sets", name="imagenet") makes sets/imagenet/1.0.0 with
imagenet-train.tfrecord-00000-of-01252 ..., dataset_info.json, features.json and label.labels.txt,
for `tfrecord.open_tfds` and `tfds.builder_from_directory`. Network drives read and copy a few
large files many times faster than a million small ones.

The formats are those of TensorFlow's tsl/lib/io/record_writer.h and
tensorflow/core/example/{example,feature}.proto and of TFDS 4.9 (core/dataset_info.py,
core/features). Images keep the bytes of their files, except that WebP and TIFF become PNG, because
TFDS does not decode them.
"""

import collections
import dataclasses
import hashlib
import io
import os
import pathlib
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxspeed.data.disk.index import own_index
from jaxspeed.data.disk.prepared import (
  STAT_THREADS,
  VERSION,
  Prepared,
  modified,
  names_of,
  not_before,
  read_prepared,
  write_prepared,
)
from jaxspeed.data.disk.sources import ImageSet
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.tfrecord import FILE_NAME, masked_checksum
from jaxspeed.data.prepare.index import Broken, broken_headers
from jaxspeed.data.prepare.writing import (
  finished_files,
  locked,
  refuse_inside,
  remove_file,
  write_whole,
  writing,
)
from jaxspeed.data.table import Table
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, open_regular

# 110 MB of ImageNet's originals: enough shards for many readers, each far larger than a read.
_IMAGES_A_SHARD = 1_024
# Bytes of a shard that a process keeps in memory.
_GROUP_BYTES = 1 << 24
_IMAGE = "image"
# The first bytes of WebP and of TIFF's two orders.
_NOT_IN_TENSORFLOW = (b"RIFF", b"II*\0", b"MM\0*")
_LABEL = "label"
_INFO = "dataset_info.json"


@dataclasses.dataclass(frozen=True)
class Sharded:
  """What a run of `write_shards` did."""

  folder: pathlib.Path  # the version's folder, which holds the shards
  images: int
  written: int  # images written in this run; the shards of the others were up to date
  shards: Mapping[str, int]  # number of shards by split
  broken: tuple[Broken, ...]  # images left out
  seconds: float


def write_shards(
  images: ImageSet,
  destination: str | os.PathLike[str],
  *,
  name: str,
  shards: int = 0,
  workers: int = 1,
  show: Callable[[int, int], None] | None = None,
) -> Sharded:
  """Write DESTINATION/NAME/1.0.0, except shards whose images have not changed.

  Each split has a pseudo-random order, the same in every run, so that each shard holds a mix of the
  classes. Images without a readable header are left out.

  Args:
    images: a data set of image files, from `sources.open_images`.
    destination: TFDS's data_dir.
    name: name of the data set: lower-case letters, digits and underscores.
    shards: shards of each split, at most one for each image; 0: one for each 1,024 images.
    workers: number of processes.
    show: called now and then with the number of images done and the total.

  Raises:
    UserError: an argument is out of range, an image can no longer be read, the folder cannot be
      written or holds shards of another source or number, or the disk is full.
  """
  began = time.perf_counter()
  _check(images, name, shards, workers)
  folder = expanded(destination, "DST") / name / VERSION
  refuse_inside(folder, pathlib.Path(images.train.root))
  splits = {"train": images.train, "validation": images.eval}
  orders = {split: _order(each) for split, each in splits.items()}
  parts = {
    split: np.array_split(order, min(shards or -(-len(order) // _IMAGES_A_SHARD), len(order)))
    for split, order in orders.items()
  }
  planned = [
    _Shard(
      path=str(folder / file),
      files=[splits[split].full_path(i) for i in part.tolist()],
      labels=splits[split].label[part].tolist(),
    )
    for split, each in parts.items()
    for file, part in zip(_file_names(name, split, len(each)), each, strict=True)
  ]
  with locked(folder), writing(folder):
    with ThreadPoolExecutor(STAT_THREADS) as pool:
      newest = list(pool.map(_newest, planned))
    made = _made(images, shards, planned, max(newest))
    _begin(folder, name, made)
    tasks = [
      each
      for each, original in zip(planned, newest, strict=True)
      if not os.path.isfile(each.path) or not not_before(modified(each.path), original)
    ]
    if tasks:
      (folder / _INFO).unlink(missing_ok=True)
      own_index(folder).unlink(missing_ok=True)
    total, written = sum(map(len, orders.values())), sum(len(task.files) for task in tasks)
    done = total - written
    for count in in_processes(_write_shard, tasks, workers=workers):
      done += count
      if show is not None:
        show(done, total)
    _write_info(folder, name, images.class_names, parts)
    counts = {split: len(order) for split, order in orders.items()}
    write_prepared(folder, dataclasses.replace(made, images=counts))
  return Sharded(
    folder=folder,
    images=total,
    written=written,
    shards={split: len(each) for split, each in parts.items()},
    broken=broken_headers(images),
    seconds=time.perf_counter() - began,
  )


@dataclasses.dataclass(frozen=True)
class _Shard:
  """A shard to write, and the file and label of each of its images."""

  path: str
  files: list[str]
  labels: list[int]


def _made(images: ImageSet, shards: int, planned: Sequence[_Shard], newest: int) -> Prepared:
  table = images.table
  left_out = [table.full_path(number) for number in np.flatnonzero(table.width == 0).tolist()]
  return Prepared(
    kind="shards",
    source=images.train.root,
    setting=shards,
    originals=_originals(images),
    newest=max([newest, *map(modified, left_out)]),
    content=_content_digest(planned, images.train.root),
  )


def _class_and_name(file: str) -> str:
  return "/".join(pathlib.PurePath(file).parts[-2:])


def _originals(images: ImageSet) -> dict[str, tuple[int, str]]:
  """Return the number of images and the digest of their names in each folder of classes."""
  names = collections.defaultdict(list)
  for path in images.table.paths():
    *split, name, file = path.split("/")
    names["".join(split)].append(f"{name}/{file}")
  return {split: names_of(each) for split, each in names.items()}


def _content_digest(shards: Sequence[_Shard], root: str) -> str:
  """Return a digest of which images are in which shard."""
  digest = hashlib.sha256()
  for shard in shards:
    names = [os.path.relpath(file, root) for file in shard.files]
    digest.update(os.fsencode("\0".join([os.path.basename(shard.path), *names, ""])))
    digest.update(np.array(shard.labels, "<i8").tobytes())
  return digest.hexdigest()


def _newest(shard: _Shard) -> int:
  return max(map(modified, shard.files))


def _begin(folder: pathlib.Path, name: str, made: Prepared) -> None:
  """Store how shards are made; remove shards that hold other images than these.

  Raises:
    UserError: the folder holds shards of another source, or another number of shards.
  """
  for each in (folder, folder / ".jaxspeed"):
    finished_files(each)
  stored = read_prepared(folder, "shards")
  if stored is not None:
    # If the old folder is gone and the names are the same, it was moved.
    there = os.path.isdir(stored.source)
    same = os.path.samefile(stored.source, made.source) if there else stored.content == made.content
    if not same or stored.setting != made.setting:
      number = f"another number (--shards={stored.setting})"
      what = number if same else f"other images ({stored.source})"
      raise UserError(f"{folder} holds shards of {what}: remove it, or name another --name.")
  if stored is None or stored.content != made.content:
    for path in folder.glob(f"{name}-*.tfrecord-*-of-*"):
      remove_file(folder, path.name)
  write_prepared(folder, made)


def _check(images: ImageSet, name: str, shards: int, workers: int) -> None:
  if not re.fullmatch("[a-z][a-z0-9_]{,99}", name):
    raise UserError(
      f"--name={name}: TFDS's names are lower-case letters, digits and underscores, 100 at most, "
      "as in --name=my_images."
    )
  if shards < 0:
    raise UserError(f"--shards={shards}: name the number of files for each split.")
  if workers < 1:
    raise UserError(f"--workers={workers}: at least one process is needed.")
  if images.table.offset is not None:
    raise UserError(f"{images.train.root} holds shards already: name a folder of images.")
  for each in images.class_names:
    if each != each.strip() or not each.isprintable():
      raise UserError(
        f"the class {each!r} cannot be a line of label.labels.txt: rename its folders without "
        "spaces at the ends, and in characters that can be printed."
      )


def _order(split: Table) -> np.ndarray:
  """Return the numbers of the images with a header, in the order of the shards."""
  sound = np.flatnonzero(split.width)
  if not sound.size:
    raise UserError(f"neither {split.name(0)} nor any other image of its split can be read.")
  # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
  return sound[np.random.RandomState(0).permutation(len(sound))]


def _file_names(name: str, split: str, shards: int) -> list[str]:
  digits = max(5, len(str(shards)))
  return [f"{name}-{split}.tfrecord-{i:0{digits}d}-of-{shards:0{digits}d}" for i in range(shards)]


def _write_shard(shard: _Shard) -> int:
  """Write a shard with the time of its latest image; return its number of images."""
  times: list[int] = []
  with writing(os.path.dirname(shard.path)):
    write_whole(shard.path, _content(shard, times))
    os.utime(shard.path, ns=(max(times), max(times)))
  return len(shard.files)


def _content(shard: _Shard, times: list[int]) -> Iterator[bytes]:
  """Yield the content of a shard in parts; `times` receives each image's modification time."""
  group: list[bytes] = []
  for file, label in zip(shard.files, shard.labels, strict=True):
    try:
      with open_regular(file) as opened:
        times.append(os.fstat(opened.fileno()).st_mtime_ns)
        encoded = _for_tensorflow(opened.read())
    except Exception as error:  # Pillow raises almost anything
      raise UserError(
        f"{file} cannot be read ({pixels.reason_of(error)}): repair or remove it and run the same "
        "command again."
      ) from error
    group.append(make_example(encoded, label, os.fsencode(_class_and_name(file))))
    if sum(map(len, group)) >= _GROUP_BYTES:
      yield make_frames(group)
      group = []
  yield make_frames(group)


def _for_tensorflow(encoded: bytes) -> bytes:
  """Return an image as it is, or as a PNG if TFDS does not decode its format."""
  if not encoded.startswith(_NOT_IN_TENSORFLOW):
    return encoded
  buffer = io.BytesIO()
  pixels.load_upright(io.BytesIO(encoded)).save(buffer, "PNG")
  return buffer.getvalue()


def make_example(encoded: bytes, label: int, file_name: bytes) -> bytes:
  """Serialize a tf.train.Example with the features file_name, image and label (>= 0)."""
  values = {
    FILE_NAME: _field(1, _field(1, file_name)),
    _IMAGE: _field(1, _field(1, encoded)),
    _LABEL: _field(3, _field(1, _varint(label))),
  }
  entries = [_field(1, _field(1, key.encode()) + _field(2, v)) for key, v in values.items()]
  return _field(1, b"".join(entries))


def _field(number: int, content: bytes) -> bytes:
  """Encode a length-delimited field of a protocol buffer."""
  return b"".join((_varint(number << 3 | 2), _varint(len(content)), content))


def _varint(value: int) -> bytes:
  """Encode an integer >= 0 in base 128, low groups first."""
  groups = bytearray()
  while value > 0x7F:
    groups.append(value & 0x7F | 0x80)
    value >>= 7
  groups.append(value)
  return bytes(groups)


def make_frames(records: Sequence[bytes]) -> bytes:
  """Encode TFRecords: length (8 bytes), its checksum (4), data, its checksum (4)."""
  return b"".join(
    part
    for record in records
    for content in (struct.pack("<Q", len(record)), record)
    for part in (content, struct.pack("<I", masked_checksum(content)))
  )


def _write_info(
  folder: pathlib.Path,
  name: str,
  class_names: Sequence[str],
  parts: Mapping[str, Sequence[np.ndarray]],
) -> None:
  """Write label.labels.txt, features.json and, last, dataset_info.json, which completes them."""
  splits = []
  for split, each in parts.items():
    files = [folder / file for file in _file_names(name, split, len(each))]
    frames = 16 * sum(map(len, each))  # lengths and checksums, which TFDS does not count
    splits.append(
      {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": split,
        "numBytes": str(sum(file.stat().st_size for file in files) - frames),
        "shardLengths": [str(len(part)) for part in each],
      }
    )
  keys = [{"featureKey": key} for key in (_IMAGE, _LABEL)]
  info = {
    "fileFormat": "tfrecord",
    "moduleName": "jaxspeed.data.prepare.shards",
    "name": name,
    "splits": splits,
    "supervisedKeys": {"tuple": {"items": keys}},
    "version": VERSION,
  }
  labels = "".join(f"{each}\n" for each in class_names)
  write_whole(folder / f"{_LABEL}.labels.txt", [os.fsencode(labels)])
  for file, content in (
    ("features.json", _features(len(class_names))),
    (_INFO, info),
  ):
    write_whole(folder / file, [dump_json(content, indent=2).encode()])


def _features(classes: int) -> dict[str, Any]:
  """Return features.json's description of `make_example`'s features."""
  image = {
    "shape": {"dimensions": ["-1", "-1", "3"]},
    "dtype": "uint8",
    "encodingFormat": "jpeg",
  }
  features = {
    FILE_NAME: _feature("text_feature.Text", text={}),
    _IMAGE: _feature("image_feature.Image", image=image),
    _LABEL: _feature("class_label_feature.ClassLabel", classLabel={"numClasses": str(classes)}),
  }
  return _feature("features_dict.FeaturesDict", featuresDict={"features": features})


def _feature(python_class: str, **content: Any) -> dict[str, Any]:
  return {"pythonClassName": f"tensorflow_datasets.core.features.{python_class}", **content}
