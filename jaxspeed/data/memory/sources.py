"""Image classification data sets that are read into memory: CIFAR, TFDS, .npy files, digits.

    arrays = open_arrays(config.data)

The files at `path` decide the data set and its format: CIFAR's official binary version
(`cifar.py`), a folder that TFDS prepared (`tfrecord.py`), or .npy files. Archives and TFDS's
shards are read once and then from a cache (`npz.py`). Without a path, `name` decides. Only TFDS
needs TensorFlow, to download a data set.
"""

import importlib.util
import logging
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config.registry import DATA_SETS
from jaxspeed.data.formats import npz
from jaxspeed.data.formats.class_names import read_class_names
from jaxspeed.data.formats.folders import SPLITS, choose_splits, readable
from jaxspeed.data.formats.label_csv import is_csv
from jaxspeed.data.formats.tfrecord import find_tfds, list_tfds, prepare_with_tfds, read_shards
from jaxspeed.data.memory.arrays import (
  FIELDS,
  Arrays,
  checked,
  hold_out,
  repeat_grey,
  with_classes,
)
from jaxspeed.data.memory.cifar import arrays_of, find_files, refuse_pickled
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, locked_folder, open_regular

_log = logging.getLogger("jaxspeed")

_DIGITS_HELD_OUT = 297  # for evaluation, of 1,797
# The fields of `config.data` that are known before a data set is read.
KNOWN = {
  "cifar10": dict(train_images=50_000, eval_images=10_000, image_size=32, classes=10),
  "cifar100": dict(train_images=50_000, eval_images=10_000, image_size=32, classes=100),
  "digits": dict(train_images=1_500, eval_images=_DIGITS_HELD_OUT, image_size=8, classes=10),
}
_ACCEPTED = (
  "a folder or .tar.gz archive of CIFAR's binary version (data_batch_1.bin ... or train.bin), a "
  "folder that TFDS prepared (dataset_info.json), or a folder with train/images.npy, "
  "train/labels.npy, val/images.npy and val/labels.npy, or with images.npy and labels.npy; images "
  "in files, a list or a bucket train with a recipe that reads them, such as "
  "--config=configs/imagenette.py"
)


def known(name: str) -> dict[str, int]:
  """Return what is known of the data set that `config.data.name` names without a path.

  Raises:
    UserError: there is no such data set.
  """
  if name not in KNOWN:
    names = DATA_SETS.names()
    raise UserError(f"config.data.name={name!r}: set config.data.path, or choose {names}.")
  return KNOWN[name]


def open_arrays(
  fields: ConfigDict, *, follow: bool = False, tune: bool = False, given: Arrays | None = None
) -> Arrays:
  """Open the data set that a config names, or check arrays that Python passes.

  Args:
    fields: `config.data`: its path is a folder or an archive; without one, TFDS finds or downloads
      the data set of its name.
    follow: whether the data set may have another number of classes.
    tune: whether to `hold_out` training images; evaluation images are then not needed.
    given: the arrays from Python.

  Raises:
    UserError: the path holds no readable data set, a damaged one, or another number of classes.
  """
  name, path = fields.name, fields.path
  cache = expanded(fields.cache or npz.DEFAULT_CACHE, "config.data.cache")
  registered = name in DATA_SETS
  if not (path or registered or given is not None):
    known(name)
  with readable(path or name):
    if given is not None:
      arrays = given
    elif registered:
      arrays = _read_registered(name, path)
    elif path:
      arrays = _read_path(expanded(path, "config.data.path"), name, cache, tune)
    elif name == "digits":
      arrays = _read_digits()
    else:
      arrays = _read_tfds(prepare_with_tfds(name, _ACCEPTED), cache, tune)
  where = "data=" if given is not None else path or name
  arrays = with_classes(arrays, fields.classes, where, follow)
  if arrays.evaluated_on == "held-out" and not len(arrays.eval_labels):
    arrays = hold_out(arrays, fields.hold_out, "held-out")
  return hold_out(arrays, fields.hold_out) if tune else arrays


def _read_path(path: pathlib.Path, name: str, cache: pathlib.Path, tune: bool) -> Arrays:
  """Find the format of the data set at `path`, and read it."""
  if not path.exists():
    raise _refused(path, "does not exist")
  if path.is_file() and not is_csv(path):
    return _through_cache(path, cache, lambda archive: arrays_of(find_files(archive), archive))
  if path.is_dir():
    if files := find_files(path, name):
      return arrays_of(files, path, name)
    if version := find_tfds(path, name):
      return _read_tfds(version, cache, tune)
    if any((folder / "images.npy").exists() for folder in (path, path / "train")):
      return _read_own(path, tune)
    refuse_pickled(path, [path.name, *(each.name for each in path.iterdir())])
  raise _refused(path, "holds no data set, and this recipe trains from memory")


def _refused(path: object, found: str) -> UserError:
  return UserError(f"config.data.path: {path} {found}; it names {_ACCEPTED}.")


