"""Rectangles in images, as masks."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


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
