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
import os
import pathlib
from typing import NamedTuple

import numpy as np

from jaxspeed.data import remote
from jaxspeed.data.disk.index import Show, open_table, stat_sample
from jaxspeed.data.disk.prepared import digest_of, mending, read_prepared, refuse_half_made
from jaxspeed.data.formats.class_names import check_labels, read_class_names
from jaxspeed.data.formats.folders import (
  choose_splits,
  left_out,
  list_classes,
  list_folder,
  readable,
  splits_in,
)
from jaxspeed.data.formats.label_csv import is_csv, read_csv
from jaxspeed.data.formats.npz import DEFAULT_CACHE
from jaxspeed.data.formats.pixels import FORMATS
from jaxspeed.data.formats.tfrecord import find_tfds, list_tfds, prepare_with_tfds
from jaxspeed.data.hold_out import (
  TENTH,
  hold_out_line,
  require_trained,
  single_image_note,
  split_by_digest,
)
from jaxspeed.data.table import Names, Table
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import expanded

_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), a folder "
  "with CLASS/*.jpg, of which a share is held out, a .csv file with the columns file and label, or "
  "a folder that TFDS prepared (dataset_info.json), also in a bucket (s3://...)"
)


class ImageSet(NamedTuple):
  """The images of a data set to train on and to evaluate on."""

  train: Table
  eval: Table
  evaluated_on: str = "test"  # which images `eval` holds, as in `data.memory.arrays.Arrays`


def open_images(
  *,
  name: str,
  path: str,
  cache: str,
  show: Show | None = None,
  tune: bool = False,
  anew: bool = False,
  share: float = TENTH,
) -> ImageSet:
  """Open the data set that a config names; the first time, this reads all headers (`index.py`).

  Args:
    name: TFDS's name of the data set.
    path: folder, address or CSV file of the data set; '' lets TFDS download and prepare `name`.
    cache: folder of indices; '' means ~/.cache/jaxspeed/data.
    show: called with the number of headers read and the total.
    tune: whether to evaluate on a share of the training images; no evaluation split is needed.
    anew: whether to read all headers, whatever is in the index, and to compare no originals.
    share: share of each class to hold out, where images are.

  Raises:
    UserError: `path` holds no readable data set, or a damaged or incomplete one, or copies or
      shards that do not fit their originals; or there are too few images to hold a share out, or
      to train on.
  """
  folder = expanded(cache or DEFAULT_CACHE, "config.data.cache")
  with readable(path or name):
    table = _find(name, path, folder, tune)
    if not anew:
      _require_fitting(table)
    table = open_table(table, folder, show, anew=anew)
  if table.keys:
    table = dataclasses.replace(table, class_names=_checked_names(table))
  train = evaluation = table.take(slice(table.train))
  if not tune and table.train is not None:
    evaluation = table.take(slice(table.train, None))
  found = ImageSet(train, evaluation)
  for evaluated_on in ["held-out"] * (table.train is None) + ["validation"] * tune:
    found = _hold_out(found.train, share, evaluated_on)
  for each in (found.train, found.eval):
    if not each.width.any():
      raise UserError(
        f"none of {len(each)} images of {each.root} has a header that can be read (the first is "
        f"{each.name(0)}): images are {', '.join(FORMATS)} files, and these may be damaged."
      )
  require_trained(found.train.label, found.eval.label, table.class_names, path or name)
  return found


def _hold_out(table: Table, share: float, evaluated_on: str) -> ImageSet:
  """Split images by digests of class and name: a copy is on the side of its original."""
  kept, out = split_by_digest(table.digests(), table.label, share, str(table.place))
  line = hold_out_line(len(out), len(table), share, evaluated_on)
  notes = table.notes + single_image_note(table.label, table.class_names)
  table = dataclasses.replace(table, source=f"{table.source}; {line}", notes=notes)
  parts = (table, table) if share == 1 else table.split(kept, out)
  return ImageSet(*parts, evaluated_on)


def class_names_of(*, name: str, path: str, cache: str = "") -> tuple[str, ...]:
  """Return the class names of the data set at `path`, or (); this opens no image.

  `name` and `cache` are as in `open_images`.

  Raises:
    UserError: as in `open_images`.
  """
  root = expanded(path, "config.data.path")
  folder = expanded(cache or DEFAULT_CACHE, "config.data.cache")
  with readable(path):
    if any((root / part / "images.npy").exists() for part in ("", "train")):
      return read_class_names(root / "classes.txt")
    return _find(name, path, folder, tune=True).class_names


