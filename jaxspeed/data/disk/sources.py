"""Data sets of encoded images on disk: folders, CSV files, and shards that TFDS reads.

    images = open_images(name="imagenet2012", path="/data/imagenet", cache="")
    encoded = images.train.read(0)

`path` is a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, a folder with CLASS/*.jpg (a share
is held out), a CSV file of names and labels (`label_csv.py`), or a folder of TFRecords that TFDS
prepared (`tfrecord.py`). This module decodes no image, and needs TensorFlow only where TFDS
downloads a data set.
"""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxspeed.data import remote
from jaxspeed.data.disk import prepared
from jaxspeed.data.disk.index import Show, open_table
from jaxspeed.data.formats.class_names import check_labels, read_class_names
from jaxspeed.data.formats.folders import (
  folder_notes,
  has_splits,
  list_classes,
  list_folder,
  list_folders,
  readable,
)
from jaxspeed.data.formats.label_csv import is_csv, read_csv, require_files
from jaxspeed.data.formats.npz import DEFAULT_CACHE
from jaxspeed.data.formats.pixels import FORMATS
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds
from jaxspeed.data.hold_out import TENTH, hold_out_line, single_image_note, split_by_digest
from jaxspeed.data.table import Listed, Names, Table
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded

_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), a folder "
  "with CLASS/*.jpg, of which a share is held out, a .csv file with the columns file and label, or "
  "a folder that TFDS prepared (dataset_info.json), also in a bucket (s3://...)"
)


@dataclasses.dataclass(frozen=True)
class ImageSet:
  """A data set of encoded images; labels index `class_names`.

  Attributes:
    table: all images, those for training first where the data set has splits.
    train: the images to train on.
    eval: the images to evaluate on.
    class_names: the names of the classes, by label.
    source: what the data set is and where it was found.
    notes: lines about files that were left out.
    evaluated_on: which images `eval` holds, as in `data.memory.arrays.Arrays`.
  """

  table: Table
  train: Table
  eval: Table
  class_names: tuple[str, ...]
  source: str
  notes: tuple[str, ...] = ()
  evaluated_on: str = "test"


def open_images(
  *,
  name: str,
  path: str,
  cache: str,
  show: Show | None = None,
  tune: bool = False,
  anew: bool = False,
  beside: bool = False,
  share: float = TENTH,
) -> ImageSet:
  """Open the data set that a config names; the first time, this reads all headers (`index.py`).

  Args:
    name: TFDS's name of the data set.
    path: folder, address or CSV file of the data set; '' lets TFDS download and prepare `name`.
    cache: folder of indices; '' means ~/.cache/jaxspeed/data.
    show: called with the number of headers read and the total.
    tune: whether to evaluate on a share of the training images; no evaluation split is needed.
    anew, beside: as in `index.open_table`.
    share: share of each class to hold out, where images are.

  Raises:
    UserError: `path` holds no readable data set, or a damaged or incomplete one, or copies or
      shards that do not fit their originals; `anew` and `beside` do not compare them.
  """
  folder = expanded(cache or DEFAULT_CACHE, "config.data.cache")
  with readable(path or name):
    listed = _find(name, path, folder, tune)
    if not (anew or beside):
      prepared.require_fitting(listed.place, tune=tune)
    table = open_table(listed, folder, show=show, anew=anew, beside=beside)
  names = _checked_names(listed, table) if listed.records else listed.class_names
  train = evaluation = table.take(slice(listed.train))
  if not tune and listed.train is not None:
    evaluation = table.take(slice(listed.train, None))
  images = ImageSet(table, train, evaluation, names, listed.source, listed.notes)
  for each in (train, evaluation):
    if not each.width.any():
      raise UserError(
        f"none of the {len(each)} images of {each.root} has a header that can be read (the first "
        f"is {each.name(0)}): images are {', '.join(FORMATS)} files, and these may be damaged."
      )
  if listed.train is None:
    images = _hold_out(images, "held-out", share)
  return _hold_out(images, "validation", share) if tune else images


def class_names_of(*, name: str, path: str, cache: str = "") -> tuple[str, ...]:
  """Return the class names of the data set at `path`, or (); this opens no image.

  `name` and `cache` are as in `open_images`.

  Raises:
    UserError: as in `open_images`.
  """
  root = expanded(path, "config.data.path")
  if any((root / part / "images.npy").exists() for part in ("", "train")):
    return read_class_names(root / "classes.txt")
  folder = expanded(cache or DEFAULT_CACHE, "config.data.cache")
  with readable(path):
    return _find(name, path, folder, tune=True).class_names


