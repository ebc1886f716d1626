"""Images in memory, as a caller passes them, and as a run takes them."""

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from jaxspeed.data.hold_out import TENTH, single_image_note
from jaxspeed.data.memory.arrays import Arrays as Opened
from jaxspeed.data.memory.own import grey_note, repeat_grey, share_of, unmasked
from jaxspeed.errors import UserError

_ACCEPTED = (
  "uint8 from 0 to 255, or floats from 0 to 1, of shape [n, height, width, 3] or, if grey, "
  "[n, height, width]"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """Labelled images in memory, for `jaxspeed.fit(..., data=...)`.

  Images are uint8 from 0 to 255, or floats from 0 to 1 (rounded to 256 levels), of shape
  [n, height, width, 3]: squares, all of one size. Grey images, [n, height, width] or
  [n, height, width, 1], are repeated to three channels. NumPy arrays, or anything that
  `numpy.asarray` takes.

  Args:
    x: the images to train on.
    y: their labels [n], integers that count classes from 0.
    x_val: the images to evaluate on; None: `config.data.hold_out` of each class of `x` is held
      out, always the same images.
    y_val: their labels.
    class_names: the names of the classes, by label; (): their numbers.

  Raises:
    UserError: images or labels are of another kind, or do not fit together.
  """

  x: Any
  y: Any
  x_val: Any = None
  y_val: Any = None
  class_names: Sequence[str] = ()
  _grey: int = dataclasses.field(default=0, init=False, repr=False)  # images given as grey

  def __post_init__(self) -> None:
    set_field = object.__setattr__  # the class is frozen
    pixels, grey = _pixels_of(self.x, "x")
    set_field(self, "x", pixels)
    set_field(self, "y", labels_of(self.y, len(self.x), "y"))
    if (self.x_val is None) != (self.y_val is None):
      raise UserError("Arrays has one of x_val and y_val without the other: give both, or none.")
    if self.x_val is not None:
      pixels, eval_grey = _pixels_of(self.x_val, "x_val")
      set_field(self, "x_val", pixels)
      grey += eval_grey
      set_field(self, "y_val", labels_of(self.y_val, len(self.x_val), "y_val"))
      if self.x.shape[1:] != self.x_val.shape[1:]:
        (h, w), (i, j) = self.x.shape[1:3], self.x_val.shape[1:3]
        raise UserError(
          f"images of x have {h} x {w} pixels, those of x_val {i} x {j}: resize them to one size."
        )
    elif len(self.x) < 2:
      raise UserError("x has 1 image, too few to hold one out: give more, or x_val and y_val.")
    if isinstance(self.class_names, str) or not isinstance(self.class_names, Iterable):
      raise UserError(f"class_names={self.class_names!r}: it must be a list of names, by label.")
    set_field(self, "class_names", tuple(map(str, self.class_names)))
    set_field(self, "_grey", grey)


def images_of(images: Any, name: str, *, one: bool = False) -> UInt8[np.ndarray, "n h w 3"]:
  """Images as uint8 in three channels; floats from 0 to 1 are rounded to 256 levels.

  Args:
    images: the caller's.
    name: the argument's.
    one: whether it may be a single image, [h, w, 3] or [h, w].

  Raises:
    UserError: they are of another kind.
  """
  return _pixels_of(images, name, one)[0]


def _pixels_of(
  images: Any, name: str, one: bool = False
) -> tuple[UInt8[np.ndarray, "n h w 3"], int]:
  """Images as `images_of` returns them, and how many of them were grey."""
  try:
    images = unmasked(images, name)
  except ValueError:
    raise UserError(f"images of {name} have different sizes: resize them to one size.") from None
  found = f"{name} is {images.dtype} of shape {images.shape}"
  if images.shape[:1] == (0,):
    raise UserError(f"{name} holds no image: give at least one.")
  alone = images.ndim == 3 and images.shape[-1] in (1, 3) and images.shape[1] != images.shape[2]
  if one and (images.ndim == 2 or alone):
    images = images[None]
  elif images.ndim == 2 or alone:
    raise UserError(f"{found}, one image without the axis of images: pass {name}[None].")
  if images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)) or 0 in images.shape:
    raise UserError(f"{found}: images are {_ACCEPTED}.")
  grey = len(images) if images.shape[3:] != (3,) else 0
  if images.dtype == np.uint8:
    return (repeat_grey(images) if grey else np.ascontiguousarray(images)), grey
  if images.dtype.kind != "f":
    raise UserError(f"{found}: images are {_ACCEPTED}.")
  low, high = float(images.min()), float(images.max())
  if not (low >= 0 and high <= 1):  # also for NaN
    raise UserError(
      f"{name} has floats from {low:g} to {high:g}: they must be from 0 to 1, and not normalised; "
      "divide by 255, or pass uint8."
    )
  levels = np.rint(images * 255).astype(np.uint8)
  return (repeat_grey(levels) if grey else levels), grey


def labels_of(labels: Any, count: int, name: str) -> Int32[np.ndarray, "n"]:
  """Labels as int32.

  Raises:
    UserError: they are no integers of at least 0, one for each of `count` images; `name` is the
      argument's.
  """
  try:
    labels = unmasked(labels, name)
  except ValueError:
    raise UserError(f"{name} has labels of different shapes: labels are integers.") from None
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
  if (least := int(labels.min())) < 0 or int(labels.max()) >= 1_000_000:
    wrong = least if least < 0 else int(labels.max())
    raise UserError(f"{name} has the label {wrong}: labels count classes from 0, below 1,000,000.")
  return labels.astype(np.int32)


def opened(arrays: Arrays, share: float = TENTH) -> Opened:
  """The data set that a run trains on; without x_val, `share` of each class is held out."""
  parts = (arrays.x, arrays.y, arrays.x_val, arrays.y_val)
  evaluated_on = "test"
  notes: tuple[str, ...] = ()
  if arrays.x_val is None:
    kept, out = share_of(arrays.x, arrays.y, share, "data=")
    notes = single_image_note(arrays.y, arrays.class_names)
    parts = (arrays.x[kept], arrays.y[kept], arrays.x[out], arrays.y[out])
    evaluated_on = "held-out"
  if parts[0].max() == 1:
    notes += ("the largest pixel of x is 1, and white is 255: multiply x by 255 if 1 is white",)
  checksum = 0
  for part in parts:
    checksum = zlib.crc32(part, checksum)
  train, evaluated = len(parts[0]), len(parts[2])
  height, width = parts[0].shape[1:3]
  return Opened(
    train_images=parts[0],
    train_labels=parts[1],
    eval_images=parts[2],
    eval_labels=parts[3],
    class_names=tuple(arrays.class_names),
    source=f"arrays of {train:,} and {evaluated:,} images of {height} x {width} pixels, CRC-32 "
    f"{checksum:08x}",
    notes=grey_note(arrays._grey, train + evaluated) + notes,
    evaluated_on=evaluated_on,
  )