def _find(name: str, path: str, cache: pathlib.Path, tune: bool) -> Table:
  if remote.is_remote(path):
    table = list_tfds(remote.fetch_about(path, cache), evaluation=not tune)
    return dataclasses.replace(table, root=path.rstrip("/"))
  if not path:
    return list_tfds(prepare_with_tfds(name, _ACCEPTED), evaluation=not tune)
  root = expanded(path, "config.data.path").absolute()
  if is_csv(root) and root.exists():
    return read_csv(root, tune=tune)
  if not root.is_dir():
    state = "is a file" if root.exists() else "does not exist"
    raise UserError(f"config.data.path: {root} {state}; it names {_ACCEPTED}.")
  if any((folder / "images.npy").exists() for folder in (root, root / "train")):
    raise UserError(
      f"config.data.path: {root} holds arrays, and this recipe reads encoded images from the "
      "disk: choose one that trains from memory, such as --config=configs/quickstart.py."
    )
  refuse_half_made(root)
  return list_images(root, name, tune=tune)


def list_images(root: pathlib.Path, name: str = "", *, tune: bool = False) -> Table:
  """List the images of a folder, or the shards in it; arguments as in `open_images`.

  Raises:
    UserError: it holds no data set, or a damaged or incomplete one.
    OSError: it cannot be read.
  """
  others: collections.Counter[str] = collections.Counter()
  if found := splits_in(root):
    splits, what = choose_splits(found, root, evaluation=not tune)
  elif version := find_tfds(root, name):
    return list_tfds(version, evaluation=not tune)
  elif list_folder(root).folders:
    splits, what = [""], "class folders"
  else:
    raise UserError(
      f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
    )
  numbers: dict[str, int] = {}
  # One string that grows where it is: parts put together at the end would take twice the memory.
  names, images_of = bytearray(), list[tuple[int, int, bool]]()
  for split in splits:
    for each, images in list_classes(root / split, others):
      folder = os.path.join(split, each, "")
      names += os.fsencode("".join(f"{folder}{file}\0" for file in images))
      number = numbers.setdefault(each, len(numbers))
      images_of.append((number, len(images), split == splits[0]))
  # Folders of copies are named by a number.
  title = printable(f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name)
  labels, counts, is_train = np.array(images_of, np.int32).T
  return Table(
    root=str(root),
    names=Names(np.frombuffer(names, np.uint8)),
    file=np.arange(counts.sum(), dtype=np.int32),
    label=np.repeat(labels, counts),
    class_names=tuple(numbers),
    source=f"{title}: {what}",
    notes=left_out(others),
    place=root,
    train=int(counts @ is_train) if found else None,
  )


def _require_fitting(table: Table) -> None:
  """Compare copies or shards with what was written, and with their originals.

  Originals that are not on this machine are not compared; an empty folder counts as missing,
  because a disk may not be mounted there.

  Raises:
    UserError: there are more or fewer than were written, or they do not fit their originals.
  """
  folder, made = table.place, read_prepared(table.place)
  if made is None:
    return
  for found, written in zip(table.counts, made.images, strict=False):
    if found not in (written, 0):  # 0: it is not listed, to tune
      raise UserError(
        f"{folder} holds {found:,} images of a split in which {written:,} were written: run "
        f"{mending(folder, made)}."
      )
  root = pathlib.Path(made.source)
  with readable(root, "originals are"):
    if not root.is_dir() or not list_folder(root).folders:
      return
    originals = list_images(root)
    sample = stat_sample(originals)
  changed = [number for number, each in sample.items() if each.st_mtime_ns > made.newest]
  if len(originals.names) != made.originals:
    difference = f"there were {made.originals:,} then, and now {len(originals.names):,}"
  elif digest_of(originals.names) != made.digest:
    difference = "there were images of other names"
  elif changed:
    named = some(sorted(map(originals.name, changed)), 3)
    difference = f"{len(changed):,} of {len(sample):,} sampled images have changed ({named})"
  else:
    return
  raise UserError(
    f"{folder} does not fit the images in {root}: {difference}; run {mending(folder, made)}."
  )


def _checked_names(table: Table) -> tuple[str, ...]:
  """Return the names of the classes in shards, or their numbers where they have no names.

  Raises:
    UserError: a label has no class, or two classes have one name.
  """
  largest = int(table.label.max())
  check_labels(int(table.label.min()), largest, table.class_names, table.root)
  if largest >= len(table):
    raise UserError(
      f"labels of {table.root} go up to {largest}, but it has only {len(table)} images: labels "
      "count classes from 0."
    )
  return table.class_names or tuple(map(str, range(largest + 1)))
