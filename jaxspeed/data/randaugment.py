"""RandAugment inside the compiled step (Cubuk et al., 2019, arXiv 1909.13719).

The operations and their strengths are those of tensorflow/tpu's EfficientNet (autoaugment.py),
which google-research/big_vision also uses, without its cutout: `augment.cutout` and random erasing
are options of their own. Values equal those of Pillow's ImageOps and ImageEnhance, and pixels that
are moved those of its `Image.transform`. All arithmetic is on integers; where Pillow's is in
floating point and rounded down, it may be 1 of 255 lower.

Each layer applies one operation to an image, so a layer is one pass over the batch in which every
stage leaves the images of other operations as they are: a warp, a look-up table for each channel,
and a blend with grey or smoothed pixels. No operation has a pass of its own.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt8

OPERATIONS = (
  "autocontrast",
  "equalize",
  "invert",
  "rotate",
  "posterize",
  "solarize",
  "solarize_add",
  "color",
  "contrast",
  "brightness",
  "sharpness",
  "shear_x",
  "shear_y",
  "translate_x",
  "translate_y",
)

FILL = 128
"""grey of the pixels that a geometric operation leaves empty, as in tensorflow/tpu; Pillow and
torchvision fill with black"""

_VALUES = np.arange(256, dtype=np.int32)

_ONE = 1 << 16


# Rotations, shears and translations, each image by a matrix of its own: nearest neighbour in 16.16
# fixed point, as in Pillow's `Image.transform(AFFINE, NEAREST)`


def warp(images: UInt8[Array, "n h w c"], matrices: Int[Array, "n 2 3"]) -> UInt8[Array, "n h w c"]:
  """Transform each image by its matrix (`matrices`), in one gather.

  The identity leaves every pixel as it is.
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
  return jnp.where(inside[..., None], pixels, np.uint8(FILL))


# Strengths: all are constants of the compiled program


def enhancement(magnitude: float) -> float:
  """Return the factor of color, contrast, brightness and sharpness: 0.1 to 1.9, 1 at 5."""
  return magnitude * 0.18 + 0.1


def matrices(magnitude: float, height: int, width: int) -> Int[np.ndarray, "operations signs 2 3"]:
  """Return the matrix of each operation, for the negative and the positive sign.

  It maps the (column, row, 1) of a result's pixel to those of the image's, in units of 2**-16.
  """
  found = np.tile(np.eye(2, 3), (len(OPERATIONS), 2, 1, 1))
  x, y = width / 2, height / 2
  for sign, part in enumerate((-magnitude / 10, magnitude / 10)):
    sine, cosine = math.sin(math.radians(30 * part)), math.cos(math.radians(30 * part))
    # tensorflow/tpu moves images by up to 100 pixels; EfficientNet-B0's have a side of 224.
    changed: dict[str, list[list[float]]] = {
      "rotate": [
        [cosine, sine, x - cosine * x - sine * y],
        [-sine, cosine, y + sine * x - cosine * y],
      ],
      "shear_x": [[1, 0.3 * part, 0], [0, 1, 0]],
      "shear_y": [[1, 0, 0], [0.3 * part, 1, 0]],
      "translate_x": [[1, 0, part * 100 / 224 * width], [0, 1, 0]],
      "translate_y": [[1, 0, 0], [0, 1, part * 100 / 224 * height]],
    }
    for name, matrix in changed.items():
      found[OPERATIONS.index(name), sign] = matrix
  # A pixel's centre is half a pixel below and right of its corner.
  found[..., 2] += found[..., :2].sum(-1) / 2
  return np.floor(found * _ONE + 0.5).astype(np.int32)


def constant_tables(magnitude: float) -> UInt8[np.ndarray, "operations 256"]:
  """Return the table of each operation whose values do not depend on the image, or the identity."""
  bits = min(8, max(1, int(magnitude / 10 * 4)))  # Pillow keeps at least one
  added = _VALUES + int(magnitude / 10 * 110)
  tables = {
    "invert": 255 - _VALUES,
    "posterize": _VALUES & ~(2 ** (8 - bits) - 1),
    "solarize": np.where(_VALUES < int(magnitude / 10 * 256), _VALUES, 255 - _VALUES),
    "solarize_add": np.where(_VALUES < 128, np.minimum(added, 255), _VALUES),
    "brightness": blend(np.int32(0), _VALUES, enhancement(magnitude)),
  }
  return np.stack([tables.get(name, _VALUES) for name in OPERATIONS]).astype(np.uint8)


