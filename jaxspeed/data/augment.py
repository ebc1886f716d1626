"""Augmentation inside the compiled step: pure functions of a key and a batch of uint8 images.

Every random number is drawn for the whole global batch and then sliced, so that image i gets the
same crop, jitter, cutout and cutmix on one device as on eight. Flips come with the batch, because
they may depend on the epoch and on the image's place in the data set.
"""

import functools

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, Shaped, UInt8, UInt32


def reflect_index(index: Int[Array, "..."], size: int) -> Int[Array, "..."]:
  """Reflect indices at both ends of an axis of `size`: -1 to 1, size to size - 2."""
  index = jnp.abs(index)
  return jnp.where(index >= size, 2 * (size - 1) - index, index)


def crop_and_flip(
  images: UInt8[Array, "n h w c"],
  offset_y: Int[Array, "n"],
  offset_x: Int[Array, "n"],
  flip: Bool[Array, "n"],
) -> UInt8[Array, "n h w c"]:
  """Shift each image by its offsets over a reflecting border, and flip it where `flip` is true.

  Equal to reflect-padding by p, cropping at (p + offset_y, p + offset_x) and flipping left to
  right, but in one gather and without a padded copy of the data set.
  """
  n, h, w, _ = images.shape
  places = functools.partial(jnp.arange, dtype=jnp.int32)
  rows = reflect_index(places(h) + offset_y[:, None], h)
  columns = jnp.where(flip[:, None], places(w)[::-1], places(w))
  columns = reflect_index(columns + offset_x[:, None], w)
  # Every index is in bounds, so XLA need not check.
  return images.at[places(n)[:, None, None], rows[:, :, None], columns[:, None, :]].get(
    mode="promise_in_bounds"
  )


def square_mask(
  top: Int[Array, "n"], left: Int[Array, "n"], size: int, height: int, width: int
) -> Bool[Array, "n h w 1"]:
  """Return a mask that is true in a square of side `size` with its corner at (top, left)."""
  y, x = jnp.arange(height, dtype=jnp.int32), jnp.arange(width, dtype=jnp.int32)
  in_rows = (y >= top[:, None]) & (y < top[:, None] + size)
  in_columns = (x >= left[:, None]) & (x < left[:, None] + size)
  return (in_rows[:, :, None] & in_columns[:, None, :])[..., None]


def normalize(
  images: UInt8[Array, "n h w c"],
  mean: tuple[float, ...],
  std: tuple[float, ...],
  dtype: DTypeLike = jnp.float32,
) -> Float[Array, "n h w c"]:
  """Return (pixel - mean) / std in `dtype`; mean and std are in units of 0 ... 255."""
  scale = 1.0 / jnp.asarray(std, dtype)
  return images.astype(dtype) * scale - jnp.asarray(mean, dtype) * scale


def draw_uniform(
  key: Key[Array, ""], rows: int, first: Int[Array, ""] | int, n: int, global_batch: int
) -> Float[Array, "rows n"]:
  """Draw numbers in [0, 1) for images first ... first + n - 1 of the global batch.

  One draw serves everything: five would take most of the step's compile time.
  """
  whole = jax.random.uniform(key, (rows, global_batch), jnp.float32)
  return jax.lax.dynamic_slice_in_dim(whole, first, n, axis=1)


def to_integers(uniform: Float[Array, "n"], low: int, high: int) -> Int[Array, "n"]:
  """Map uniform numbers to the integers low ... high, both included, with equal probability."""
  return low + jnp.floor(uniform * (high - low + 1)).astype(jnp.int32)


def jitter(
  images: Float[Array, "n h w c"],
  uniform: Float[Array, "2 n"],
  *,
  brightness: float,
  contrast: float,
) -> Float[Array, "n h w c"]:
  """Add a number within +-brightness to each image, then multiply it by a factor 1 +- contrast.

  The images are already normalised, as in hiverge/cifar10-speedrun. The factor also scales the
  number that was added.
  """
  between = 2.0 * uniform[:, :, None, None, None] - 1.0
  return (images + brightness * between[0]) * (1.0 + contrast * between[1])


