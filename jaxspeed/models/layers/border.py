"""Borders of zeros, written by the kernel that writes the map; the next convolution pads nothing.

cuDNN pads all sides alike. Before a convolution with another padding, XLA copies the map.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import recompute
from jaxspeed.models.layers.choice import or_plain

# Rows above and below a map, columns left and right of it.
Border = tuple[tuple[int, int], tuple[int, int]]


def border_before_pool(x: Float[Array, "n h w c"]) -> Border:
  """Return the zeros with which a 3x3 convolution gives a 2x2 max pool what it reads, no more.

  The pool ignores the last row and column of a map with odd sides. With one row and one column less
  of zeros the convolution does not compute them: 30 x 30 of 31 x 31 pixels, 14 x 14 of 15 x 15 and
  6 x 6 of 7 x 7 are 10.8 % of the operations of airbench's convolutions.
  """
  _, h, w, _ = x.shape
  return (1, 1 - h % 2), (1, 1 - w % 2)


def border_before_stride(x: Float[Array, "n h w c"]) -> Border:
  """Return the zeros that a 3x3 convolution of stride 2 reads with 1 pixel of padding, no more."""
  _, h, w, _ = x.shape
  return (1, h % 2), (1, w % 2)


@or_plain(plain.add_border)
def add_border(x: Float[Array, "n h w c"], border: Border | None) -> Float[Array, "n h2 w2 c"]:
  """Return `x` with its border of zeros."""
  if border is None:
    return x
  # Without the barrier XLA would fold the zeros into the convolution, and copy the map before it.
  (x,) = recompute(jnp.pad(x, ((0, 0), *border, (0, 0))))
  return x


def drop_border(x: Float[Array, "n h2 w2 c"], border: Border | None) -> Float[Array, "n h w c"]:
  """Return `x` without its border."""
  if border is None:
    return x
  (top, bottom), (left, right) = border
  return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]
