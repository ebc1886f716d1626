"""One batch of images from disk, before and after it is decoded."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8


@dataclasses.dataclass(frozen=True, eq=False)
class HostBatch:
  """This process's contiguous part of a global batch.

  Attributes:
    image: as decoded; never flipped.
    label: of the images that are in `image`.
    mask: false where the image does not count.
    flip: true where the device flips the image left to right.
    index: numbers of the images asked for; another may stand for one that is broken.
  """

  image: UInt8[np.ndarray, "b h w 3"]
  label: Int32[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  index: Int64[np.ndarray, "b"]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
  """A batch before it is decoded: `used` are the images that stand for `index`."""

  index: Int64[np.ndarray, "b"]
  used: Int64[np.ndarray, "b"]
  mask: Bool[np.ndarray, "b"]
  flip: Bool[np.ndarray, "b"]
  windows: tuple[np.ndarray, ...]
