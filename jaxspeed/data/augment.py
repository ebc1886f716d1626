"""Augmentation inside the compiled step: pure functions of a key and a batch of uint8 images.

Every random number is drawn for the whole global batch and then sliced, so that image i gets the
same crop, flip and cutout on one device as on eight.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32


def reflect_index(index: Int[Array, "..."], size: int) -> Int[Array, "..."]:
  """Where a reflecting border of an axis of `size` leads: -1 to 1, size to size - 2."""
  index = jnp.abs(index)
  return jnp.where(index >= size, 2 * (size - 1) - index, index)


def crop_and_flip(
  images: UInt8[Array, "n h w c"],
  offset_y: Int[Array, "n"],
  offset_x: Int[Array, "n"],
  flip: Bool[Array, "n"],
) -> UInt8[Array, "n h w c"]:
  """Moves each image by its offsets over a reflecting border, and mirrors it where `flip`.

  One gather does both; the padded copy of the set that the original keeps is not needed.
  Equal to reflect-pad by p, crop at (p + offset_y, p + offset_x), mirror left to right.
  """
  n, h, w, _ = images.shape
  rows = reflect_index(jnp.arange(h) + offset_y[:, None], h)
  columns = jnp.where(flip[:, None], jnp.arange(w)[::-1], jnp.arange(w))
  columns = reflect_index(columns + offset_x[:, None], w)
  # mode: every index is in bounds, and XLA need not check.
  return images.at[jnp.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].get(
    mode="promise_in_bounds"
  )


def cutout_mask(
  top: Int[Array, "n"], left: Int[Array, "n"], size: int, height: int, width: int
) -> Bool[Array, "n h w 1"]:
  """True outside each image's square of `size` pixels with its corner at (top, left)."""
  y, x = jnp.arange(height), jnp.arange(width)
  in_rows = (y >= top[:, None]) & (y < top[:, None] + size)
  in_columns = (x >= left[:, None]) & (x < left[:, None] + size)
  return ~(in_rows[:, :, None] & in_columns[:, None, :])[..., None]


def normalize(
  images: UInt8[Array, "n h w c"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Array, "n h w c"]:
  """(pixel - mean) / std in float32; mean and std in units of 0 ... 255."""
  scale = 1.0 / jnp.asarray(std, jnp.float32)
  return images.astype(jnp.float32) * scale - jnp.asarray(mean, jnp.float32) * scale


def augment(
  key: UInt32[Array, "2"],
  images: UInt8[Array, "n h w c"],
  *,
  first: Int[Array, ""] | int,
  global_batch: int,
  crop_padding: int,
  flip: bool,
  cutout: int,
  mean: tuple[float, ...],
  std: tuple[float, ...],
) -> Float[Array, "n h w c"]:
  """Random crop, flip and cutout of myrtle's recipe, then normalisation, in float32.

  Crops come from a border of `crop_padding` reflected pixels, all offsets alike; flips have
  probability 1/2 each (the original flips exactly half of an epoch); the square of `cutout`
  pixels lies wholly inside and is set to the mean (davidcpage/cifar10-fast).

  Args:
    key: of this step.
    images: this device's part of the global batch.
    first: index of the part's first image in the global batch.
    global_batch: images of all devices.
  """
  n, h, w, _ = images.shape
  # One draw for everything: five would be most of what the step takes to compile.
  whole = jax.random.uniform(jax.random.wrap_key_data(key), (5, global_batch))
  uniform = jax.lax.dynamic_slice_in_dim(whole, first, n, axis=1)

  def draw(index: int, low: int, high: int) -> Int[Array, "n"]:
    return low + jnp.floor(uniform[index] * (high - low + 1)).astype(jnp.int32)

  if crop_padding or flip:
    zero = jnp.zeros((n,), jnp.int32)
    images = crop_and_flip(
      images,
      draw(0, -crop_padding, crop_padding) if crop_padding else zero,
      draw(1, -crop_padding, crop_padding) if crop_padding else zero,
      (draw(2, 0, 1) if flip else zero).astype(bool),
    )
  result = normalize(images, mean, std)
  if cutout:
    mask = cutout_mask(draw(3, 0, h - cutout), draw(4, 0, w - cutout), cutout, h, w)
    result = jnp.where(mask, result, 0.0)
  return result
