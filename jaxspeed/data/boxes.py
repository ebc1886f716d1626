"""Rectangles in images, as masks: those of random erasing, and any."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Shares of the image's area, and heights in multiples of the width: torchvision.transforms'
# defaults, and timm's up to rounding. Zhong et al. let the area reach 0.4.
_AREA = (0.02, 0.33)
_RATIO = (0.3, 3.3)


def box_mask(
  edges: Sequence[Int[Array, "n"]], height: int, width: int
) -> Bool[Array, "n height width 1"]:
  """Return a mask that is true inside one rectangle in each image.

  Args:
    edges: its first row, the row after its last, and the same of its columns.
    height, width: size of the images.
  """
  top, bottom, left, right = edges
  y, x = jnp.arange(height, dtype=jnp.int32), jnp.arange(width, dtype=jnp.int32)
  in_rows = (y >= top[:, None]) & (y < bottom[:, None])
  in_columns = (x >= left[:, None]) & (x < right[:, None])
  return (in_rows[:, :, None] & in_columns[:, None, :])[..., None]


def erased(
  uniform: Float[Array, "5 n"], probability: float, height: int, width: int
) -> Bool[Array, "n height width 1"]:
  """Return which pixels of each image random erasing removes (Zhong et al. 2018, arXiv 1708.04896).

  Area and the logarithm of the ratio are uniform, sides are rounded, and all places inside the
  image are equally likely, as in torchvision.transforms.RandomErasing. A side longer than the
  image's is cut to it. torchvision draws again there, which happens to 0.4 % of square images.

  Args:
    uniform: numbers in [0, 1) that decide whether to erase, the area, the ratio, top and left.
    probability: share of the images that lose a rectangle.
    height, width: size of the images.
  """
  lowest, highest = (math.log(ratio) for ratio in _RATIO)
  area = (_AREA[0] + (_AREA[1] - _AREA[0]) * uniform[1]) * (height * width)
  ratio = jnp.exp(lowest + (highest - lowest) * uniform[2])
  rows = jnp.minimum(jnp.round(jnp.sqrt(area * ratio)), height)
  columns = jnp.minimum(jnp.round(jnp.sqrt(area / ratio)), width)
  rows = jnp.where(uniform[0] < probability, rows, 0.0)
  top = jnp.floor(uniform[3] * (height - rows + 1))
  left = jnp.floor(uniform[4] * (width - columns + 1))
  edges = [x.astype(jnp.int32) for x in (top, top + rows, left, left + columns)]
  return box_mask(edges, height, width)
