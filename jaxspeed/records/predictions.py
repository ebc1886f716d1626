"""What a run predicts for its evaluation images: predictions.npz in its folder."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int32

from jaxspeed.records.step_arrays import read_arrays, write_arrays

FILE = "predictions.npz"
# ImageNet's 50,000 images with their paths take 4 MB before they are compressed.
_MOST_BYTES = 1 << 30
_COLUMNS = {"index": "i", "label": "i", "predicted": "i", "probability": "f", "loss": "f"}


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
  index: Int32[np.ndarray, "n"]
  label: Int32[np.ndarray, "n"]
  predicted: Int32[np.ndarray, "n"]
  probability: Float[np.ndarray, "n"]
  loss: Float[np.ndarray, "n"]
  names: tuple[str, ...] = ()

  def named(self, names: Sequence[str]) -> "Predictions":
    """These predictions with the names of their images, given those of the whole split."""
    chosen = tuple(names[i] for i in self.index.tolist()) if names else ()
    return dataclasses.replace(self, names=chosen)


def write_predictions(path: pathlib.Path, predictions: Predictions) -> None:
  """Writes predictions as a compressed .npz file of numbers, atomically.

  The names are one array of bytes, in the file system's encoding, with a zero byte between two.

  Raises:
    OSError: the file cannot be written.
  """
  columns = {name: getattr(predictions, name) for name in _COLUMNS}
  names = np.frombuffer(b"\0".join(map(os.fsencode, predictions.names)), np.uint8)
  write_arrays(path, predictions.step, columns | {"names": names})


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
  return read_arrays(path, ("names", *_COLUMNS), parse, most_bytes=_MOST_BYTES, advice=advice)


def _parsed(step: int, arrays: dict[str, np.ndarray], *, classes: int) -> Predictions:
  """The predictions in the arrays of a file; raises a ValueError where no evaluation gives them."""
  columns = {name: arrays[name] for name in _COLUMNS}
  _check_columns(columns)
  if arrays["names"].dtype != np.uint8:
    raise ValueError("its names have another type")
  joined = arrays["names"].tobytes()
  names = tuple(map(os.fsdecode, joined.split(b"\0"))) if joined else ()
  if len(names) not in (0, len(columns["index"])):
    raise ValueError(f"it names {len(names)} of {len(columns['index'])} images")
  if max(columns["label"].max(), columns["predicted"].max()) >= classes:
    raise ValueError(f"it has more than {classes} classes")
  return Predictions(step, **columns, names=names)


def _check_columns(columns: dict[str, np.ndarray]) -> None:
  """Makes sure that columns have one length, and values that an evaluation can give.

  Raises:
    ValueError: they do not.
  """
  for name, column in columns.items():
    if column.shape != (len(columns["index"]),) or column.dtype.kind != _COLUMNS[name]:
      raise ValueError(f"{name} is {column.dtype} of shape {column.shape}")
  index, label, predicted, probability, loss = columns.values()
  for name, right in {
    "index": (index >= 0).all() and (np.diff(index) > 0).all(),
    "label": (label >= 0).all(),
    "predicted": (predicted >= -1).all(),
    "probability": ((probability >= 0) & (probability <= 1)).all(),
    "loss": (np.isfinite(loss) & (loss >= 0)).all() and len(loss) > 0,
  }.items():
    if not right:
      raise ValueError(f"{name} has values that no evaluation gives")
