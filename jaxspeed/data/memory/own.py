"""A user's own arrays: from Python, from .npy files, or from a registered function."""

import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from jaxspeed.config.registry import DATA_SETS
from jaxspeed.data.formats.class_names import read_class_names
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.hold_out import split_by_digest
from jaxspeed.errors import UserError, printable
from jaxspeed.files import open_regular

# Images counted at a time: all at once in float64, a data set of 2.4 GB took 20.9 GB of memory.
_COUNTED = 1_024
# The arrays of `arrays.Arrays`.
FIELDS = ("train_images", "train_labels", "eval_images", "eval_labels")
_ACCEPTED = (
  "uint8 from 0 to 255, or floats from 0 to 1, of shape [n, height, width, 3] or, if grey, "
  "[n, height, width], where n may be 1"
)


def checked(parts: Sequence[Any], names: Sequence[str]) -> dict[str, np.ndarray]:
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
  check_sizes(found[0], found[2], names[0])
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
  found = f"{name} is {images.dtype} of shape {images.shape}"
  if images.shape[:1] == (0,):
    raise UserError(f"{name} holds no image: give at least one.")
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
    raise UserError(f"{found}: images are {_ACCEPTED}.")
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
    advice = ""
    if labels.shape == (count, 1):
      advice = f"; {name}.ravel() makes a row of the column"
    elif labels.ndim == 2 and len(labels) == count:
      advice = f"; {name}.argmax(axis=1) turns one-hot rows into labels"
    raise UserError(
      f"{name} is {labels.dtype} of shape {labels.shape}: labels are integers of shape ({count},), "
      f"one for each image{advice}."
    )
  if wrong := [each for each in map(int, (labels.min(), labels.max())) if not 0 <= each < 10**6]:
    raise UserError(
      f"{name} has the label {wrong[0]}: labels count classes from 0, below 1,000,000."
    )
  return labels.astype(np.int32)


def _as_array(values: Any, name: str, ragged: str) -> np.ndarray:
  if np.ma.is_masked(values):
    raise UserError(f"{name} is a masked array: leave out or fill in what is masked.")
  try:
    return np.asarray(values)
  except ValueError:
    raise UserError(ragged.format(name)) from None


def repeat_grey(images: np.ndarray) -> UInt8[np.ndarray, "n h w 3"]:
  """Return images [n, h, w] or [n, h, w, 1] with their values in three channels."""
  return np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=-1)


def read_own(path: pathlib.Path, *, tune: bool) -> dict[str, Any]:
  """Read a folder of .npy files: two splits, or one from which a share is to be held out.

  Args:
    path: the folder.
    tune: whether to read train/ only.

  Returns:
    Fields of `arrays.Arrays`; class_names is () where classes.txt is missing, and there are no
    evaluation images where a share is to be held out.

  Raises:
    UserError: a file is missing, damaged, or does not hold images or labels.
  """
  alone = not (path / "train").is_dir()
  split = next((each for each in EVAL_FOLDERS if (path / each).is_dir()), None)
  if not (alone or tune or split):
    raise UserError(
      f"{path} has train/ but none of val/, validation/ and test/ to evaluate on: complete it, "
      "or set --config.tune_on=validation, which holds config.data.hold_out of train/ out."
    )
  splits = ["."] if alone else ["train"] if tune else ["train", str(split)]
  files = [path / each / f"{kind}.npy" for each in splits for kind in ("images", "labels")]
  parts = [*map(read_npy, files), None, None][:4]
  return checked(parts, [*map(str, files), "", ""]) | {
    "class_names": read_class_names(path / "classes.txt"),
    "source": f"{printable(path.name)}: {'arrays' if alone else ' and '.join(splits)}",
    "evaluated_on": "held-out" if alone else "test",
  }


def read_registered(name: str, path: str) -> dict[str, Any]:
  """Return the fields of `arrays.Arrays` from a data set of the user's own (`registry.data_set`).

  Args:
    name: its name.
    path: `config.data.path`.

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
  return checked([made[key] for key in FIELDS], names) | {
    "class_names": tuple(map(str, made.get("class_names", ()))),
    "source": printable(f"data set {name}"),
  }


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
  except FileNotFoundError as error:
    raise UserError(f"{path} is missing: images.npy and labels.npy lie side by side.") from error
  except Exception as error:  # damaged headers raise almost anything
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    raise UserError(
      f"{path} is not a .npy file of numbers ({printable(reason[:200])}): write it with "
      "np.save(FILE, ARRAY, allow_pickle=False)."
    ) from error


def share_of(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int32[np.ndarray, "n"], share: float, where: str
) -> tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]:
  """Return the numbers of images to keep and to hold out; arguments as in `split_by_digest`."""
  digests = (hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
  return split_by_digest(digests, labels, share, where)


def check_sizes(
  train: UInt8[np.ndarray, "n h w 3"], held_out: UInt8[np.ndarray, "m i j 3"], where: object
) -> None:
  """Raise a UserError where images to train and to evaluate on differ in size."""
  if train.shape[1:] != held_out.shape[1:]:
    (h, w), (i, j) = train.shape[1:3], held_out.shape[1:3]
    raise UserError(
      f"{where}: images for training have {h} x {w} pixels and those for evaluation {i} x {j}; "
      "resize them to one size."
    )


def channel_statistics(
  images: UInt8[np.ndarray, "n h w 3"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Return the mean and standard deviation of each channel, exact, from counts of the 256 values.

  Both are in grey levels. The deviation is at least 1, so that images of one colour can be
  normalised.
  """
  counts = np.zeros((3, 256), np.int64)
  for begin in range(0, len(images), _COUNTED):
    for channel in range(3):
      part = images[begin : begin + _COUNTED, ..., channel]
      counts[channel] += np.bincount(part.ravel(), minlength=256)
  values, pixels = np.arange(256), counts[0].sum()
  mean = counts @ values / pixels
  variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / pixels
  return tuple(mean.tolist()), tuple(np.maximum(np.sqrt(variance), 1.0).tolist())
