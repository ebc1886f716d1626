"""Augmentation inside the compiled step: pure functions of a key and a batch of uint8 images.

Every random number is drawn for the whole global batch and then sliced, so that image i gets the
same crop, jitter and cutout on one device as on eight. Flips come with the batch, because they may
depend on the epoch and on the image's place in the data set. `mixing.py` mixes images.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt8, UInt32
from ml_collections import ConfigDict

from jaxspeed.data.batch import AUGMENT, COLOR, ERASING, RANDAUGMENT
from jaxspeed.data.color import color_jitter
from jaxspeed.data.randaugment import rand_augment

# Random erasing: shares of the image's area, and heights in multiples of the width. They are
# torchvision's defaults, and timm's up to rounding. Zhong et al. let the area reach 0.4.
_AREA = (0.02, 0.33)
_RATIO = (0.3, 3.3)
# Random numbers of a global batch by purpose, [rows, batch] each.
Drawn = dict[int, Float[Array, "rows batch"]]


def crop_and_flip(
  images: UInt8[Array, "n h w c"],
  offset_y: Int[Array, "n"],
  offset_x: Int[Array, "n"],
  flip: Bool[Array, "n"],
) -> UInt8[Array, "n h w c"]:
  """Shift each image by its offsets over a reflecting border, and flip it where `flip` is true.

  Equal to reflect-padding by p, cropping at (p + offset_y, p + offset_x) and flipping left to
  right, but without a padded copy of the data set: in one gather, or on a TPU in two products.
  """
  _, h, w, _ = images.shape
  y, x = jnp.arange(h, dtype=jnp.int32), jnp.arange(w, dtype=jnp.int32)

  def reflected(index: Int[Array, "..."], size: int) -> Int[Array, "..."]:
    index = jnp.abs(index)
    return jnp.where(index >= size, 2 * (size - 1) - index, index)

  rows = reflected(y + offset_y[:, None], h)
  columns = reflected(jnp.where(flip[:, None], x[::-1], x) + offset_x[:, None], w)
  return jax.lax.platform_dependent(images, rows, columns, tpu=_by_products, default=_by_gather)


def _by_gather(images: Array, rows: Array, columns: Array) -> Array:
  """Return pixel (rows[n, i], columns[n, j]) of each image n at (i, j)."""
  numbers = jnp.arange(len(images), dtype=jnp.int32)[:, None, None]
  # Every index is in bounds, so XLA need not check.
  return images.at[numbers, rows[:, :, None], columns[:, None, :]].get(mode="promise_in_bounds")


def _by_products(images: Array, rows: Array, columns: Array) -> Array:
  """Like `_by_gather`, which a TPU does pixel by pixel: the images times matrices of 0 and 1.

  In bfloat16 the bytes are exact.
  """
  row, column = (
    jax.nn.one_hot(places, size, dtype=jnp.bfloat16)
    for places, size in zip((rows, columns), images.shape[1:3], strict=True)
  )
  found = jnp.einsum("nir,nrwc->niwc", row, images.astype(jnp.bfloat16))
  return jnp.einsum("njw,niwc->nijc", column, found).astype(images.dtype)


def normalize(
  images: Shaped[Array, "n h w c"],
  mean: tuple[float, ...],
  std: tuple[float, ...],
  dtype: DTypeLike = jnp.float32,
) -> Float[Array, "n h w c"]:
  """Return (pixel - mean) / std in `dtype`; mean and std are in units of 0 ... 255."""
  scale = 1.0 / jnp.asarray(std, dtype)
  return images.astype(dtype) * scale - jnp.asarray(mean, dtype) * scale


def draw_ahead(
  keys: Callable[[int], UInt32[Array, "2"]], fields: ConfigDict, global_batch: int
) -> Drawn:
  """Return all random numbers of one call of `augment`, whose arguments these are.

  A loop over steps that takes them from an array has fewer kernels than one that draws them, 4 a
  step on a GPU. For the 32 steps of an epoch of cifar10.py they are 1.2 MB.
  """
  shared = fields.crop_padding or fields.cutout or fields.brightness or fields.contrast
  rows = {
    AUGMENT: 6 if shared else 0,
    RANDAUGMENT: 2 * fields.randaugment_layers,
    COLOR: 4 if any(fields.color_jitter) else 0,
    ERASING: 5 if fields.erasing else 0,
  }
  return {
    purpose: jax.random.uniform(
      jax.random.wrap_key_data(keys(purpose)), (count, global_batch), jnp.float32
    )
    for purpose, count in rows.items()
    if count
  }


def to_integers(uniform: Float[Array, "n"], low: int, high: int) -> Int[Array, "n"]:
  """Map uniform numbers to the integers low ... high, both included, with equal probability."""
  return low + jnp.floor(uniform * (high - low + 1)).astype(jnp.int32)


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


def augment(
  keys: Callable[[int], UInt32[Array, "2"]],
  images: UInt8[Array, "n h w c"],
  fields: ConfigDict,
  *,
  first: Int[Array, ""] | int,
  global_batch: int,
  flip: Bool[Array, "n"] | None,
  mean: tuple[float, ...],
  std: tuple[float, ...],
  dtype: DTypeLike = jnp.float32,
  drawn: Drawn | None = None,
) -> Float[Array, "n h w c"]:
  """Crop, flip, RandAugment, colours, normalisation, jitter, a cut-out square, random erasing.

  Jitter adds a number within +-brightness to each normalised image, then multiplies it by a factor
  1 +- contrast, which also scales that number (hiverge/cifar10-speedrun). The square lies wholly
  inside the image and is set to the mean (davidcpage/cifar10-fast); it comes after jitter, so that
  jitter leaves it at the mean. Each option uses random numbers of its own, so none changes the
  others.

  Args:
    keys: returns this step's key for a purpose of `batch`.
    images: this device's part of the global batch.
    fields: `config.augment`.
    first: index of the part's first image in the global batch.
    global_batch: number of images on all devices.
    flip: which images are flipped left to right; None flips none.
    mean, std: as in `normalize`.
    dtype: dtype of the result; random numbers are always float32, so the same for each dtype.
    drawn: what `draw_ahead` returns for `keys`; None draws the same numbers here.
  """
  n, h, w, _ = images.shape
  padding, cutout = fields.crop_padding, fields.cutout

  drawn = draw_ahead(keys, fields, global_batch) if drawn is None else drawn
  uniform = {
    purpose: jax.lax.dynamic_slice_in_dim(whole, first, n, axis=1)
    for purpose, whole in drawn.items()
  }
  if padding:
    images = crop_and_flip(
      images,
      to_integers(uniform[AUGMENT][0], -padding, padding),
      to_integers(uniform[AUGMENT][1], -padding, padding),
      jnp.zeros((n,), bool) if flip is None else flip,
    )
  elif flip is not None:
    # A gather would take large images row by row; this reads them twice, in one pass.
    images = jnp.where(flip[:, None, None, None], images[:, :, ::-1], images)
  if fields.randaugment_layers:
    images = rand_augment(uniform[RANDAUGMENT], images, magnitude=fields.randaugment_magnitude)
  if any(fields.color_jitter):
    factors = uniform[COLOR].astype(dtype)
    images = color_jitter(images.astype(dtype), factors, fields.color_jitter)
  result = normalize(images, mean, std, dtype)
  if fields.brightness or fields.contrast:
    between = 2.0 * uniform[AUGMENT][4:6].astype(dtype)[:, :, None, None, None] - 1.0
    result = (result + fields.brightness * between[0]) * (1.0 + fields.contrast * between[1])
  if cutout:
    top, left = (
      to_integers(uniform[AUGMENT][2], 0, h - cutout),
      to_integers(uniform[AUGMENT][3], 0, w - cutout),
    )
    square = box_mask((top, top + cutout, left, left + cutout), h, w)
    result = jnp.where(square, 0.0, result)
  if fields.erasing:
    result = jnp.where(erased(uniform[ERASING], fields.erasing, h, w), 0.0, result)
  return result
