"""Images in memory, as a caller passes them, and as a run takes them."""

import dataclasses
import zlib
from collections.abc import Iterable, Sequence, Set
from typing import Any

from jaxspeed.data.hold_out import TENTH
from jaxspeed.data.memory.arrays import FIELDS, checked, hold_out
from jaxspeed.data.memory.arrays import Arrays as Opened
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
    if isinstance(self.class_names, str | Set) or not isinstance(self.class_names, Iterable):
      raise UserError(f"class_names={self.class_names!r}: it must be a list of names, by label.")
    object.__setattr__(self, "class_names", tuple(map(str, self.class_names)))


def opened(arrays: Arrays, share: float = TENTH) -> Opened:
  """The data set that a run trains on; without x_val, `share` of each class is held out."""
  train, evaluation = (arrays.x, arrays.y), (arrays.x_val, arrays.y_val)
  if arrays.x_val is None:
    evaluation = (arrays.x[:0], arrays.y[:0])
  data = Opened(*train, *evaluation, tuple(arrays.class_names), "data=")
  if arrays.x_val is None:
    data = hold_out(data, share, "held-out")
  notes = data.notes
  if data.train_images.max() == 1:
    notes += ("the largest pixel of x is 1, and white is 255: multiply x by 255 if 1 is white",)
  checksum = 0
  for field in FIELDS:
    checksum = zlib.crc32(getattr(data, field), checksum)
  (train_count, evaluated), (height, width) = data.counts, data.train_images.shape[1:3]
  source = (
    f"arrays of {train_count:,} and {evaluated:,} images of {height} x {width} pixels, CRC-32 "
    f"{checksum:08x}"
  )
  return dataclasses.replace(data, source=source, notes=notes)
