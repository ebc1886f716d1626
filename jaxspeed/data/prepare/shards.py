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

import dataclasses
import io
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspeed.data.disk.prepared import VERSION, Prepared, digests_of, is_current, modified
from jaxspeed.data.disk.sources import ImageSet
from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.protobuf import field, make_frames, varint
from jaxspeed.data.formats.tfrecord import FILE_NAME
from jaxspeed.data.prepare.writing import (
  Broken,
  Done,
  Show,
  begin,
  broken_headers,
  locked,
  refuse_inside,
  refuse_other,
  update,
  write_whole,
)
from jaxspeed.data.remote import INFO
from jaxspeed.data.table import Table
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


def shards_folder(destination: str | os.PathLike[str], name: str) -> pathlib.Path:
  """Return the folder of the shards of a data set, given TFDS's data_dir."""
  return expanded(destination, "DST") / name / VERSION


def write_shards(
  images: ImageSet,
  destination: str | os.PathLike[str],
  *,
  name: str,
  shards: int = 0,
  workers: int = 1,
  show: Show | None = None,
) -> Done:
  """Write `shards_folder`, except shards whose images have not changed.

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
    UserError: an image can no longer be read, the folder cannot be written or holds shards of
      another source or number, or the disk is full.
  """
  _check(images, name)
  folder, root = shards_folder(destination, name), pathlib.Path(images.table.root)
  refuse_inside(folder, root)
  tasks: dict[str, list[_Shard]] = {}
  for split, table in {"train": images.train, "validation": images.eval}.items():
    # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
    order = np.random.RandomState(0).permutation(len(table))
    number = min(shards or -(-len(order) // _IMAGES_A_SHARD), len(order))
    names = _file_names(name, split, number)
    parts = np.array_split(order, number)
    tasks[split] = [_shard(folder / n, table, p) for n, p in zip(names, parts, strict=True)]
  originals = digests_of(images.table.paths())
  left_out = [images.table.full_path(i) for i in np.flatnonzero(images.table.width == 0).tolist()]
  newest = max(map(modified, left_out), default=0)
  made = Prepared("shards", root.absolute().as_uri(), shards, (), originals, newest)
  with locked(folder):
    stored = refuse_other(folder, made)
    if stored is not None and stored.originals != originals:  # then others belong in each
      for path in folder.glob(f"{name}-*.tfrecord-*-of-*"):
        path.unlink()
    begin([folder], made)
    done = update(
      [folder],
      made,
      [task for each in tasks.values() for task in each],
      look=_left_of,
      work=_write_shard,
      finish=lambda _: _write_info(folder, name, images.class_names, tasks),
      broken=broken_headers(images.table),
      workers=workers,
      show=show,
    )
  numbers = " and ".join(f"{len(each)} of {split}" for split, each in tasks.items())
  return dataclasses.replace(done, notes=(*images.notes, f"shards: {numbers}"))


@dataclasses.dataclass(frozen=True)
class _Shard:
  """A shard to write, and the file and label of each of its images."""

  path: str
  originals: list[str]
  labels: list[int]


def _shard(path: pathlib.Path, table: Table, rows: np.ndarray) -> _Shard:
  sound = rows[table.width[rows] > 0]
  return _Shard(str(path), [*map(table.full_path, sound.tolist())], table.label[sound].tolist())


def _check(images: ImageSet, name: str) -> None:
  if not re.fullmatch("[a-z][a-z0-9_]{,99}", name):
    raise UserError(
      f"--name={name}: TFDS's names are lower-case letters, digits and underscores, 100 at most, "
      "as in --name=my_images."
    )
  if images.table.offset is not None:
    raise UserError(f"{images.train.root} holds shards already: name a folder of images.")
  for each in images.class_names:
    if each != each.strip() or not each.isprintable():
      raise UserError(
        f"the class {each!r} cannot be a line of label.labels.txt: rename its folders without "
        "spaces at the ends, and in characters that can be printed."
      )


def _file_names(name: str, split: str, shards: int) -> list[str]:
  digits = max(5, len(str(shards)))
  return [f"{name}-{split}.tfrecord-{i:0{digits}d}-of-{shards:0{digits}d}" for i in range(shards)]


def _left_of(shard: _Shard, times: Sequence[int]) -> _Shard | None:
  return None if is_current(shard.path, max(times, default=0)) else shard


def _write_shard(shard: _Shard) -> tuple[int, list[Broken]]:
  """Write a shard with the time of its latest image."""
  times = [0]
  write_whole(shard.path, _content(shard, times))
  os.utime(shard.path, ns=(max(times), max(times)))
  return len(shard.originals), []


def _content(shard: _Shard, times: list[int]) -> Iterator[bytes]:
  """Yield the content of a shard in parts; `times` receives each image's modification time."""
  group: list[bytes] = []
  for file, label in zip(shard.originals, shard.labels, strict=True):
    try:
      with open_regular(file) as opened:
        times.append(os.fstat(opened.fileno()).st_mtime_ns)
        encoded = _for_tensorflow(opened.read())
    except Exception as error:  # Pillow raises almost anything
      raise UserError(
        f"{file} cannot be read ({pixels.reason_of(error)}): repair or remove it and run the same "
        "command again."
      ) from error
    name = "/".join(pathlib.PurePath(file).parts[-2:])
    group.append(make_example(encoded, label, os.fsencode(name)))
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
    FILE_NAME: field(1, field(1, file_name)),
    _IMAGE: field(1, field(1, encoded)),
    _LABEL: field(3, field(1, varint(label))),
  }
  entries = [field(1, field(1, key.encode()) + field(2, v)) for key, v in values.items()]
  return field(1, b"".join(entries))


def _write_info(
  folder: pathlib.Path, name: str, class_names: Sequence[str], shards: Mapping[str, list[_Shard]]
) -> None:
  """Write label.labels.txt, features.json and dataset_info.json."""
  splits = []
  for split, each in shards.items():
    lengths = [len(shard.originals) for shard in each]
    frames = 16 * sum(lengths)  # lengths and checksums, which TFDS does not count
    splits.append(
      {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": split,
        "numBytes": str(sum(os.path.getsize(shard.path) for shard in each) - frames),
        "shardLengths": [*map(str, lengths)],
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
  for file, content in {"features.json": _features(len(class_names)), INFO: info}.items():
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
