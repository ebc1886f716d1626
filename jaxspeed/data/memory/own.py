"""A user's own arrays: from .npy files, or from a function that is registered as a data set."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from jaxspeed.config.registry import DATA_SETS
from jaxspeed.data.formats.class_names import read_class_names
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.hold_out import split_by_digest
from jaxspeed.errors import UserError, printable
from jaxspeed.files import open_regular

# The limit of `config.data.classes`.
_MOST_CLASSES = 1_000_000
# Images counted at a time: all at once in float64, a data set of 2.4 GB took 20.9 GB of memory.
_COUNTED = 1_024


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
  name, alone = printable(path.name), not (path / "train").is_dir()
  split = next((each for each in EVAL_FOLDERS if (path / each).is_dir()), None)
  if not (alone or tune or split):
    raise UserError(
      f"{path} has train/ but none of val/, validation/ and test/ to evaluate on: complete it, "
      "or set --config.tune_on=validation, which holds config.data.hold_out of train/ out."
    )
  images, labels, grey = _read_pair(path if alone else path / "train")
  held_out, held_out_labels, eval_grey = images[:0], labels[:0], 0
  source = f"{name}: {'arrays' if alone else 'train'}"
  if split and not (alone or tune):
    held_out, held_out_labels, eval_grey = _read_pair(path / split)
    source += f" and {split}"
  check_sizes(images, held_out, path)
  return {
    "train_images": images,
    "train_labels": labels,
    "eval_images": held_out,
    "eval_labels": held_out_labels,
    "class_names": read_class_names(path / "classes.txt"),
    "source": source,
    "notes": grey_note(grey + eval_grey, len(images) + len(held_out)),
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
  wanted = ("train_images", "train_labels", "eval_images", "eval_labels")
  named = made.get("class_names", ()) if isinstance(made, Mapping) else ()
  if not isinstance(made, Mapping) or made.keys() - {"class_names"} != set(wanted):
    found = ", ".join(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
    raise UserError(
      f"the data set {name!r} returns {found}: return a dict with {', '.join(wanted)}, and "
      "class_names if it has any."
    )
  fields: dict[str, Any] = {}
  grey = 0
  for split in ("train", "eval"):
    keys = f"{split}_images", f"{split}_labels"
    where = tuple(f"the data set {name!r}: {key}" for key in keys)
    images, labels = map(unmasked, [made[key] for key in keys], where)
    *pair, grey_images = _checked_pair(images, labels, where)
    fields |= dict(zip(keys, pair, strict=True))
    grey += grey_images
  check_sizes(fields["train_images"], fields["eval_images"], f"the data set {name!r}")
  return fields | {
    "class_names": tuple(map(str, named)),
    "source": printable(f"data set {name}"),
    "notes": grey_note(grey, len(fields["train_images"]) + len(fields["eval_images"])),
  }


def repeat_grey(images: np.ndarray) -> UInt8[np.ndarray, "n h w 3"]:
  """Return images [n, h, w] or [n, h, w, 1] with their values in three channels."""
  return np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=-1)


def grey_note(grey: int, images: int) -> tuple[str, ...]:
  """Return a note about grey images, if there are any.

  Args:
    grey: number of grey images.
    images: number of images.
  """
  if not grey:
    return ()
  which = f"all {images:,}" if grey == images else f"{grey:,} of {images:,}"
  return (f"{which} images are grey: repeated to three channels",)


def unmasked(values: Any, name: str) -> np.ndarray:
  """Return values as an array; raises a UserError if some are masked, as NumPy drops a mask."""
  if np.ma.is_masked(values):
    raise UserError(f"{name} is a masked array: leave out or fill in what is masked.")
  return np.asarray(values)


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


def _read_pair(
  folder: pathlib.Path,
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"], int]:
  """Read images.npy and labels.npy of one folder, as `_checked_pair` returns them."""
  files = folder / "images.npy", folder / "labels.npy"
  return _checked_pair(read_npy(files[0]), read_npy(files[1]), (str(files[0]), str(files[1])))


def _checked_pair(
  images: np.ndarray, labels: np.ndarray, names: tuple[str, ...]
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"], int]:
  """Return images of three channels, int32 labels, and how many images were grey.

  Raises:
    UserError: they are no images or labels; it has their `names`.
  """
  images_name, labels_name = names
  if (
    images.dtype != np.uint8
    or images.ndim not in (3, 4)
    or images.shape[3:] not in ((), (1,), (3,))
    or 0 in images.shape[1:]
  ):
    raise UserError(
      f"{images_name} is {images.dtype} of shape {images.shape}: images are uint8, "
      "[n, height, width, 3] or grey [n, height, width]."
    )
  if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or not labels.size:
    raise UserError(
      f"{labels_name} is {labels.dtype} of shape {labels.shape}: labels are integers, "
      f"one for each of the {len(images)} images, and at least one."
    )
  grey = images.shape[3:] != (3,)
  if grey:
    images = repeat_grey(images)
  if (largest := int(labels.max())) >= _MOST_CLASSES:
    raise UserError(
      f"{labels_name} holds the label {largest}: labels count classes from 0, and there "
      f"are at most {_MOST_CLASSES:,}."
    )
  # Clipped, not wrapped: a negative label too large for int32 must stay negative.
  int32 = np.iinfo(np.int32)
  labels = np.clip(labels, int32.min, int32.max).astype(np.int32)
  return images, labels, len(images) * grey


def share_of(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int32[np.ndarray, "n"], share: float, where: str
) -> tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]:
  """Return the numbers of images to keep and to hold out; arguments as in `split_by_digest`."""
  digests = (hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images)
  return split_by_digest(digests, labels, share, where)


def check_sizes(
  train: UInt8[np.ndarray, "n h w 3"],
  held_out: UInt8[np.ndarray, "m i j 3"],
  where: pathlib.Path | str,
) -> None:
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
