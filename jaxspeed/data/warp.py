"""Rotations, shears and translations of uint8 images, each image by a matrix of its own.

Nearest neighbour in 16.16 fixed point, as in Pillow's `Image.transform(AFFINE, NEAREST)`. All
arithmetic is on integers, so every processor and every number of devices gives the same pixels.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

Matrix = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): a result's pixel (x, y) shows the image at (ax + by + c, dx + ey + f). A
pixel's centre is at (x + 0.5, y + 0.5)."""

IDENTITY: Matrix = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_ONE = 1 << 16


def rotation(degrees: float, height: int, width: int) -> Matrix:
  """Return the matrix that rotates about the image's centre, clockwise."""
  sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
  x, y = width / 2, height / 2
  return (cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y)


def fixed_point(matrix: Matrix) -> Int[np.ndarray, "2 3"]:
  """Return a matrix in units of 2**-16, which maps a pixel's (column, row, 1) to its source."""
  a, b, c, d, e, f = matrix
  centred = [[a, b, c + (a + b) / 2], [d, e, f + (d + e) / 2]]
  return np.floor(np.array(centred) * _ONE + 0.5).astype(np.int32)


def warp(
  images: UInt8[Array, "n h w c"], matrices: Int[Array, "n 2 3"], *, fill: int
) -> UInt8[Array, "n h w c"]:
  """Transform each image by its matrix, in one gather.

  Args:
    matrices: `fixed_point` of their matrices. The identity leaves every pixel as it is.
    fill: value of the pixels that no pixel of the image falls on.
  """
  n, h, w, _ = images.shape
  x, y = jnp.arange(w, dtype=jnp.int32), jnp.arange(h, dtype=jnp.int32)[:, None]
  terms = matrices[:, :, :, None, None]
  # Sums beyond an int32 wrap around and back: sources are less than 2**15 pixels away.
  column, row = ((terms[:, i, 0] * x + terms[:, i, 1] * y + terms[:, i, 2]) >> 16 for i in (0, 1))
  inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
  image = jnp.arange(n, dtype=jnp.int32)[:, None, None]
  pixels = images.at[image, jnp.clip(row, 0, h - 1), jnp.clip(column, 0, w - 1)].get(
    mode="promise_in_bounds"
  )
  return jnp.where(inside[..., None], pixels, np.uint8(fill))