def _through_cache(
  source: pathlib.Path, cache: pathlib.Path, read: Callable[[pathlib.Path], Arrays]
) -> Arrays:
  """Return the cached arrays of an archive or a folder, or `read` and cache them."""
  entry = npz.entry_of(cache, "arrays", source)
  # The processes of a host wait for the first, which reads the files.
  with locked_folder(cache):
    # Taken before reading: files that change meanwhile no longer fit, and are read again.
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    found_now = [(file, file.stat()) for file in files]
    stats = [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in found_now]
    if entry.is_file():
      try:
        found, about = npz.read(entry)
        if about["files"] == stats:
          parts: dict[str, Any] = {field: found[field] for field in FIELDS}
          origin = f"{about['source']}, from the cache"
          return Arrays(**parts, class_names=tuple(about["class_names"]), source=origin)
      except (ValueError, KeyError, TypeError) as error:
        _log.warning("the cache %s is not used and will be made again: %s", entry, error)
    _log.info("reading %s", source)
    arrays = read(source)
    about = {"source": arrays.source, "class_names": arrays.class_names, "files": stats}
    npz.store(entry, {field: getattr(arrays, field) for field in FIELDS}, about)
    return arrays


def _read_tfds(folder: pathlib.Path, cache: pathlib.Path, tune: bool) -> Arrays:
  table = list_tfds(folder, evaluation=None if tune else True)

  def read(_: pathlib.Path) -> Arrays:
    images, labels = read_shards(table)
    train, evaluation = slice(table.train), slice(table.train, None)
    parts = images[train], labels[train], images[evaluation], labels[evaluation]
    return Arrays(*parts, table.class_names, table.source)

  return _through_cache(folder, cache, read)


def _read_own(path: pathlib.Path, tune: bool) -> Arrays:
  """Read a folder of .npy files: two splits, or one, without evaluation images.

  Raises:
    UserError: a file is missing, damaged, or does not hold images or labels.
  """
  splits, words = ["."], "arrays"
  if has_splits := (path / "train").is_dir():
    found = [each for each in SPLITS if (path / each).is_dir()]
    splits, words = choose_splits(found, path, evaluation=not tune)
  files = [path / each / f"{kind}.npy" for each in splits for kind in ("images", "labels")]
  parts = [*map(read_npy, files), None, None][:4]
  return Arrays(
    **checked(parts, [*map(str, files), "", ""]),
    class_names=read_class_names(path / "classes.txt"),
    source=f"{printable(path.name)}: {words}",
    evaluated_on="test" if has_splits else "held-out",
  )


def _read_registered(name: str, path: str) -> Arrays:
  """Return a data set of the user's own (`registry.data_set`).

  Raises:
    UserError: its function does not return images and labels.
  """
  made = DATA_SETS[name](path)
  if not isinstance(made, Mapping) or made.keys() - {"class_names"} != set(FIELDS):
    found = ", ".join(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
    raise UserError(
      f"the data set {name!r} returns {found}: return a dict with {', '.join(FIELDS)}, and "
      "class_names if it has any."
    )
  names = [f"the data set {name!r}: {key}" for key in FIELDS]
  return Arrays(
    **checked([made[key] for key in FIELDS], names),
    class_names=tuple(map(str, made.get("class_names", ()))),
    source=printable(f"data set {name}"),
  )


def read_npy(path: pathlib.Path) -> np.ndarray:
  """Read a .npy file of numbers, in C order.

  Raises:
    UserError: it is missing, cannot be read, is damaged, or does not hold numbers.
  """
  try:
    with open_regular(path) as file:
      # Not mapped: copying a mapped file would hold it in memory twice.
      found = np.load(file, allow_pickle=False)
      if not isinstance(found, np.ndarray) or found.dtype.kind not in "biufc":
        raise ValueError("it holds no array of numbers")
    return np.ascontiguousarray(found)
  except Exception as error:  # damaged headers raise almost anything
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    raise UserError(
      f"{path} is not a .npy file of numbers ({printable(reason[:200])}): write it with "
      "np.save(FILE, ARRAY, allow_pickle=False)."
    ) from error


def _read_digits() -> Arrays:
  """Return scikit-learn's 1,797 digits of 8 x 8 pixels (the test part of UCI's optdigits)."""
  # Without scikit-learn's code, whose import takes about a second.
  found = importlib.util.find_spec("sklearn")
  if found is None or found.origin is None:
    raise UserError("config.data.name='digits' needs scikit-learn: pip install scikit-learn.")
  path = pathlib.Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
  table = np.loadtxt(path, delimiter=",")  # a row a digit: 64 pixels, and the label
  grey = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # from 0 ... 16
  images, labels = repeat_grey(grey), table[:, -1].astype(np.int32)
  # RandomState's streams are frozen (NEP 19); newer generators may change with NumPy's version.
  order = np.random.RandomState(0).permutation(len(labels))
  out, kept = np.split(order, [_DIGITS_HELD_OUT])
  return Arrays(
    *(images[kept], labels[kept], images[out], labels[out]),
    class_names=tuple(map(str, range(10))),
    source=f"scikit-learn's digits; {len(out)} of {len(labels):,} held out for evaluation",
    evaluated_on="held-out",
  )
