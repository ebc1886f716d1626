"""What a run predicts for its evaluation images: predictions.npz in its folder."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxspeed.records.arrays import read_arrays, require, types_of, write_arrays

FILE = "predictions.npz"
# ImageNet's 50,000 images with their paths take 4 MB before they are compressed.
_MOST_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
  """The evaluation images that could be read, in the order of their split.

  Attributes:
    step: the number of steps trained before the evaluation.
    index: the image's number in its split, from 0; in memory, the row of the evaluation's array.
    label: its class.
    predicted: the class of the largest logit, the first of equals; -1 if logits are not finite.
    probability: the softmax probability of the predicted class.
    loss: the cross entropy; exp(-loss) is the probability of the label.
    names: the paths of image files below the folder that was read, `data.path` or its resized
      copies, in a shard followed by ", byte" and the place of the image; () for data in memory.
  """

  step: int
  index: Int[np.ndarray, "n"]
  label: Int[np.ndarray, "n"]
  predicted: Int[np.ndarray, "n"]
  probability: Float[np.ndarray, "n"]
  loss: Float[np.ndarray, "n"]
  names: tuple[str, ...] = ()

  def named(self, names: Sequence[str]) -> "Predictions":
    """These predictions with the names of their images, given those of the whole split."""
    chosen = tuple(names[i] for i in self.index.tolist()) if names else ()
    return dataclasses.replace(self, names=chosen)


_STORED = types_of(Predictions, names=UInt8[np.ndarray, "bytes"])


def write_predictions(path: pathlib.Path, predictions: Predictions) -> None:
  """Writes predictions as a compressed .npz file of numbers, atomically.

  The names are one array of bytes, in the file system's encoding, with a zero byte between two.

  Raises:
    OSError: the file cannot be written.
  """
  names = np.frombuffer(b"\0".join(map(os.fsencode, predictions.names)), np.uint8)
  write_arrays(path, vars(predictions) | {"names": names})


def read_predictions(path: pathlib.Path, classes: int) -> Predictions | None:
  """The predictions in a file that `write_predictions` wrote; None if the file does not exist.

  Args:
    path: the file.
    classes: the number of classes.

  Raises:
    UserError: the file cannot be read, is damaged, or holds something else.
  """
  parse = functools.partial(_parsed, classes=classes)
  advice = "restore the file, or remove it, and reports go without"
  return read_arrays(path, _STORED, parse, most_bytes=_MOST_BYTES, advice=advice)


def _parsed(
  step: int, *, names: UInt8[np.ndarray, "bytes"], classes: int, **columns: np.ndarray
) -> Predictions:
  """The predictions in the arrays of a file; raises a ValueError where no evaluation gives them."""
  joined = names.tobytes()
  paths = tuple(map(os.fsdecode, joined.split(b"\0"))) if joined else ()
  found = Predictions(step, **columns, names=paths)
  if len(paths) not in (0, len(found.index)):
    raise ValueError(f"it names {len(paths)} of {len(found.index)} images")
  if max(found.label.max(), found.predicted.max()) >= classes:
    raise ValueError(f"it has more than {classes} classes")
  require("index", [*(found.index >= 0), *(np.diff(found.index) > 0)])
  require("label", found.label >= 0)
  require("predicted", found.predicted >= -1)
  require("probability", (found.probability >= 0) & (found.probability <= 1))
  require("loss", np.isfinite(found.loss) & (found.loss >= 0))
  return found
