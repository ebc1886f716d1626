"""Image classification sets that fit in memory: every format that CIFAR comes in, and one's own.

    arrays = open_arrays(name="cifar10", path="cifar-10-binary.tar.gz", cache="", classes=10)

What lies at `path` decides the set and its format: the official binary version (`cifar.py`), a
folder that TFDS prepared (`tfrecord.py`), or .npy files. The first two are read once and then from
a cache (`array_cache.py`). `name` counts where there is no path. TensorFlow is not needed, except
by TFDS where it is to download a set.
"""

import dataclasses
import importlib
import importlib.util
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.formats import array_cache
from jaxspeed.data.formats.class_names import distinct
from jaxspeed.data.formats.folders import has_splits, list_folder
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import (
  TfdsInfo,
  find_tfds,
  open_tfds,
  read_shards,
)
from jaxspeed.data.memory.cifar import (
  Cifar,
  cifar_files,
  find_cifar,
  find_pickled,
  read_cifar_archive,
  read_cifar_folder,
  refuse_pickled,
)
from jaxspeed.data.memory.own import check_sizes, read_own, tenth_of
from jaxspeed.data.memory.statistics import channel_statistics
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded

_log = logging.getLogger("jaxspeed")


class Known(NamedTuple):
  """What is known of a set before it is read."""

  train_images: int
  eval_images: int
  image_size: int
  classes: int


KNOWN = {
  "cifar10": Known(50_000, 10_000, 32, 10),
  "cifar100": Known(50_000, 10_000, 32, 100),
  "digits": Known(1_500, 297, 8, 10),
}
_FIELDS = ("train_images", "train_labels", "eval_images", "eval_labels")
_ACCEPTED = (
  "a folder or .tar.gz archive of CIFAR's binary version (data_batch_1.bin ... or train.bin), a "
  "folder that TFDS prepared (dataset_info.json), or a folder with train/images.npy, "
  "train/labels.npy, val/images.npy and val/labels.npy, or with images.npy and labels.npy"
)