def _find(name: str, path: str, cache: pathlib.Path, tune: bool) -> Listed:
  if remote.is_remote(path):
    return _find_tfds(remote.fetch_about(path, cache), tune, root=path.rstrip("/"))
  if not path:
    return _find_tfds(prepare_with_tfds(name, _ACCEPTED), tune)
  root = expanded(path, "config.data.path").absolute()
  if is_csv(root) and root.exists():
    listed = read_csv(root, tune=tune)
    require_files(root, listed.names.decoded())
    return listed
  if not root.is_dir():
    state = "is a file" if root.exists() else "does not exist"
    raise UserError(f"config.data.path: {root} {state}; it names {_ACCEPTED}.")
  if any((folder / "images.npy").exists() for folder in (root, root / "train")):
    raise UserError(
      f"config.data.path: {root} holds arrays, and this recipe reads encoded images from the "
      "disk: choose one that trains from memory, such as --config=configs/quickstart.py."
    )
  if has_splits(root):
    return _find_folders(root, tune)
  if version := find_tfds(root, name) or only_tfds(root):
    return _find_tfds(version, tune)
  prepared.refuse_shards_below(root)
  if not list_folder(root).folders:
    raise UserError(
      f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
    )
  others: collections.Counter[str] = collections.Counter()
  files = {"": list_classes(root, others)}
  return _listed_folders(root, files, None, "class folders", others)


def _find_folders(root: pathlib.Path, tune: bool) -> Listed:
  others: collections.Counter[str] = collections.Counter()
  made = prepared.require_complete(root)
  files = list_folders(root, others, tune=tune)
  counts = {split: sum(map(len, classes.values())) for split, classes in files.items()}
  if made is not None:
    prepared.check_counts(root, made, counts)
  what = f"folders {' and '.join(files)}"
  return _listed_folders(root, files, counts["train"], what, others)


def _listed_folders(
  root: pathlib.Path,
  files: Mapping[str, Mapping[str, Sequence[str]]],
  train: int | None,
  what: str,
  others: collections.Counter[str],
) -> Listed:
  """Return the images of folders of classes, given their names by split and class."""
  class_names = tuple(next(iter(files.values())))
  numbers = {name: number for number, name in enumerate(class_names)}
  parts, labels = [], []
  for split, classes in files.items():
    for name, found in classes.items():
      folder = f"{split}/{name}" if split else name
      parts.append(Names.of(f"{folder}/{file}" for file in found).text)
      labels.append(np.full(len(found), numbers[name], np.int32))
  # Folders of copies are named by a number.
  title = printable(f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name)
  return Listed(
    root,
    str(root),
    Names(np.concatenate(parts)),
    train,
    class_names,
    f"{title}: {what}",
    folder_notes(others, class_names),
    labels=np.concatenate(labels),
  )


def _find_tfds(folder: pathlib.Path, tune: bool, root: str = "") -> Listed:
  prepared.require_complete(folder)
  info = open_tfds(folder, tune=tune)
  shards = info.train if tune else (*info.train, *info.eval)
  named = "split train" if tune else f"splits train and {info.eval_split}"
  return Listed(
    folder.absolute(),
    root or str(folder.absolute()),
    Names.of(shard.path.name for shard in shards),
    sum(shard.records for shard in info.train),
    info.class_names,
    printable(f"TFDS {info.name} {folder.name}, {named}"),
    records=[shard.records for shard in shards],
    keys=(info.image_key, info.label_key),
  )


def _checked_names(listed: Listed, table: Table) -> tuple[str, ...]:
  """Return the names of the classes, or their numbers where they have no names.

  Raises:
    UserError: a label has no class, or two classes have one name.
  """
  largest = int(table.label.max())
  check_labels(int(table.label.min()), largest, listed.class_names, listed.root)
  if largest >= len(table):
    raise UserError(
      f"labels of {listed.root} go up to {largest}, but it has only {len(table)} images: labels "
      "count classes from 0."
    )
  return listed.class_names or tuple(map(str, range(largest + 1)))


def _hold_out(images: ImageSet, evaluated_on: str, share: float) -> ImageSet:
  """Replace the evaluation images by a share of each class of the training images.

  The share has the smallest BLAKE2b digests of class and file name, so that a resized copy, as a
  file or in a shard, is in the same part as its original.

  Args:
    images: the data set.
    evaluated_on: "held-out" or "validation", as in `data.memory.arrays.Arrays`.
    share: share of each class.

  Raises:
    UserError: there are too few training images, or shards do not name them.
  """
  train = images.train
  digests = train.digests(images.class_names)
  kept, held_out = split_by_digest(digests, train.label, share, images.source.split(":")[0])
  return dataclasses.replace(
    images,
    train=train.take(kept),
    eval=train.take(held_out),
    source=f"{images.source}; {hold_out_line(len(held_out), len(train), share, evaluated_on)}",
    notes=images.notes + single_image_note(train.label, images.class_names),
    evaluated_on=evaluated_on,
  )
