"""Small images that a run leaves for its report: thumbnails.npz in its folder."""

import dataclasses
from typing import ClassVar

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8

from jaxspeed.records.arrays import StoredArrays
from jaxspeed.records.predictions import Predictions

# Longest side of an image; evaluated or training images, and filters.
MOST_PIXELS, MOST_IMAGES = 64, 64


@dataclasses.dataclass(frozen=True, eq=False)
class Thumbnails(StoredArrays):
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

  FILE: ClassVar = "thumbnails.npz"

  step: int
  eval_index: Int32[np.ndarray, "k"]
  eval_image: UInt8[np.ndarray, "k h w 3"]
  train_image: UInt8[np.ndarray, "m h2 w2 3"]
  train_label: Int32[np.ndarray, "m"]
  train_partner: Int32[np.ndarray, "m"]
  train_share: Float32[np.ndarray, "m"]
  filters: UInt8[np.ndarray, "f h3 w3 3"]


def worst_rows(predictions: Predictions, most: int) -> Int[np.ndarray, "k"]:
  """Rows of the images with the highest loss, at most so many, the highest first."""
  return np.argsort(-predictions.loss, kind="stable")[:most]
