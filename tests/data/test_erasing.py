"""Random erasing against torchvision's algorithm in NumPy, and the statistics of its draws."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed.data.augment import erased

masks = jax.jit(erased, static_argnums=(1, 2, 3))


def draws(n, seed=0):
  return np.random.default_rng(seed).random((5, n), np.float32)


def rectangle(mask):
  """First row, height, first column and width of a rectangle; the mask is true nowhere else."""
  rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
  assert mask.sum() == len(rows) * len(columns)
  return rows[0], len(rows), columns[0], len(columns)


def test_rectangles_are_torchvisions():
  """RandomErasing.get_params with our uniform numbers, but sides are cut where it draws again."""
  n, height, width = 600, 37, 52
  uniform = draws(n)
  result = np.asarray(masks(uniform, 0.7, height, width))[..., 0]
  compared = 0
  for mask, own in zip(result, uniform.T.astype(np.float64), strict=True):
    if own[0] >= 0.7:
      assert not mask.any()
      continue
    area = height * width * (0.02 + (0.33 - 0.02) * own[1])
    aspect_ratio = math.exp(math.log(0.3) + (math.log(3.3) - math.log(0.3)) * own[2])
    sides = math.sqrt(area * aspect_ratio), math.sqrt(area / aspect_ratio)
    h, w = (min(round(side), most) for side, most in zip(sides, (height, width), strict=True))
    places = own[3] * (height - h + 1), own[4] * (width - w + 1)
    # Within a float32's rounding of a whole number, either is right.
    near = [abs(x - math.floor(x) - 0.5) for x in sides] + [abs(x - round(x)) for x in places]
    if min(near) < 1e-4:
      continue
    assert rectangle(mask) == (int(places[0]), h, int(places[1]), w)
    compared += 1
  assert compared > 300


def test_probabilities_0_and_1_erase_none_and_all():
  uniform = draws(100)
  uniform[0, 0] = 1 - 2**-24
  assert np.asarray(masks(uniform, 1.0, 16, 16)).any(axis=(1, 2, 3)).all()
  uniform[0, 0] = 0.0
  assert not np.asarray(masks(uniform, 0.0, 16, 16)).any()


def test_a_side_longer_than_the_image_is_cut():
  # The largest area with the outermost ratios: sides of 1.04 and 0.32 of the image.
  for ratio, sides in ((0.0, (33, 100)), (1 - 2**-24, (100, 32))):
    uniform = jnp.array([[0.0], [1 - 2**-24], [ratio], [0.5], [0.5]], jnp.float32)
    _, h, _, w = rectangle(np.asarray(masks(uniform, 0.5, 100, 100))[0, ..., 0])
    assert (h, w) == (min(sides[0], 100), min(sides[1], 100)) or (h, w) == (31, 100)
