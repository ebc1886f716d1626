"""A writer of TFRecords from a folder of images, in TFDS's layout but without TensorFlow.

write_shards("imagenet", "sets", name="imagenet") makes sets/imagenet/1.0.0 with
imagenet-train.tfrecord-00000-of-01252 ..., dataset_info.json, features.json and label.labels.txt,
for `tfrecord.open_tfds` and `tfds.builder_from_directory`. Network drives read and copy a few
large files many times faster than a million small ones.

The formats are those of TensorFlow's tsl/lib/io/record_writer.h and
tensorflow/core/example/{example,feature}.proto and of TFDS 4.9 (core/dataset_info.py,
core/features). Images keep the bytes of their files; TFDS itself does not decode WebP and TIFF.
"""

import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspeed.data.disk.index import Show
from jaxspeed.data.disk.prepared import VERSION, Prepared, digest_of, is_current, time_of
from jaxspeed.data.disk.sources import ImageSet, open_images
from jaxspeed.data.formats.protobuf import field, make_frames, varint
from jaxspeed.data.formats.tfrecord import FILE_NAME
from jaxspeed.data.prepare.writing import Done, Made, broken_headers, follow, refuse_nested
from jaxspeed.data.remote import INFO
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, open_regular, write_atomically

# 110 MB of ImageNet's originals: enough shards for many readers, each far larger than a read.
_IMAGES_A_SHARD = 1_024
# Bytes of a shard that a process keeps in memory.
_GROUP_BYTES = 1 << 24
_IMAGE = "image"
_LABEL = "label"
_LEFT_OUT = -1  # the label of an image without a readable header


def shards_folder(destination: str | os.PathLike[str], name: str) -> pathlib.Path:
  """Return the folder of the shards of a data set, given TFDS's data_dir."""
  return expanded(destination, "DST") / name / VERSION


def write_shards(
  source: str | os.PathLike[str],
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
    source: a folder of images, as in `sources.open_images`.
    destination: TFDS's data_dir.
    name: name of the data set: lower-case letters, digits and underscores.
    shards: shards of each split, at most one for each image; 0: one for each 1,024 images.
    workers: number of processes.
    show: as in `follow`, after the same for the headers.

  Raises:
    UserError: as in `open_images` and `follow`; or an image can no longer be read.
  """
  images = open_images(name=name, path=os.fspath(source), cache="", show=show, anew=True)
  _check(images, name)
  folder, root = shards_folder(destination, name), pathlib.Path(images.train.root)
  refuse_nested(folder, root)
  jobs: dict[str, list[_Shard]] = {}
  for split, table in {"train": images.train, "validation": images.eval}.items():
    # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
    order = np.random.RandomState(0).permutation(len(table))
    number = min(shards or -(-len(order) // _IMAGES_A_SHARD), len(order))
    labels = np.where(table.width > 0, table.label, _LEFT_OUT)
    jobs[split] = []
    for i, rows in enumerate(np.array_split(order, number)):
      path = folder / f"{name}-{split}.tfrecord-{i:05}-of-{number:05}"
      paths = [*map(table.full_path, rows.tolist())]
      jobs[split].append(_Shard(str(path), paths, labels[rows].tolist()))
  names, uri = images.train.names, root.absolute().as_uri()
  flags = (f"--name={name}", *[f"--shards={shards}"] * bool(shards))
  made = Prepared("shards", uri, flags, len(names), digest_of(names))
  numbers = " and ".join(f"{len(each)} of {split}" for split, each in jobs.items())
  return follow(
    [folder],
    made,
    [job for each in jobs.values() for job in each],
    _write_shard,
    finish=lambda: _write_info(folder, name, images.train.class_names, jobs),
    broken=[*broken_headers(images.train), *broken_headers(images.eval)],
    workers=workers,
    show=show,
    notes=(*images.train.notes, f"shards: {numbers}"),
  )


class _Shard(NamedTuple):
  """A shard, and the file and label of each of its images; those of `_LEFT_OUT` are not in it."""

  path: str
  originals: Sequence[str]
  labels: list[int]

  @property
  def images(self) -> int:
    return len(self.labels) - self.labels.count(_LEFT_OUT)


def _check(images: ImageSet, name: str) -> None:
  if not re.fullmatch("[a-z][a-z0-9_]{,99}", name):
    raise UserError(
      f"--name={name}: TFDS's names are lower-case letters, digits and underscores, 100 at most, "
      "as in --name=my_images."
    )
  if images.train.offset is not None:
    raise UserError(f"{images.train.root} holds shards already: name a folder of images.")
  for each in images.train.class_names:
    if each != each.strip() or not each.isprintable():
      raise UserError(
        f"the class {each!r} cannot be a line of label.labels.txt: rename its folders without "
        "spaces at the ends, and in characters that can be printed."
      )


def _write_shard(shard: _Shard) -> Made:
  """Write a shard with the time of its latest image, unless it has that already."""
  # Taken before reading: a file that changes meanwhile is then newer than the shard.
  newest = max(map(time_of, shard.originals))
  stale = not is_current(shard.path, newest)
  if stale:
    write_atomically(shard.path, _content(shard), sync=False)
    os.utime(shard.path, ns=(newest, newest))
  return Made(len(shard.originals), shard.images * stale, newest, ())


def _content(shard: _Shard) -> Iterator[bytes]:
  """Yield the content of a shard in parts."""
  group: list[bytes] = []
  for path, label in zip(shard.originals, shard.labels, strict=True):
    if label == _LEFT_OUT:
      continue
    try:
      with open_regular(path) as file:
        encoded = file.read()
    except OSError as error:
      raise UserError(
        f"{path} cannot be read ({error.strerror or error}): repair or remove it and run the same "
        "command again."
      ) from error
    name = "/".join(pathlib.PurePath(path).parts[-2:])
    group.append(make_example(encoded, label, os.fsencode(name)))
    if sum(map(len, group)) >= _GROUP_BYTES:
      yield make_frames(group)
      group = []
  yield make_frames(group)


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
    lengths = [shard.images for shard in each]
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
  for file, content in {
    f"{_LABEL}.labels.txt": "".join(f"{each}\n" for each in class_names),
    "features.json": dump_json(_features(len(class_names)), indent=2),
    INFO: dump_json(info, indent=2),
  }.items():
    write_atomically(folder / file, content, sync=False)


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