def blend(degenerate: Int[Any, "..."], values: Int[Any, "..."], factor: float) -> Int[Any, "..."]:
  """Return degenerate + factor * (values - degenerate), cut off to integers 0 ... 255.

  The factor is a multiple of 2**-16. Half a unit of its error is added, so that a whole number
  stays one, as with Pillow's float32.

  Args:
    degenerate, values: integers 0 ... 255, int32.
    factor: at most 100.
  """
  scaled = degenerate * 2**16 + round(factor * 2**16) * (values - degenerate) + 128
  return (scaled >> 16).clip(0, 255)


# What depends on the images


def grey_of(images: UInt8[Array, "n h w 3"]) -> Int[Array, "n h w"]:
  """Return the luma of each pixel as Pillow's mode L has it (ITU-R 601-2)."""
  red, green, blue = (images[..., i].astype(jnp.int32) for i in range(3))
  return (19595 * red + 38470 * green + 7471 * blue + 2**15) >> 16


def mean_grey(images: UInt8[Array, "n h w 3"]) -> Int[Array, "n"]:
  """Return the mean luma of each image of at most 16 million pixels, rounded to an integer."""
  pixels = images.shape[1] * images.shape[2]
  total = jnp.sum(grey_of(images), axis=(1, 2), dtype=jnp.uint32)
  return ((total + pixels // 2) // pixels).astype(jnp.int32)


def histograms(images: UInt8[Array, "n h w c"], counted: Bool[Array, "n"]) -> Int[Array, "n c 256"]:
  """Return the histogram of each channel; zeros for images that are not counted.

  On a GPU each counted pixel is an atomic addition and the others cost a comparison, so the work
  is that of the few images that need it.
  """
  n, _, _, c = images.shape
  channel = jnp.arange(n * c, dtype=jnp.int32).reshape(n, 1, 1, c) * 256
  place = jnp.where(counted[:, None, None, None], channel + images.astype(jnp.int32), n * c * 256)
  counts = jnp.zeros((n * c * 256,), jnp.int32).at[place].add(1, mode="drop")
  return counts.reshape(n, c, 256)


def equalize_tables(counts: Int[Array, "... 256"]) -> Int[Array, "... 256"]:
  """Return the tables of ImageOps.equalize."""
  below = jnp.cumsum(counts, axis=-1, dtype=jnp.int32) - counts
  # The highest value that occurs is the one that has all the others below it.
  highest = jnp.max(jnp.where(counts > 0, below, 0), axis=-1, keepdims=True)
  step = highest // 255
  table = (step // 2 + below) // jnp.maximum(step, 1)
  return jnp.where(step > 0, jnp.minimum(table, 255), _VALUES)


def autocontrast_tables(counts: Int[Array, "... 256"]) -> Int[Array, "... 256"]:
  """Return the tables of ImageOps.autocontrast without a cutoff."""
  found = jnp.where(counts > 0, _VALUES, -1)
  high = jnp.max(found, axis=-1, keepdims=True)
  low = 255 - jnp.max(jnp.where(counts > 0, 255 - _VALUES, -1), axis=-1, keepdims=True)
  table = jnp.clip((_VALUES - low) * 255 // jnp.maximum(high - low, 1), 0, 255)
  return jnp.where(high > low, table, _VALUES)


def tables_of(
  images: UInt8[Array, "n h w 3"], operation: Int[Array, "n"], *, magnitude: float
) -> UInt8[Array, "n 3 256"]:
  """Return the look-up table of each image and channel; the identity for other operations."""

  def chosen(name: str) -> Bool[Array, "n"]:
    return operation == OPERATIONS.index(name)

  counts = histograms(images, chosen("equalize") | chosen("autocontrast"))
  mean = mean_grey(images)[:, None, None]
  table = jnp.asarray(constant_tables(magnitude), jnp.int32)[operation][:, None]
  for name, values in (
    ("contrast", blend(mean, _VALUES, enhancement(magnitude))),
    ("autocontrast", autocontrast_tables(counts)),
    ("equalize", equalize_tables(counts)),
  ):
    table = jnp.where(chosen(name)[:, None, None], values, table)
  # Written by a scatter: XLA:CPU would fuse anything else with the pass that reads the tables, and
  # compute an entry anew for each pixel, which takes four times as long.
  return (
    jnp.zeros(counts.shape, jnp.uint8)
    .at[jnp.arange(len(images), dtype=jnp.int32)]
    .set(table.astype(jnp.uint8), mode="promise_in_bounds", unique_indices=True)
  )


def smoothed(images: UInt8[Array, "n h w c"]) -> Int[Array, "n h w c"]:
  """Return the mean of 3 x 3 pixels, the middle one weighted by 5; the border stays as it is.

  This is Pillow's ImageFilter.SMOOTH, rounded.
  """
  _, h, w, c = images.shape
  rows = images.reshape(-1, h, w * c).astype(jnp.int32)
  above = jnp.pad(rows, ((0, 0), (1, 1), (0, 0)))
  threes = above[:, :-2] + rows + above[:, 2:]
  beside = jnp.pad(threes, ((0, 0), (0, 0), (c, c)))
  nines = beside[:, :, : -2 * c] + threes + beside[:, :, 2 * c :]
  y, x = np.arange(h)[:, None], np.arange(w * c) // c
  border = (y == 0) | (y == h - 1) | (x == 0) | (x == w - 1)
  mean = lax.div(2 * (nines + 4 * rows) + 13, np.int32(26))
  return jnp.where(border, rows, mean).reshape(images.shape)


def apply(
  images: UInt8[Array, "n h w 3"],
  operation: Int[Array, "n"],
  positive: Bool[Array, "n"],
  *,
  magnitude: float,
) -> UInt8[Array, "n h w 3"]:
  """Apply one operation to each image.

  Args:
    operation: the index of each image's operation in `OPERATIONS`.
    positive: the direction of geometric operations.
    magnitude: strength; see `rand_augment`.
  """
  n, h, w, c = images.shape
  matrix = jnp.asarray(matrices(magnitude, h, w))[operation, positive.astype(jnp.int32)]
  tables = tables_of(images, operation, magnitude=magnitude)
  channel = jnp.arange(n * c, dtype=jnp.int32).reshape(n, 1, 1, c) * 256
  warped = warp(images, matrix).astype(jnp.int32)
  values = tables.reshape(-1).at[channel + warped].get(mode="promise_in_bounds")
  color, sharpness = (
    (operation == OPERATIONS.index(name))[:, None, None, None] for name in ("color", "sharpness")
  )
  original = images.astype(jnp.int32)
  degenerate = jnp.where(color, grey_of(images)[..., None], smoothed(images))
  blended = blend(degenerate, original, enhancement(magnitude)).astype(jnp.uint8)
  return jnp.where(color | sharpness, blended, values)


def rand_augment(
  uniform: Float[Array, "numbers n"], images: UInt8[Array, "n h w 3"], *, magnitude: float
) -> UInt8[Array, "n h w 3"]:
  """Apply random operations to each image, one per layer, all equally likely.

  Strengths at a magnitude of M: rotation by 3 M degrees; shear by 0.03 M; translation by 4.5 % M of
  the side (10 M of 224 pixels); 0.4 M bits left by posterize (at least 1); solarize from 25.6 M on,
  which at 10 changes nothing; 11 M added by solarize_add; factor 0.1 + 0.18 M of color, contrast,
  brightness and sharpness. Geometric operations go either way with equal probability, take the
  nearest pixel, and fill with grey (`FILL`).

  Args:
    uniform: two numbers in [0, 1) for each image and layer; N layers in the paper.
    magnitude: strength of all operations, M in the paper: 0 to 10, or more.
  """

  def layer(images: Array, drawn: Array) -> tuple[Array, None]:
    operation = jnp.floor(drawn[0] * len(OPERATIONS)).astype(jnp.int32)
    return apply(images, operation, drawn[1] < 0.5, magnitude=magnitude), None

  def layers(unroll: bool) -> Callable[[Array, Array], Array]:
    return lambda images, drawn: lax.scan(layer, images, drawn, unroll=unroll)[0]

  # XLA:CPU would fuse layers that are not in a loop, and compute each pixel of one anew wherever
  # the next one reads it. XLA:GPU does not, and would copy the images around a loop.
  drawn = uniform.reshape(-1, 2, len(images))
  return lax.platform_dependent(images, drawn, cpu=layers(False), default=layers(True))
