"""Image classification data sets in memory: every format of CIFAR, and a user's own arrays.

    arrays = open_arrays(name="cifar10", path="cifar-10-binary.tar.gz", cache="", classes=10)

The files at `path` decide the data set and its format: CIFAR's official binary version
(`cifar.py`), a folder that TFDS prepared (`tfrecord.py`), or .npy files. Archives and TFDS's
shards are read once and then from a cache (`npz.py`). Without a path, `name` decides. Only TFDS
needs TensorFlow, to download a data set.
"""

import dataclasses
import functools
import logging
import pathlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.config.registry import DATA_SETS
from jaxspeed.data import remote
from jaxspeed.data.formats import npz
from jaxspeed.data.formats.class_names import check_labels
from jaxspeed.data.formats.folders import readable
from jaxspeed.data.formats.label_csv import is_csv
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import TfdsInfo, find_tfds, open_tfds, read_shards
from jaxspeed.data.hold_out import TENTH, hold_out_line, require_trained, single_image_note
from jaxspeed.data.memory.cifar import (
  find_cifar,
  read_cifar_archive,
  read_cifar_folder,
  refuse_pickled,
)
from jaxspeed.data.memory.digits import HELD_OUT as DIGITS_HELD_OUT
from jaxspeed.data.memory.digits import read_digits
from jaxspeed.data.memory.own import (
  FIELDS,
  channel_statistics,
  check_sizes,
  read_own,
  read_registered,
  share_of,
)
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, locked_folder

_log = logging.getLogger("jaxspeed")


class Known(NamedTuple):
  """The sizes of a data set that are known before it is read."""

  train_images: int
  eval_images: int
  image_size: int
  classes: int


KNOWN = {
  "cifar10": Known(50_000, 10_000, 32, 10),
  "cifar100": Known(50_000, 10_000, 32, 100),
  "digits": Known(1_500, DIGITS_HELD_OUT, 8, 10),
}
_ACCEPTED = (
  "a folder or .tar.gz archive of CIFAR's binary version (data_batch_1.bin ... or train.bin), a "
  "folder that TFDS prepared (dataset_info.json), or a folder with train/images.npy, "
  "train/labels.npy, val/images.npy and val/labels.npy, or with images.npy and labels.npy; images "
  "in files, a list or a bucket train with a recipe that reads them, such as "
  "--config=configs/imagenette.py"
)


