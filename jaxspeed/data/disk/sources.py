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
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxspeed.data import remote
from jaxspeed.data.disk.index import Show, open_table, read_headers
from jaxspeed.data.disk.prepared import (
  Prepared,
  digest_of,
  mending,
  read_prepared,
  refuse_half_made,
  time_of,
)
from jaxspeed.data.formats.class_names import check_labels, read_class_names
from jaxspeed.data.formats.folders import (
  has_splits,
  left_out,
  list_classes,
  list_folder,
  list_folders,
  readable,
)
from jaxspeed.data.formats.label_csv import is_csv, read_csv
from jaxspeed.data.formats.npz import DEFAULT_CACHE
from jaxspeed.data.formats.pixels import FORMATS
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import find_tfds, open_tfds
from jaxspeed.data.hold_out import TENTH, hold_out_line, single_image_note, split_by_digest
from jaxspeed.data.table import Listed, Names, Table
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import expanded

_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), a folder "
  "with CLASS/*.jpg, of which a share is held out, a .csv file with the columns file and label, or "
  "a folder that TFDS prepared (dataset_info.json), also in a bucket (s3://...)"
)
# The originals whose times are compared, in threads: a network disk is slow, but answers many.
_SAMPLE, _STAT_THREADS = 1_000, 32


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
      shards that do not fit their originals; or there are too few images to hold a share out.
  """
  folder = expanded(cache or DEFAULT_CACHE, "config.data.cache")
  with readable(path or name):
    listed = _find(name, path, folder, tune)
    if anew:
      table = read_headers(listed, show)
    else:
      _require_fitting(listed)
      table = open_table(listed, folder, show)
  names = _checked_names(listed, table) if listed.records else listed.class_names
  train = evaluation = table.take(slice(listed.train))
  if not tune and listed.train is not None:
    evaluation = table.take(slice(listed.train, None))
  for each in (train, evaluation):
    if not each.width.any():
      raise UserError(
        f"none of the {len(each)} images of {each.root} has a header that can be read (the first "
        f"is {each.name(0)}): images are {', '.join(FORMATS)} files, and these may be damaged."
      )
  source, notes, evaluated_on = listed.source, listed.notes, "test"
  for evaluated_on in ["held-out"] * (listed.train is None) + ["validation"] * tune:
    # By digests of class and file name: a copy, also in a shard, is on the side of its original.
    digests, whole = train.digests(names), train
    kept, held_out = split_by_digest(digests, whole.label, share, listed.source.split(":")[0])
    train, evaluation = whole.take(kept), whole.take(held_out)
    source += f"; {hold_out_line(len(held_out), len(whole), share, evaluated_on)}"
    notes += single_image_note(whole.label, names)
  return ImageSet(table, train, evaluation, names, source, notes, evaluated_on)


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
    return _list_tfds(remote.fetch_about(path, cache), tune, root=path.rstrip("/"))
  if not path:
    return _list_tfds(prepare_with_tfds(name, _ACCEPTED), tune)
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


def list_images(root: pathlib.Path, name: str = "", *, tune: bool = False) -> Listed:
  """List the images of a folder, or the shards in it; arguments as in `open_images`.

  Raises:
    UserError: it holds no data set, or a damaged or incomplete one.
    OSError: it cannot be read.
  """
  others: collections.Counter[str] = collections.Counter()
  if has_splits(root):
    files = list_folders(root, others, tune=tune)
    what = f"folders {' and '.join(files)}"
  elif version := find_tfds(root, name):
    return _list_tfds(version, tune)
  elif list_folder(root).folders:
    files, what = {"": list_classes(root, others)}, "class folders"
  else:
    raise UserError(
      f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
    )
  class_names = tuple(next(iter(files.values())))
  numbers = {name: number for number, name in enumerate(class_names)}
  names, labels = [], []
  for split, classes in files.items():
    for each, found in classes.items():
      names.append(Names.of(os.path.join(split, each, file) for file in found).text)
      labels.append(np.full(len(found), numbers[each], np.int32))
  # Folders of copies are named by a number.
  title = printable(f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name)
  return Listed(
    root,
    str(root),
    Names(np.concatenate(names)),
    None if "" in files else sum(map(len, files["train"].values())),
    class_names,
    f"{title}: {what}",
    left_out(others),
    labels=np.concatenate(labels),
  )


def _list_tfds(folder: pathlib.Path, tune: bool, root: str = "") -> Listed:
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


def _require_fitting(listed: Listed) -> None:
  """Compare copies or shards with their originals, then these with theirs: shards may hold copies.

  Originals that are not on this machine are not compared; an empty folder counts as missing,
  because a disk may not be mounted there.

  Raises:
    UserError: there are more or fewer than were written, or they do not fit their originals.
  """
  folder, made = listed.place, read_prepared(listed.place)
  for found, written in zip(listed.counts, made.images if made else (), strict=False):
    if made and found not in (written, 0):  # 0: it is not listed, to tune
      raise UserError(
        f"{folder} holds {found:,} images of a split in which {written:,} were written: run "
        f"{mending(folder, made)}."
      )
  for _ in ("shards", "copies"):
    if made is None:
      return
    root = pathlib.Path(made.source)
    with readable(root, "originals are"):
      if not root.is_dir() or not list_folder(root).folders:
        return
      difference = _difference(made, root)
    if difference:
      raise UserError(
        f"{folder} does not fit the images in {root}: {difference}; run {mending(folder, made)}."
      )
    folder, made = root, read_prepared(root)


def _difference(made: Prepared, root: pathlib.Path) -> str:
  """Return how the originals differ from those that a folder was made from, or ''."""
  names = list_images(root).names
  if len(names) != made.originals:
    return f"there were {made.originals:,} then, and now {len(names):,}"
  if digest_of(names) != made.digest:
    return "there were images of other names"
  numbers = random.Random(0).sample(range(len(names)), min(len(names), _SAMPLE))
  sample = [os.fsdecode(names[number]) for number in numbers]
  with ThreadPoolExecutor(_STAT_THREADS) as pool:
    times = pool.map(time_of, [os.path.join(root, name) for name in sample])
    pairs = zip(sample, times, strict=True)
    changed = sorted(printable(name) for name, time in pairs if time > made.newest)
  if not changed:
    return ""
  return f"{len(changed):,} of {len(sample):,} sampled images have changed ({some(changed, 3)})"


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
