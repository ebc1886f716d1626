"""Arrays that a run leaves in its folder: predictions.npz and thumbnails.npz."""

import dataclasses
import io
import os
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32, UInt8, jaxtyped

from jaxspeed.errors import UserError
from jaxspeed.files import read_bytes, write_atomically

# The longest side of a thumbnail; evaluated or training images, and filters.
MOST_PIXELS, MOST_IMAGES = 64, 64
# ImageNet's 50,000 predictions with their paths take 4 MB before they are compressed.
_MOST_BYTES = 1 << 30
# The ends of names of arrays that hold classes.
_CLASSES = ("label", "predicted", "partner")
_STORED: dict[Any, Any] = {int: Int[np.ndarray, ""], tuple[str, ...]: UInt8[np.ndarray, "bytes"]}


@dataclasses.dataclass(frozen=True, eq=False)
class StoredArrays:
  """A dataclass that is written and read as a file of arrays.

  Its fields have types of jaxtyping. A field may be an int, or a tuple of names: it is stored as
  one array of bytes, in the file system's encoding, with a zero between two.
  """

  FILE: ClassVar[str]

  def write(self, folder: pathlib.Path) -> None:
    """Writes the file in a run's folder, atomically.

    Raises:
      OSError: the file cannot be written.
    """
    arrays = dict(vars(self))
    for name, value in arrays.items():
      if isinstance(value, tuple):
        arrays[name] = np.frombuffer(b"\0".join(map(os.fsencode, value)), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(folder / self.FILE, content.getvalue())

  @classmethod
  def read(cls, folder: pathlib.Path, classes: int) -> Self | None:
    """The content of the file in a run's folder; None if it does not exist.

    Args:
      folder: the folder.
      classes: the number of classes.

    Raises:
      UserError: the file cannot be read, is damaged, or holds something else.
    """
    path, found = folder / cls.FILE, dict[str, Any]()
    try:
      content = io.BytesIO(read_bytes(path))
      with zipfile.ZipFile(content) as archive:
        if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
          raise ValueError("its arrays are too large")
      content.seek(0)
      with np.load(content, allow_pickle=False) as file, jaxtyped("context"):
        for field in dataclasses.fields(cls):
          found[field.name] = _parsed(field, file[field.name], classes)
      return cls(**found)
    except FileNotFoundError:
      return None
    # NumPy and zipfile raise errors of many kinds on damage.
    except Exception as error:
      reason = str(error).partition("\n")[0][:200] or type(error).__name__
      raise UserError(
        f"{path} cannot be used ({reason}): restore the file, or remove it, and reports go without."
      ) from None


def _parsed(field: dataclasses.Field[Any], array: np.ndarray, classes: int) -> Any:
  """A field's value; raises a ValueError if its array has another type, or unknown classes."""
  if not isinstance(array, _STORED.get(field.type, field.type)):
    raise ValueError(f"{field.name} is {array.dtype} of shape {array.shape}")
  if field.name.endswith(_CLASSES) and not np.all((array >= -1) & (array < classes)):
    raise ValueError(f"{field.name} has others than the {classes} classes")
  if field.type is int:
    return int(array)
  if field.type in _STORED:
    return tuple(map(os.fsdecode, array.tobytes().split(b"\0"))) if array.size else ()
  return array


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions(StoredArrays):
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

  FILE: ClassVar = "predictions.npz"

  step: int
  index: Int[np.ndarray, "n"]
  label: Int[np.ndarray, "n"]
  predicted: Int[np.ndarray, "n"]
  probability: Float[np.ndarray, "n"]
  loss: Float[np.ndarray, "n"]
  names: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    if len(self.names) not in (0, len(self.index)):
      raise ValueError(f"it names {len(self.names)} of {len(self.index)} images")

  @property
  def right(self) -> Bool[np.ndarray, "n"]:
    """Whether each prediction is right."""
    return self.label == self.predicted

  def named(self, names: Sequence[str]) -> "Predictions":
    """These predictions with the names of their images, given those of the whole split."""
    chosen = tuple(names[i] for i in self.index.tolist()) if names else ()
    return dataclasses.replace(self, names=chosen)


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
