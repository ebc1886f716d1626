"""One batch of images from disk, before and after it is decoded."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8


@dataclasses.dataclass(frozen=True, eq=False)
class HostBatch:
  """This process's contiguous part of a global batch.

  Attributes:
    image: decoded pixels, never flipped.
    label: labels of the images in `image`.
    mask: false for images that do not count.
    flip: true for images that the device flips left to right.
    index: numbers of the images requested; another image may replace a broken one.
  """

  image: UInt8[np.ndarray, "b h w 3"]
  label: Int32[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  index: Int64[np.ndarray, "b"]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """A batch before it is decoded; `used` is `index` with its broken images replaced."""

  index: Int64[np.ndarray, "b"]
  used: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  windows: tuple[np.ndarray, ...]
