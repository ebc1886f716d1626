"""Small images that a run leaves for its report: thumbnails.npz in its folder."""

import dataclasses
import functools
import pathlib

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8

from jaxspeed.records.arrays import read_arrays, require, types_of, write_arrays
from jaxspeed.records.predictions import Predictions

FILE = "thumbnails.npz"
# Longest side of an image; evaluated or training images, and filters.
MOST_PIXELS, MOST_IMAGES = 64, 64
_MOST_BYTES = 1 << 25


@dataclasses.dataclass(frozen=True, eq=False)
class Thumbnails:
  """Images of a run's last evaluation, of a training batch, and of its first layer.

  Attributes:
    step: the number of steps trained before the evaluation.
    eval_index: numbers of evaluation images in their split, as in `Predictions.index`: those with
      the highest loss, then as many correct ones, if there are.
    eval_image: these images.
    train_image: the first images of a training batch, as the model sees them.
    train_label: their labels.
    train_partner: the labels of the images mixed into them.
    train_share: the share of those; 0 without mixing.
    filters: the first layer's kernels, each scaled to 0 ... 255 with zero at 128; a model may have
      none over three channels.
  """

  step: int
  eval_index: Int32[np.ndarray, "k"]
  eval_image: UInt8[np.ndarray, "k h w 3"]
  train_image: UInt8[np.ndarray, "m h2 w2 3"]
  train_label: Int32[np.ndarray, "m"]
  train_partner: Int32[np.ndarray, "m"]
  train_share: Float32[np.ndarray, "m"]
  filters: UInt8[np.ndarray, "f h3 w3 3"]


_ARRAYS = types_of(Thumbnails)


def worst_rows(predictions: Predictions, most: int) -> Int[np.ndarray, "k"]:
  """Rows of the images with the highest loss, at most so many, the highest first."""
  return np.argsort(-predictions.loss, kind="stable")[:most]


def write_thumbnails(path: pathlib.Path, thumbnails: Thumbnails) -> None:
  """Writes thumbnails as a compressed .npz file, atomically.

  Raises:
    OSError: the file cannot be written.
  """
  write_arrays(path, vars(thumbnails), sync=False)


def read_thumbnails(path: pathlib.Path, classes: int) -> Thumbnails | None:
  """The thumbnails of a run with so many classes in its file; None if the file does not exist.

  Raises:
    UserError: the file cannot be read, is damaged, or holds something else.
  """
  advice = "remove the file, and the report goes without these images"
  parse = functools.partial(_parsed, classes=classes)
  return read_arrays(path, _ARRAYS, parse, most_bytes=_MOST_BYTES, advice=advice)


def _parsed(step: int, *, classes: int, **arrays: np.ndarray) -> Thumbnails:
  """The thumbnails in the arrays of a file; raises a ValueError where no run gives them."""
  found = Thumbnails(step, **arrays)
  for name in ("eval_image", "train_image", "filters"):
    count, *sides, _ = arrays[name].shape
    if count > MOST_IMAGES or max(sides) > MOST_PIXELS or (count and not min(sides)):
      raise ValueError(f"{name} is of shape {arrays[name].shape}")
  require("eval_index", found.eval_index >= 0)
  for name in ("train_label", "train_partner"):
    require(name, (arrays[name] >= 0) & (arrays[name] < classes))
  require("train_share", (found.train_share >= 0) & (found.train_share <= 1))
  return found
