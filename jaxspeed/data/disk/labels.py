"""A check of the labels in shards against the names of their classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from jaxspeed.data.formats.tfrecord import TfdsInfo
from jaxspeed.errors import UserError, printable


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
