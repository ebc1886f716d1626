"""A writer of TFRecords from a folder of images, in TFDS's layout but without TensorFlow.

write_shards("imagenet", "sets", name="imagenet") makes sets/imagenet/1.0.0 with
imagenet-train.tfrecord-00000-of-01252 ..., dataset_info.json, features.json and label.labels.txt,
for `tfrecord.open_tfds` and `tfds.builder_from_directory`. Network drives read and copy a few
large files many times faster than a million small ones.

The formats are those of TensorFlow's tsl/lib/io/record_writer.h and
tensorflow/core/example/{example,feature}.proto and of TFDS 4.9 (core/dataset_info.py,
core/features). Images keep the bytes of their files; TFDS itself does not decode WebP and TIFF.
"""

import itertools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspeed.data.disk.index import Show
from jaxspeed.data.disk.prepared import VERSION, is_current, time_of
from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.formats.protobuf import field, make_frames, varint
from jaxspeed.data.formats.tfrecord import FILE_NAME
from jaxspeed.data.prepare.writing import Done, Made, broken_headers, follow
from jaxspeed.data.remote import INFO
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, open_regular, write_atomically

# 110 MB of ImageNet's originals: enough shards for many readers, each far larger than a read.
_IMAGES_A_SHARD = 1_024
_IMAGE = "image"
_LABEL = "label"


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
  if not re.fullmatch("[a-z][a-z0-9_]{,99}", name):
    raise UserError(
      f"--name={name}: TFDS's names are lower-case letters, digits and underscores, 100 at most, "
      "as in --name=my_images."
    )
  images = open_images(name=name, path=os.fspath(source), cache="", show=show, anew=True)
  for each in images.train.class_names:
    if each != each.strip() or not each.isprintable():
      raise UserError(
        f"the class {each!r} cannot be a line of label.labels.txt: rename its folders without "
        "spaces at the ends, and in characters that can be printed."
      )
  folder = shards_folder(destination, name)
  jobs = list[_Shard]()
  for split, table in {"train": images.train, "validation": images.eval}.items():
    # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
    order = np.random.RandomState(0).permutation(len(table))
    number = min(shards or -(-len(order) // _IMAGES_A_SHARD), len(order))
    for i, part in enumerate(np.array_split(order, number)):
      path = folder / f"{name}-{split}.tfrecord-{i:05}-of-{number:05}"
      originals = [table.full_path(i) for i in part.tolist()]
      packed = [(table.full_path(i), int(table.label[i])) for i in part.tolist() if table.width[i]]
      jobs.append(_Shard(split, str(path), originals, packed))
  return follow(
    [folder],
    "shards",
    images.train,
    [f"--name={name}", *[f"--shards={shards}"] * bool(shards)],
    jobs,
    _write_shard,
    finish=lambda: _write_info(folder, name, images.train.class_names, jobs),
    broken=[*broken_headers(images.train), *broken_headers(images.eval)],
    workers=workers,
    show=show,
  )


class _Shard(NamedTuple):
  """A shard, its originals, and the file and label of those that are in it."""

  split: str
  path: str
  originals: list[str]
  packed: list[tuple[str, int]]


def _write_shard(shard: _Shard) -> Made:
  """Write a shard with the time of its latest image, unless it has that already."""
  # Taken before reading: a file that changes meanwhile is then newer than the shard.
  newest = max(map(time_of, shard.originals))
  stale = not is_current(shard.path, newest)
  if stale:
    write_atomically(shard.path, itertools.starmap(_record, shard.packed), sync=False)
    os.utime(shard.path, ns=(newest, newest))
  return len(shard.originals), len(shard.packed) * stale, newest, ()


def _record(path: str, label: int) -> bytes:
  """Return the record of an image: a tf.train.Example with its file_name, image and label."""
  with open_regular(path) as file:
    encoded = file.read()
  name = "/".join(pathlib.PurePath(path).parts[-2:])
  values = {
    FILE_NAME: field(1, field(1, os.fsencode(name))),
    _IMAGE: field(1, field(1, encoded)),
    _LABEL: field(3, field(1, varint(label))),
  }
  entries = [field(1, field(1, key.encode()) + field(2, v)) for key, v in values.items()]
  return make_frames([field(1, b"".join(entries))])


def _write_info(
  folder: pathlib.Path, name: str, class_names: Sequence[str], shards: Sequence[_Shard]
) -> None:
  """Write label.labels.txt, features.json and dataset_info.json."""
  splits = [
    {
      "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
      "name": split,
      "shardLengths": [str(len(each.packed)) for each in shards if each.split == split],
    }
    for split in ("train", "validation")
  ]
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
  """Return features.json's description of `_record`'s features."""
  core = "tensorflow_datasets.core.features"
  shape = {"dimensions": ["-1", "-1", "3"]}
  image = {"shape": shape, "dtype": "uint8", "encodingFormat": "jpeg"}
  features = {
    FILE_NAME: {"pythonClassName": f"{core}.text_feature.Text", "text": {}},
    _IMAGE: {"pythonClassName": f"{core}.image_feature.Image", "image": image},
    _LABEL: {
      "pythonClassName": f"{core}.class_label_feature.ClassLabel",
      "classLabel": {"numClasses": str(classes)},
    },
  }
  return {
    "pythonClassName": f"{core}.features_dict.FeaturesDict",
    "featuresDict": {"features": features},
  }