def augment(
  key: UInt32[Array, "2"],
  images: UInt8[Array, "n h w c"],
  *,
  first: Int[Array, ""] | int,
  global_batch: int,
  flip: Bool[Array, "n"] | None,
  crop_padding: int,
  cutout: int,
  brightness: float,
  contrast: float,
  mean: tuple[float, ...],
  std: tuple[float, ...],
  dtype: DTypeLike = jnp.float32,
) -> Float[Array, "n h w c"]:
  """Crop at random, flip, normalise, jitter the colours and cut out a square.

  The square lies wholly inside the image and is set to the mean (davidcpage/cifar10-fast); it
  comes last, so that jitter leaves it at the mean. Each option uses its own row of the random
  numbers, so none changes the others.

  Args:
    key: this step's key.
    images: this device's part of the global batch.
    first: index of the part's first image in the global batch.
    global_batch: number of images on all devices.
    flip: which images are flipped left to right; None flips none.
    crop_padding: width of the reflected border; all offsets are equally likely; 0: no crop.
    cutout: side of the square; 0: none.
    brightness: largest number added, in standard deviations; see `jitter`.
    contrast: largest difference of the factor from 1.
    mean, std: as in `normalize`.
    dtype: dtype of the result; random numbers are always float32, so the same for each dtype.
  """
  n, h, w, _ = images.shape
  uniform = draw_uniform(jax.random.wrap_key_data(key), 6, first, n, global_batch)
  if crop_padding:
    images = crop_and_flip(
      images,
      to_integers(uniform[0], -crop_padding, crop_padding),
      to_integers(uniform[1], -crop_padding, crop_padding),
      jnp.zeros((n,), bool) if flip is None else flip,
    )
  elif flip is not None:
    # A gather would take large images row by row; this reads them twice, in one pass.
    images = jnp.where(flip[:, None, None, None], images[:, :, ::-1], images)
  result = normalize(images, mean, std, dtype)
  if brightness or contrast:
    result = jitter(result, uniform[4:6].astype(dtype), brightness=brightness, contrast=contrast)
  if cutout:
    top, left = to_integers(uniform[2], 0, h - cutout), to_integers(uniform[3], 0, w - cutout)
    result = jnp.where(square_mask(top, left, cutout, h, w), 0.0, result)
  return result


def cutmix(
  key: UInt32[Array, "2"],
  images: Float[Array, "n h w c"],
  labels: Int[Array, "n"],
  *,
  first: Int[Array, ""] | int,
  global_batch: int,
  size: int,
) -> tuple[Float[Array, "n h w c"], Int[Array, "n"], float]:
  """Replace a square in each image by the same square of its partner.

  After tysam-code/hlb-CIFAR10: the square lies wholly inside, all places are equally likely, and
  mixing follows crop and flip. There an even-sized square never covers the last row and column.

  Args:
    key: this step's key; not that of `augment`, which draws the same numbers for crops.
    images: this device's part of the augmented global batch.
    labels: labels of the images.
    first: index of the part's first image in the global batch.
    global_batch: number of images on all devices.
    size: side of the square, in pixels.

  Returns:
    The images, the labels of their partners, and the partners' share of the pixels. The loss is
    (1 - share) * loss(labels) + share * loss(partner labels).

  Raises:
    ValueError: the number of images is odd, so that one has no partner.
  """
  n, h, w, _ = images.shape
  if n % 2:
    raise ValueError(f"cutmix pairs the images of a device, and their number, {n}, is odd.")
  uniform = draw_uniform(jax.random.wrap_key_data(key), 2, first, n, global_batch)
  top, left = to_integers(uniform[0], 0, h - size), to_integers(uniform[1], 0, w - size)
  mixed = jnp.where(square_mask(top, left, size, h, w), of_partner(images), images)
  return mixed, of_partner(labels), size * size / (h * w)


def of_partner(array: Shaped[Array, "n *rest"]) -> Shaped[Array, "n *rest"]:
  """Swap neighbours: element i XOR 1 takes the place of element i, for an even n.

  The order of an epoch is random, so pairs of neighbours are random pairs. While a device's part
  is even, they do not depend on the number of devices and need no gather.
  """
  return array.reshape(-1, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)
