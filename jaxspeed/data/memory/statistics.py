"""Mean and standard deviation of a set's pixels, exact whatever its size."""

import numpy as np
from jaxtyping import UInt8

# Images that are counted at once: a set of 2.4 GB took 20.9 GB as float64.
_CHUNK = 1_024


def channel_statistics(
  images: UInt8[np.ndarray, "n h w 3"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Mean and standard deviation of each channel, from counts of the 256 values.

  Returns:
    Both in grey levels; a deviation is at least 1, so that a set of one colour can be normalised.
  """
  counts = np.zeros((3, 256), np.int64)
  for begin in range(0, len(images), _CHUNK):
    for channel in range(3):
      part = images[begin : begin + _CHUNK, ..., channel]
      counts[channel] += np.bincount(part.ravel(), minlength=256)
  values, pixels = np.arange(256), counts[0].sum()
  mean = counts @ values / pixels
  variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / pixels
  return tuple(mean.tolist()), tuple(np.maximum(np.sqrt(variance), 1.0).tolist())
