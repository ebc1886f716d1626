"""The names of a data set's classes, and a check of the labels in shards against them."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from jaxspeed.data.formats.class_names import read_class_names
from jaxspeed.data.formats.folders import EVAL_FOLDERS, has_splits, list_folder
from jaxspeed.data.formats.label_csv import is_csv, read_csv
from jaxspeed.data.formats.tfrecord import TfdsInfo, find_tfds, only_tfds, open_tfds
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded


def label_names(info: TfdsInfo, labels: Sequence[Int32[np.ndarray, "_"]]) -> tuple[str, ...]:
  """Return the names of the classes, or their numbers where they have no names.

  Raises:
    UserError: a label has no class, or two classes have one name.
  """
  smallest = min(int(each.min()) for each in labels)
  largest = max(int(each.max()) for each in labels)
  if smallest < 0:
    raise UserError(
      f"a label of {info.folder} is {smallest}: labels count from 0, one for each image."
    )
  if len(set(info.class_names)) < len(info.class_names):
    twice = next(name for name in info.class_names if info.class_names.count(name) > 1)
    found = f"{info.folder} has two classes of the name {printable(twice)}"
    raise UserError(f"{found}: correct its list of class names.")
  named = len(info.class_names)
  if named and largest >= named:
    raise UserError(
      f"labels of {info.folder} go up to {largest}, but it has names for only {named} classes: "
      "correct its labels or its list of class names."
    )
  if largest >= (images := sum(map(len, labels))):
    raise UserError(
      f"labels of {info.folder} go up to {largest}, but it has only {images} images: labels count "
      "classes from 0."
    )
  return info.class_names or tuple(map(str, range(largest + 1)))


def class_names_of(*, name: str, path: str) -> tuple[str, ...]:
  """Return the class names of the data set at `path`, or (); this opens no image.

  Raises:
    UserError: as in `imageset.open_images`.
  """
  root = expanded(path, "config.data.path").absolute()
  try:
    if is_csv(root):
      return read_csv(root, tune=True).classes
    if any((root / part / "images.npy").exists() for part in ("", "train")):
      return read_class_names(root / "classes.txt")
    if has_splits(root):
      split = next(each for each in ("train", *EVAL_FOLDERS) if (root / each).is_dir())
      return tuple(list_folder(root / split).folders)
    if version := find_tfds(root, name) or only_tfds(root):
      return open_tfds(version, tune=True).class_names
    return tuple(list_folder(root).folders)
  except OSError as error:
    raise UserError(f"{root} cannot be read ({error.strerror or error}).") from error