@dataclasses.dataclass(frozen=True)
class Arrays:
  """A whole data set: images for training and evaluation, with labels from 0.

  Attributes:
    source: what the data set is and where it was found.
    name: cifar10, cifar100, digits or TFDS's name, as found; "" for a user's own arrays.
    notes: lines about fields of the config that the data set decides.
    evaluated_on: "test", its own evaluation images; "held-out", a share of a data set without any;
      or "validation", a share of the training images.
  """

  train_images: UInt8[np.ndarray, "n h w 3"]
  train_labels: Int32[np.ndarray, "n"]
  eval_images: UInt8[np.ndarray, "m h w 3"]
  eval_labels: Int32[np.ndarray, "m"]
  class_names: tuple[str, ...]
  source: str
  name: str = ""
  notes: tuple[str, ...] = ()
  evaluated_on: str = "test"
  decider = "the arrays decide"  # the fields in `decides`

  @property
  def is_own(self) -> bool:
    """Whether these are a user's own arrays, not a known data set."""
    return not self.name

  @property
  def counts(self) -> tuple[int, int]:
    """Numbers of training and evaluation images."""
    return len(self.train_labels), len(self.eval_labels)

  @property
  def decides(self) -> dict[str, int]:
    """Fields of `config.data` that the arrays decide, with their values."""
    return {"image_size": self.train_images.shape[1], "classes": len(self.class_names)}

  def to_evaluate_training(self) -> "Arrays":
    return dataclasses.replace(self, eval_images=self.train_images, eval_labels=self.train_labels)

  def evaluated_count(self, copies: int) -> int:
    return len(self.eval_labels)

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the channels' mean and standard deviation over the training images, 0 ... 255."""
    return channel_statistics(self.train_images)

  @functools.cached_property
  def fingerprint(self) -> str:
    """The word "arrays", and the CRC-32 of all labels and of the middle row of each image.

    All of CIFAR-10's pixels would take 0.2 s at each start, their middle rows a hundredth of that.
    """
    checksum = 0
    for images, labels in (
      (self.train_images, self.train_labels),
      (self.eval_images, self.eval_labels),
    ):
      rows = images[:, images.shape[1] // 2]
      for part in (rows.tobytes(), labels.astype("<i4").tobytes()):
        checksum = zlib.crc32(part, checksum)
    return f"arrays {checksum:08x}"


def known(name: str) -> Known:
  """Return the sizes of the data set that `config.data.name` names without a path.

  Raises:
    UserError: there is no such data set.
  """
  if name not in KNOWN:
    choose = f"choose {DATA_SETS.names()}"
    raise UserError(f"config.data.name={name!r}: set config.data.path, or {choose}.")
  return KNOWN[name]


def open_arrays(
  *,
  name: str,
  path: str,
  cache: str,
  classes: int,
  follow: bool = False,
  tune: bool = False,
  share: float = TENTH,
  given: Arrays | None = None,
) -> Arrays:
  """Open the data set that a config names, or check arrays that Python passes.

  Args:
    name: a registered data set; or without a path 'cifar10', 'cifar100' or 'digits'.
    path: a folder or archive; '' lets TFDS find or download `name`.
    cache: folder of the cached arrays; '' means ~/.cache/jaxspeed/data.
    classes: number of classes that the config expects.
    follow: whether a user's own arrays may have another number of classes.
    tune: whether to `hold_out` training images; evaluation images are then not needed.
    share: share of each class to hold out, where images are.
    given: the arrays from Python, in place of `name` and `path`.

  Raises:
    UserError: `path` holds no readable data set, a damaged one, or another number of classes.
  """
  cache_folder = expanded(cache or npz.DEFAULT_CACHE, "config.data.cache")
  registered = name in DATA_SETS
  if not (path or registered or given is not None):
    known(name)
  with readable(path or name):
    if given is not None:
      arrays = given
    elif registered:
      arrays = Arrays(**read_registered(name, path))
    elif remote.is_remote(path):
      raise _refused(path, "is an address, and this recipe trains from memory")
    elif path:
      arrays = _read_path(expanded(path, "config.data.path"), name, cache_folder, tune)
    elif name == "digits":
      arrays = Arrays(**read_digits())
    else:
      arrays = _read_tfds(prepare_with_tfds(name, _ACCEPTED), cache_folder, tune)
  where = "data=" if given is not None else path or name
  arrays = with_classes(arrays, classes, where, follow and arrays.is_own)
  if arrays.evaluated_on == "held-out" and not len(arrays.eval_labels):
    arrays = hold_out(arrays, share, "held-out")
  return hold_out(arrays, share) if tune else arrays


def hold_out(arrays: Arrays, share: float = TENTH, evaluated_on: str = "validation") -> Arrays:
  """Replace the evaluation images by a share of the training images.

  The pixels of the share have the smallest BLAKE2b digests of their class. So it needs no seed, is
  as good as random for any order of the images, and is the same in CIFAR's binary files and TFDS's
  shards: a run on one may be evaluated on the other.

  Raises:
    UserError: no class has two training images.
  """
  images, labels = arrays.train_images, arrays.train_labels
  kept, out = share_of(images, labels, share, arrays.source)
  return dataclasses.replace(
    arrays,
    train_images=images[kept],
    train_labels=labels[kept],
    eval_images=images[out],
    eval_labels=labels[out],
    source=f"{arrays.source}; {hold_out_line(len(out), len(labels), share, evaluated_on)}",
    notes=arrays.notes + single_image_note(labels, arrays.class_names),
    evaluated_on=evaluated_on,
  )


def _read_path(path: pathlib.Path, name: str, cache: pathlib.Path, tune: bool) -> Arrays:
  """Find the format of the data set at `path`, and read it."""
  if not path.exists():
    raise _refused(path, "does not exist")
  if is_csv(path):
    raise _refused(path, "lists image files, and this recipe trains from memory")
  if path.is_file():
    return _through_cache(path, [path], cache, lambda: Arrays(**read_cifar_archive(path)))
  if not path.is_dir():
    raise _refused(path, "is not a regular file")
  if found := find_cifar(path, name):
    return Arrays(**read_cifar_folder(*found))
  if version := find_tfds(path, name):
    return _read_tfds(version, cache, tune)
  if any((folder / "images.npy").exists() for folder in (path, path / "train")):
    return Arrays(**read_own(path, tune=tune))
  refuse_pickled(path, [path.name, *(each.name for each in path.iterdir())])
  raise _refused(path, "holds no data set, and this recipe trains from memory")


def _refused(path: object, found: str) -> UserError:
  return UserError(f"config.data.path: {path} {found}; it names {_ACCEPTED}.")


def _through_cache(
  source: pathlib.Path,
  files: Sequence[pathlib.Path],
  cache: pathlib.Path,
  read: Callable[[], Arrays],
) -> Arrays:
  """Return the cached arrays of a source, or `read` its `files` and cache them."""
  entry = npz.entry_of(cache, "arrays", source)
  # The processes of a host wait for the first, which reads the files.
  with locked_folder(cache):
    # Taken before reading: files that change meanwhile no longer fit, and are read again.
    found_now = [(file, file.stat()) for file in files]
    stats = [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in found_now]
    if entry.is_file():
      try:
        found, about = npz.read(entry)
        if about.pop("files") == stats:
          about |= {"class_names": tuple(about["class_names"])}
          fields: dict[str, Any] = found | about
          return Arrays(**fields | {"source": f"{about['source']}, from the cache"})
      except (ValueError, KeyError, TypeError) as error:
        _log.warning("the cache %s is not used and will be made again: %s", entry, error)
    _log.info("reading %s", source)
    arrays = read()
    about = {field: getattr(arrays, field) for field in ("name", "source", "class_names")}
    columns = {field: getattr(arrays, field) for field in FIELDS}
    npz.store(entry, columns, about | {"files": stats})
    return arrays


def _read_tfds(folder: pathlib.Path, cache: pathlib.Path, tune: bool) -> Arrays:
  info = open_tfds(folder, tune=tune)
  return _through_cache(folder, sorted(folder.iterdir()), cache, lambda: _from_tfds(info))


def _from_tfds(info: TfdsInfo) -> Arrays:
  train = read_shards(info, info.train)
  # A data set without an evaluation split is opened for a hold-out only.
  held_out = read_shards(info, info.eval) if info.eval else (train[0][:0], train[1][:0])
  check_sizes(train[0], held_out[0], info.folder)
  return Arrays(
    *train,
    *held_out,
    class_names=info.class_names,
    source=printable(f"TFDS {info.name} {info.folder.name}, splits train and {info.eval_split}"),
    name=info.name or "tfds",
  )


def with_classes(arrays: Arrays, classes: int, where: str, follow: bool) -> Arrays:
  """Check the labels against the class names and the config, and name unnamed classes by number.

  Args:
    arrays: the data set, with or without class names.
    classes: the config's number of classes.
    where: the data set's path or name, for messages.
    follow: whether the number of classes may differ from the config's. Labels without names must
      then use every number, so that one wrong label does not make a thousand classes.
  """
  labels = np.concatenate([arrays.train_labels, arrays.eval_labels])
  smallest, largest, named = int(labels.min()), int(labels.max()), len(arrays.class_names)
  check_labels(smallest, largest, arrays.class_names, where)
  if arrays.is_own and smallest == largest:
    raise UserError(f"labels of {where} are all {largest}: at least two classes are needed.")
  found = named or largest + 1
  if follow and found != classes:
    used = len(np.unique(labels))
    if not named and used != found:
      name_all = "pass class_names=" if where == "data=" else "name all in classes.txt"
      raise UserError(
        f"labels of {where} go up to {largest}, but use only {used} numbers: count classes from 0 "
        f"without gaps, {name_all}, or set config.data.classes={found}."
      )
    classes = found
  if found > classes or (named and named != classes):
    raise UserError(
      f"labels of {where} name {found} classes (largest label {largest}) but config.data.classes "
      f"is {classes}: set --config.data.classes={found}."
    )
  names = arrays.class_names or tuple(map(str, range(classes)))
  require_trained(arrays.train_labels, arrays.eval_labels, names, where)
  return dataclasses.replace(arrays, class_names=names)
