"""Images in memory, as a caller passes them, and as a run takes them."""

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from jaxspeed.data.hold_out import TENTH, single_image_note
from jaxspeed.data.memory.arrays import Arrays as Opened
from jaxspeed.data.memory.own import checked, share_of
from jaxspeed.errors import UserError


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

  def __post_init__(self) -> None:
    if (self.x_val is None) != (self.y_val is None):
      raise UserError("Arrays has one of x_val and y_val without the other: give both, or none.")
    names = ("x", "y", "x_val", "y_val")
    found = checked([getattr(self, name) for name in names], names)
    for name, part in zip(names, found.values(), strict=True):
      if getattr(self, name) is not None:
        object.__setattr__(self, name, part)  # the class is frozen
    if self.x_val is None and len(self.x) < 2:
      raise UserError("x has 1 image, too few to hold one out: give more, or x_val and y_val.")
    if isinstance(self.class_names, str) or not isinstance(self.class_names, Iterable):
      raise UserError(f"class_names={self.class_names!r}: it must be a list of names, by label.")
    object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))


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
    notes=notes,
    evaluated_on=evaluated_on,
  )
