"""Images in memory with their labels: what a run takes, and the checks of a user's own."""

import dataclasses
import functools
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.formats.class_names import check_labels
from jaxspeed.data.hold_out import (
  TENTH,
  hold_out_line,
  require_trained,
  single_image_note,
  split_by_digest,
)
from jaxspeed.errors import UserError

# Images counted at a time: all at once in float64, a data set of 2.4 GB took 20.9 GB of memory.
_COUNTED = 1_024
FIELDS = ("train_images", "train_labels", "eval_images", "eval_labels")
_ACCEPTED = (
  "uint8 from 0 to 255, or floats from 0 to 1, of shape [n, height, width, 3] or, if grey, "
  "[n, height, width], where n may be 1"
)


@dataclasses.dataclass(frozen=True)
class Arrays:
  """A whole data set: images for training and evaluation, with labels from 0.

  Attributes:
    source: what the data set is and where it was found.
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
  notes: tuple[str, ...] = ()
  evaluated_on: str = "test"
  decider = "the arrays decide"  # the fields in `decides`

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

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation of each channel of the training images, 0 ... 255.

    They are exact, from counts of the 256 values. The deviation is at least 1, so that images of
    one colour can be normalised.
    """
    counts = np.zeros((3, 256), np.int64)
    for begin in range(0, len(self.train_images), _COUNTED):
      for channel in range(3):
        part = self.train_images[begin : begin + _COUNTED, ..., channel]
        counts[channel] += np.bincount(part.ravel(), minlength=256)
    values, pixels = np.arange(256), counts[0].sum()
    mean = counts @ values / pixels
    variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / pixels
    return tuple(mean.tolist()), tuple(np.maximum(np.sqrt(variance), 1.0).tolist())

  @functools.cached_property
  def fingerprint(self) -> str:
    """The word "arrays", and the CRC-32 of all labels and of the middle row of each image.

    All of CIFAR-10's pixels would take 0.2 s at each start, their middle rows a hundredth of that.
    """
    checksum = 0
    for field in FIELDS:
      part = getattr(self, field)
      part = part[:, part.shape[1] // 2] if part.ndim > 1 else part.astype("<i4")
      checksum = zlib.crc32(part.tobytes(), checksum)
    return f"arrays {checksum:08x}"


def hold_out(arrays: Arrays, share: float = TENTH, evaluated_on: str = "validation") -> Arrays:
  """Replace the evaluation images by a share of the training images.

  The pixels of the share have the smallest BLAKE2b digests of their class. So it needs no seed, is
  as good as random for any order of the images, and is the same in CIFAR's binary files and TFDS's
  shards: a run on one may be evaluated on the other.

  Raises:
    UserError: no class has two training images.
  """
  images, labels = arrays.train_images, arrays.train_labels
  digests = (hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
  kept, out = split_by_digest(digests, labels, share, arrays.source)
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
  if smallest == largest:
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


def checked(parts: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
  """Return the images and labels of `arrays.Arrays`, in its types.

  Args:
    parts: images and labels to train on, and to evaluate on; None: there are none of the latter.
    names: what messages call them.

  Raises:
    UserError: they are no images or labels, or do not fit together.
  """
  images = images_of(parts[0], names[0])
  found = [images, labels_of(parts[1], len(images), names[1])]
  if parts[2] is None:
    found += [part[:0] for part in found]
  else:
    found.append(images_of(parts[2], names[2]))
    found.append(labels_of(parts[3], len(found[2]), names[3]))
    if found[0].shape[1:] != found[2].shape[1:]:
      (h, w), (i, j) = (part.shape[1:3] for part in found[::2])
      raise UserError(
        f"{names[0]}: images for training have {h} x {w} pixels and those for evaluation {i} x "
        f"{j}; resize them to one size."
      )
  return dict(zip(FIELDS, found, strict=True))


def images_of(images: Any, name: str, *, one: bool = False) -> UInt8[np.ndarray, "n h w 3"]:
  """Return images as uint8 in three channels; floats from 0 to 1 are rounded to 256 levels.

  Args:
    images: arrays, or anything that `numpy.asarray` takes.
    name: what messages call them.
    one: whether it may be a single image, [h, w, 3] or [h, w].

  Raises:
    UserError: they are of another kind.
  """
  images = _as_array(images, name, "images of {} have different sizes: resize them to one size.")
  alone = images.ndim == 3 and images.shape[-1] in (1, 3) and images.shape[1] != images.shape[2]
  if one and (images.ndim == 2 or alone):
    images, alone = images[None], False
  if (
    alone
    or images.ndim not in (3, 4)
    or images.shape[3:] not in ((), (1,), (3,))
    or 0 in images.shape
    or images.dtype != np.uint8
    and images.dtype.kind != "f"
  ):
    raise UserError(f"{name} is {images.dtype} of shape {images.shape}: images are {_ACCEPTED}.")
  if images.dtype.kind == "f":
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):  # also for NaN
      raise UserError(
        f"{name} has floats from {low:g} to {high:g}: they must be from 0 to 1, and not "
        "normalised; divide by 255, or pass uint8."
      )
    images = np.rint(images * 255).astype(np.uint8)
  return repeat_grey(images) if images.shape[3:] != (3,) else np.ascontiguousarray(images)


def labels_of(labels: Any, count: int, name: str) -> Int32[np.ndarray, "n"]:
  """Return labels as int32.

  Raises:
    UserError: they are no integers of at least 0, one for each of `count` images.
  """
  labels = _as_array(labels, name, "{} has labels of different shapes: labels are integers.")
  if labels.dtype.kind not in "iu" or labels.shape != (count,):
    raise UserError(
      f"{name} is {labels.dtype} of shape {labels.shape}: labels are integers of shape ({count},), "
      "one for each image; LABELS.ravel() makes a row of a column, and LABELS.argmax(axis=1) turns "
      "one-hot rows into labels."
    )
  if wrong := [each for each in map(int, (labels.min(), labels.max())) if not 0 <= each < 10**6]:
    raise UserError(
      f"{name} has the label {wrong[0]}: labels count classes from 0, below 1,000,000."
    )
  return labels.astype(np.int32)


def _as_array(values: Any, name: str, ragged: str) -> np.ndarray:
  try:
    return np.asarray(values)
  except ValueError:
    raise UserError(ragged.format(name)) from None


def repeat_grey(images: np.ndarray) -> UInt8[np.ndarray, "n h w 3"]:
  """Return images [n, h, w] or [n, h, w, 1] with their values in three channels."""
  return np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=-1)
