"""Image classification sets that fit in memory: every format that CIFAR comes in, and one's own.

    arrays = open_arrays(name="cifar10", path="cifar-10-binary.tar.gz", cache="", classes=10)

What lies at `path` decides the format: the official binary version (`cifar.py`), a folder that TFDS
prepared (`tfrecord.py`), or .npy files. The first two are read once and then from a cache
(`array_cache.py`). TensorFlow is not needed, except by TFDS where it is to download a set.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.formats import array_cache
from jaxspeed.data.formats.tfrecord import (
  TfdsInfo,
  find_tfds,
  open_tfds,
  prepare_with_tfds,
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
from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")

NAMES = ("cifar10", "cifar100", "digits")
_FIELDS = ("train_images", "train_labels", "eval_images", "eval_labels")
_DIGITS_TRAIN = 1_500
_ACCEPTED = (
  "a folder or .tar.gz archive of CIFAR's binary version (data_batch_1.bin ... or train.bin), a "
  "folder that TFDS prepared (dataset_info.json), or a folder with train/images.npy, "
  "train/labels.npy, val/images.npy and val/labels.npy, or with images.npy and labels.npy"
)


@dataclasses.dataclass(frozen=True)
class Arrays:
  """A whole set: images for training and evaluation, labels from 0, and what it is and whence."""

  train_images: UInt8[np.ndarray, "n h w 3"]
  train_labels: Int32[np.ndarray, "n"]
  eval_images: UInt8[np.ndarray, "m h w 3"]
  eval_labels: Int32[np.ndarray, "m"]
  class_names: tuple[str, ...]
  source: str


def open_arrays(*, name: str, path: str, cache: str, classes: int) -> Arrays:
  """Opens the set that a config names.

  Args:
    name: 'cifar10', 'cifar100' or 'digits' (scikit-learn's, in no need of a path).
    path: a folder or archive; '' takes `name` from the cache or lets TFDS download it.
    cache: folder of the copies as plain arrays; '' means ~/.cache/jaxspeed/data.
    classes: how many classes the config expects.

  Raises:
    UserError: nothing readable is at `path`, it is damaged, or has another number of classes.
  """
  if name not in NAMES:
    raise UserError(f"config.data.name is {name!r}: it is one of {', '.join(NAMES)}.")
  cache_folder = pathlib.Path(cache or "~/.cache/jaxspeed/data").expanduser()
  try:
    if name == "digits":
      arrays = _read_digits(path)
    elif path:
      arrays = _read_path(pathlib.Path(path).expanduser(), name, cache_folder)
    else:
      arrays = _read_without_path(name, cache_folder)
  except OSError as error:
    raise UserError(
      f"{error.filename or path or name} cannot be read ({error.strerror or error}): the data set "
      "is not complete, or not readable for you."
    ) from error
  return _with_classes(arrays, classes, path or name)


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
  digests = b"".join(hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
  order = np.argsort(np.frombuffer(digests, "<u8"), kind="stable")
  held_out = len(labels) // 10 or 1
  out, kept = np.sort(order[:held_out]), np.sort(order[held_out:])
  return dataclasses.replace(
    arrays,
    train_images=images[kept],
    train_labels=labels[kept],
    eval_images=images[out],
    eval_labels=labels[out],
    source=f"{arrays.source}, {held_out:,} training images held out for tuning",
  )


def _read_path(path: pathlib.Path, name: str, cache: pathlib.Path) -> Arrays:
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
    return _read_tfds(version, name, cache)
  if (path / "train" / "images.npy").is_file() or (path / "images.npy").is_file():
    return _read_npy(path)
  if pickled := find_pickled(path):
    raise refuse_pickled(pickled)
  content = "is empty" if next(path.iterdir(), None) is None else "holds no data set read here"
  raise UserError(f"config.data.path: {path} {content}; it names {_ACCEPTED}.")


def _read_without_path(name: str, cache: pathlib.Path) -> Arrays:
  """Set `name` from the cache, or as TFDS downloads it."""
  for entry in array_cache.entries(cache, name):
    stored = array_cache.load(entry, None)
    if stored and stored[1]["name"] == name:
      return _from_stored(*stored)
  if importlib.util.find_spec("tensorflow_datasets") is None:
    raise UserError(
      f"config.data.path is not set, and no {name} is in the cache {cache}: name {_ACCEPTED}; or "
      "install TFDS, which downloads it (pip install 'jaxspeed[imagenet]')."
    )
  return _read_tfds(prepare_with_tfds(name, _ACCEPTED), name, cache)


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


def _from_stored(content: dict[str, np.ndarray], about: dict[str, Any]) -> Arrays:
  return Arrays(
    **content,
    class_names=tuple(about["class_names"]),
    source=f"{about['source']}, from the cache",
  )


def _from_cifar(cifar: Cifar, path: pathlib.Path) -> tuple[str, Arrays]:
  return cifar.layout.name, Arrays(
    train_images=cifar.train_images,
    train_labels=cifar.train_labels,
    eval_images=cifar.test_images,
    eval_labels=cifar.test_labels,
    class_names=cifar.class_names,
    source=f"{cifar.layout.title}, binary version in {path.name}",
  )


def _read_tfds(folder: pathlib.Path, name: str, cache: pathlib.Path) -> Arrays:
  info = open_tfds(folder)
  return _through_cache(
    folder, name, cache, files=info.files, read=lambda: (info.name, _from_tfds(info))
  )


def _from_tfds(info: TfdsInfo) -> Arrays:
  train_images, train_labels = read_shards(info, info.train)
  eval_images, eval_labels = read_shards(info, info.eval)
  _check_sizes(train_images, eval_images, info.folder)
  return Arrays(
    train_images=train_images,
    train_labels=train_labels,
    eval_images=eval_images,
    eval_labels=eval_labels,
    class_names=info.class_names,
    source=f"TFDS {info.name} {info.folder.name}, splits train and {info.eval_split}",
  )


def _read_npy(path: pathlib.Path) -> Arrays:
  """A folder of one's own .npy files, in two splits or in one, of which a tenth is held out."""
  if (path / "train").is_dir():
    split = next((each for each in ("val", "test") if (path / each).is_dir()), None)
    if split is None:
      raise UserError(f"{path} has train/ but neither val/ nor test/ to evaluate on.")
    train_images, train_labels = _read_pair(path / "train")
    eval_images, eval_labels = _read_pair(path / split)
    source = f"{path.name}: train and {split}"
  else:
    images, labels = _read_pair(path)
    train_images, train_labels, eval_images, eval_labels = _split(
      images, labels, len(images) // 10 or 1
    )
    source = f"{path.name}: a random tenth ({len(eval_labels):,} images) held out for evaluation"
  _check_sizes(train_images, eval_images, path)
  names = path / "classes.txt"
  lines = names.read_text(encoding="utf-8").splitlines() if names.is_file() else []
  return Arrays(
    train_images=train_images,
    train_labels=train_labels,
    eval_images=eval_images,
    eval_labels=eval_labels,
    class_names=tuple(line.strip() for line in lines if line.strip()),
    source=source,
  )


def _read_pair(
  folder: pathlib.Path,
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"]]:
  """images.npy and labels.npy of one folder; grey images are repeated to three channels."""
  images = _load_npy(folder / "images.npy")
  if (
    images.dtype != np.uint8
    or images.ndim not in (3, 4)
    or images.shape[3:] not in ((), (1,), (3,))
  ):
    raise UserError(
      f"{folder / 'images.npy'} is {images.dtype} of shape {images.shape}: images are uint8, "
      "[n, height, width, 3] or grey [n, height, width]."
    )
  labels = _load_npy(folder / "labels.npy")
  if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or not labels.size:
    raise UserError(
      f"{folder / 'labels.npy'} is {labels.dtype} of shape {labels.shape}: labels are integers, "
      f"one for each of the {len(images)} images, and at least one."
    )
  if images.ndim == 3:
    images = images[..., None]
  if images.shape[-1] == 1:
    images = np.repeat(images, 3, axis=-1)
  # Clipped, not wrapped: a label that no int32 holds must stay one that no class has.
  int32 = np.iinfo(np.int32)
  return np.array(images, order="C"), np.clip(labels, int32.min, int32.max).astype(np.int32)


def _load_npy(path: pathlib.Path) -> np.ndarray:
  """Maps one .npy file; its pages are read when they are copied."""
  try:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(array, np.ndarray):
      return array
    reason = "it is an .npz archive"
  except FileNotFoundError as error:
    raise UserError(f"{path} is missing: images.npy and labels.npy lie side by side.") from error
  except (OSError, ValueError, EOFError) as error:
    reason = str(error)
  raise UserError(
    f"{path} is no .npy file of numbers ({reason}); pickled objects are refused, because loading "
    "them runs the code in them: write it with np.save(..., allow_pickle=False)."
  )


def _split(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int32[np.ndarray, "n"], held_out: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Train images and labels, then `held_out` of each for evaluation; the same ones every time."""
  # RandomState's streams are frozen (NEP 19); a newer generator's may change with NumPy's version.
  order = np.random.RandomState(0).permutation(len(labels))
  kept, out = order[held_out:], order[:held_out]
  if not len(kept):
    raise UserError(f"{len(labels)} images are too few to hold some out for evaluation.")
  return images[kept], labels[kept], images[out], labels[out]


def _read_digits(path: str) -> Arrays:
  """scikit-learn's 1,797 digits of 8 x 8 pixels (UCI's optdigits, its test part)."""
  if path:
    raise UserError(
      f"config.data.path is {path!r}, but the digits are part of scikit-learn: leave it empty, or "
      "choose a config for your own data."
    )
  datasets = importlib.import_module("sklearn.datasets")
  digits = datasets.load_digits()
  grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # from 0 ... 16
  images, labels = np.repeat(grey[..., None], 3, axis=-1), digits.target.astype(np.int32)
  train_images, train_labels, eval_images, eval_labels = _split(
    images, labels, len(labels) - _DIGITS_TRAIN
  )
  return Arrays(
    train_images=train_images,
    train_labels=train_labels,
    eval_images=eval_images,
    eval_labels=eval_labels,
    class_names=tuple(map(str, range(10))),
    source=f"scikit-learn's digits, {len(eval_labels)} of {len(labels):,} held out for evaluation",
  )


def _check_sizes(
  train: UInt8[np.ndarray, "n h w 3"], held_out: UInt8[np.ndarray, "m i j 3"], where: pathlib.Path
) -> None:
  if train.shape[1:] != held_out.shape[1:]:
    (h, w), (i, j) = train.shape[1:3], held_out.shape[1:3]
    raise UserError(
      f"{where}: images for training have {h} x {w} pixels and those for evaluation {i} x {j}; "
      "resize them to one size."
    )


def _with_classes(arrays: Arrays, classes: int, where: str) -> Arrays:
  """Checks the labels against the class names and the config; numbers become the missing names."""
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
  if found > classes or (named and named != classes):
    raise UserError(
      f"labels of {where} name {found} classes (largest label {largest}) but config.data.classes "
      f"is {classes}: set --config.data.classes={found}."
    )
  return dataclasses.replace(
    arrays, class_names=arrays.class_names or tuple(map(str, range(classes)))
  )