@dataclasses.dataclass(frozen=True)
class Arrays:
  """A whole set: images for training and evaluation, labels from 0, and what it is and whence.

  Attributes:
    name: what the set was found to be: cifar10, cifar100, digits, a name of TFDS; "" one's own.
    notes: lines on what of it decides over the config.
    evaluated_on: its own images for evaluation (test), a tenth of a set without them (held-out), or
      training images (validation).
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
    """Whether it is one's own: arrays that are no known set."""
    return not self.name

  @property
  def benchmark(self) -> str:
    """DAWNBench's name of the set, where it is one of its sets, whole; else ''."""
    return "CIFAR10" if (self.name, *self.counts) == ("cifar10", 50_000, 10_000) else ""

  @property
  def counts(self) -> tuple[int, int]:
    """Images to train on, and to evaluate on."""
    return len(self.train_labels), len(self.eval_labels)

  @property
  def decides(self) -> dict[str, int]:
    """Fields of `config.data` that the arrays decide, with their values."""
    return {"image_size": self.train_images.shape[1], "classes": len(self.class_names)}

  def evaluated_count(self, copies: int) -> int:
    """Images that any phase evaluates."""
    return len(self.eval_labels)

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the channels of the training images, 0 ... 255."""
    return channel_statistics(self.train_images)


def known(name: str) -> Known:
  """What is known of the data set that `config.data.name` names without a path.

  Raises:
    UserError: there is no such data set.
  """
  if name not in KNOWN:
    raise UserError(
      f"config.data.name={name!r}: without config.data.path it is one of {', '.join(KNOWN)}."
    )
  return KNOWN[name]


def open_arrays(
  *,
  name: str,
  path: str,
  cache: str,
  classes: int,
  follow: bool = False,
  tune: bool = False,
) -> Arrays:
  """Opens the set that a config names.

  Args:
    name: where there is no path: 'cifar10', 'cifar100' or 'digits' (scikit-learn's).
    path: a folder or archive; '' takes `name` from the cache or lets TFDS download it.
    cache: folder of the copies as plain arrays; '' means ~/.cache/jaxspeed/data.
    classes: how many classes the config expects.
    follow: of one's own arrays, whether they may have another number of classes.
    tune: as `hold_out` takes the place of the evaluation images, these need not be there.

  Raises:
    UserError: nothing readable is at `path`, it is damaged, or has another number of classes.
  """
  cache_folder = expanded(cache or array_cache.DEFAULT_CACHE, "config.data.cache")
  if not path:
    known(name)
  try:
    if path:
      arrays = _read_path(expanded(path, "config.data.path"), name, cache_folder, tune)
    elif name == "digits":
      arrays = _read_digits()
    else:
      arrays = _read_without_path(name, cache_folder, tune)
  except OSError as error:
    raise UserError(
      f"{error.filename or path or name} cannot be read ({error.strerror or error}): the data set "
      "is not complete, or not readable for you."
    ) from error
  arrays = _with_classes(arrays, classes, path or name, follow and arrays.is_own)
  return hold_out(arrays) if tune else arrays


def hold_out(arrays: Arrays) -> Arrays:
  """The set with a tenth of its training images in the place of its evaluation images.

  Hyper-parameters that are chosen by the accuracy on these do not know the test set.

  The tenth is that of the smallest BLAKE2b digests of the pixels: a permutation that is fixed,
  independent of any seed, and as good as random whatever order the set has (the last tenth of one
  that is sorted would be a class). It is also the same in every format of a set: CIFAR's binary
  files and TFDS's shards hold the same images in different orders, and to evaluate on the one what
  was trained on the other must not meet training images. Both parts keep the order of the set.

  Raises:
    UserError: there are fewer than two training images.
  """
  images, labels = arrays.train_images, arrays.train_labels
  if len(labels) < 2:
    raise UserError(
      f"{arrays.source} has {len(labels)} image for training, of which config.tune_on=validation "
      "can hold none out: set --config.tune_on=test."
    )
  kept, out = tenth_of(images)
  return dataclasses.replace(
    arrays,
    train_images=images[kept],
    train_labels=labels[kept],
    eval_images=images[out],
    eval_labels=labels[out],
    source=f"{arrays.source}; {len(out):,} training images are held out for tuning",
    evaluated_on="validation",
  )


def _read_path(path: pathlib.Path, name: str, cache: pathlib.Path, tune: bool) -> Arrays:
  """Finds out what `path` is, and reads it."""
  if not path.exists():
    raise UserError(f"config.data.path: {path} does not exist; it names {_ACCEPTED}.")
  if path.is_file():
    return _through_cache(
      path, name, cache, files=[path], read=lambda: _from_cifar(read_cifar_archive(path), path)
    )
  if found := find_cifar(path, name):
    layout, folder = found
    return _through_cache(
      folder,
      name,
      cache,
      files=cifar_files(layout, folder),
      read=lambda: _from_cifar(read_cifar_folder(layout, folder), folder),
    )
  if version := find_tfds(path, name):
    return _read_tfds(version, name, cache, tune)
  if any((folder / "images.npy").exists() for folder in (path, path / "train")):
    return Arrays(**read_own(path, tune=tune))
  if pickled := find_pickled(path):
    raise refuse_pickled(pickled)
  if not path.is_dir():
    raise UserError(f"config.data.path: {path} is no regular file; it names {_ACCEPTED}.")
  if has_splits(path) or any(list_folder(path / each).images for each in _first_folder(path)):
    raise UserError(
      f"config.data.path: {path} has folders of images, and this recipe trains from memory: choose "
      "one that reads them from the disk, such as --config=configs/imagenette.py."
    )
  content = "is empty" if next(path.iterdir(), None) is None else "holds no data set read here"
  raise UserError(f"config.data.path: {path} {content}; it names {_ACCEPTED}.")


def _first_folder(path: pathlib.Path) -> list[str]:
  return list_folder(path).folders[:1]


def _read_without_path(name: str, cache: pathlib.Path, tune: bool) -> Arrays:
  """The set `name` from the cache, or as TFDS downloads it."""
  for entry in array_cache.entries(cache, name):
    if not _is_current(entry):
      continue
    stored = array_cache.load(entry, None)
    if stored and stored[1]["name"] == name:
      return _from_stored(*stored)
  if importlib.util.find_spec("tensorflow_datasets") is None:
    raise UserError(
      f"config.data.path is not set, and no {name} is in the cache {cache}: name {_ACCEPTED}; or "
      "install TFDS, which downloads it (pip install 'jaxspeed[imagenet]')."
    )
  return _read_tfds(prepare_with_tfds(name, _ACCEPTED), name, cache, tune)


def _is_current(entry: pathlib.Path) -> bool:
  """Whether the source of an entry is there, and is as it was read."""
  try:
    return array_cache.is_current(array_cache.read_about(entry)[1])
  except (OSError, KeyError, TypeError, ValueError):
    return False


def _through_cache(
  path: pathlib.Path,
  name: str,
  cache: pathlib.Path,
  *,
  files: Sequence[pathlib.Path],
  read: Callable[[], tuple[str, Arrays]],
) -> Arrays:
  """What `read` makes of `files` of the source at `path`, or the cache's copy of it.

  `read` returns the set's own name too: `path` may hold another set than the config's `name`.
  """
  entry = array_cache.entry_of(cache, name, path)
  # Taken before reading: files that change meanwhile then do not fit, and are read again.
  fingerprint = array_cache.fingerprint(path, files)
  if stored := array_cache.load(entry, fingerprint):
    return _from_stored(*stored)
  _log.info("reading %s", path)
  own_name, arrays = read()
  about = {"name": own_name, "class_names": arrays.class_names, "source": arrays.source}
  content = {field: getattr(arrays, field) for field in _FIELDS}
  array_cache.store(entry, content, about, fingerprint)
  return arrays


def _from_stored(content: dict[str, Any], about: dict[str, Any]) -> Arrays:
  return Arrays(
    **content,
    class_names=tuple(about["class_names"]),
    source=f"{about['source']}, from the cache",
    name=about["name"],
  )


def _from_cifar(cifar: Cifar, path: pathlib.Path) -> tuple[str, Arrays]:
  return cifar.layout.name, Arrays(
    train_images=cifar.train_images,
    train_labels=cifar.train_labels,
    eval_images=cifar.test_images,
    eval_labels=cifar.test_labels,
    class_names=cifar.class_names,
    source=f"{cifar.layout.title}, binary version in {printable(path.name)}",
    name=cifar.layout.name,
  )


def _read_tfds(folder: pathlib.Path, name: str, cache: pathlib.Path, tune: bool) -> Arrays:
  info = open_tfds(folder, tune=tune)
  own_name = info.name or "tfds"
  return _through_cache(
    folder, name, cache, files=info.files, read=lambda: (own_name, _from_tfds(info, own_name))
  )


def _from_tfds(info: TfdsInfo, name: str) -> Arrays:
  train_images, train_labels = read_shards(info, info.train)
  # Of a set without a split to evaluate on only a hold-out is asked for.
  eval_images, eval_labels = (
    read_shards(info, info.eval) if info.eval else (train_images, train_labels)
  )
  check_sizes(train_images, eval_images, info.folder)
  return Arrays(
    train_images=train_images,
    train_labels=train_labels,
    eval_images=eval_images,
    eval_labels=eval_labels,
    class_names=info.class_names,
    source=printable(f"TFDS {info.name} {info.folder.name}, splits train and {info.eval_split}"),
    name=name,
  )


def _split(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int32[np.ndarray, "n"], held_out: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Train images and labels, then `held_out` of each for evaluation; the same ones every time."""
  # RandomState's streams are frozen (NEP 19); a newer generator's may change with NumPy's version.
  order = np.random.RandomState(0).permutation(len(labels))
  kept, out = order[held_out:], order[:held_out]
  return images[kept], labels[kept], images[out], labels[out]


def _read_digits() -> Arrays:
  """scikit-learn's 1,797 digits of 8 x 8 pixels (UCI's optdigits, its test part)."""
  datasets = importlib.import_module("sklearn.datasets")
  digits = datasets.load_digits()
  grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # from 0 ... 16
  images, labels = np.repeat(grey[..., None], 3, axis=-1), digits.target.astype(np.int32)
  train_images, train_labels, eval_images, eval_labels = _split(
    images, labels, KNOWN["digits"].eval_images
  )
  return Arrays(
    train_images=train_images,
    train_labels=train_labels,
    eval_images=eval_images,
    eval_labels=eval_labels,
    class_names=tuple(map(str, range(10))),
    source=f"scikit-learn's digits; {len(eval_labels)} of {len(labels):,} held out for evaluation",
    name="digits",
    evaluated_on="held-out",
  )


def _with_classes(arrays: Arrays, classes: int, where: str, follow: bool) -> Arrays:
  """Checks the labels against the class names and the config; numbers become the missing names.

  Args:
    arrays: with class names, or none.
    classes: what the config says.
    where: the set is.
    follow: the set may have another number of classes than the config says. Labels without names
      must then use every number, so that no mistake among them becomes a thousand classes.
  """
  labels = np.concatenate([arrays.train_labels, arrays.eval_labels])
  smallest, largest, named = int(labels.min()), int(labels.max()), len(arrays.class_names)
  if smallest < 0:
    raise UserError(f"a label of {where} is {smallest}: labels count from 0, one for each image.")
  if named and largest >= named:
    raise UserError(
      f"labels of {where} go up to {largest}, but it has names for only {named} classes: mend its "
      "labels or its list of class names."
    )
  found = named or largest + 1
  distinct(arrays.class_names, where)
  if follow and found != classes:
    used = len(np.unique(labels))
    if not named and used != found:
      raise UserError(
        f"labels of {where} go up to {largest}, but only {used} numbers are used: count classes "
        f"from 0 without gaps, name all in classes.txt, or set --config.data.classes={found}."
      )
    if found < 2:
      raise UserError(f"labels of {where} are all 0: at least two classes are needed.")
    classes = found
  if found > classes or (named and named != classes):
    raise UserError(
      f"labels of {where} name {found} classes (largest label {largest}) but config.data.classes "
      f"is {classes}: set --config.data.classes={found}."
    )
  return dataclasses.replace(
    arrays, class_names=arrays.class_names or tuple(map(str, range(classes)))
  )
