"""Colour jitter against torchvision's formulas in NumPy and colorsys."""

import colorsys

import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal, rounding

from jaxspeed.data.color import color_jitter

RANGES = (0.9, 0.8, 0.7, 0.3)


def random_images(n=6, size=5, seed=0):
  return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


def draws(n=6, seed=1):
  return np.random.default_rng(seed).random((4, n), np.float32)


def jittered(images, uniform, ranges, dtype=np.float32):
  result = color_jitter(images.astype(dtype), jnp.asarray(uniform, dtype), ranges)
  assert result.dtype == dtype and result.min() >= 0 and result.max() <= 255
  return np.asarray(result)


def formulas(image, factors, shift):
  """torchvision's adjust_* one after the other, on one image of 0 ... 1 in float64."""
  brightness, contrast, saturation = factors

  def grey(x):
    return (x @ [0.299, 0.587, 0.114])[..., None]

  image = np.clip(brightness * image, 0, 1)
  image = np.clip(contrast * image + (1 - contrast) * grey(image).mean(), 0, 1)
  image = np.clip(saturation * image + (1 - saturation) * grey(image), 0, 1)

  def turned(pixel):
    hue, s, v = colorsys.rgb_to_hsv(*pixel)
    return colorsys.hsv_to_rgb((hue + shift) % 1.0, s, v)

  return np.apply_along_axis(turned, -1, image)


@pytest.mark.usefixtures("float64")
def test_all_four_follow_each_other_as_in_torchvisions_formulas():
  images, uniform = random_images(), draws()
  # Grey pixels, the primary colours, and two equal channels: the corners of the hue.
  corners = [[9, 9, 9], [0, 0, 0], [255] * 3, [255, 0, 0], [0, 255, 0], [0, 0, 255]]
  images[0, 0] = corners[:5]
  images[0, 1] = [corners[5], [7, 7, 200], [200, 7, 7], [7, 200, 7], [200, 200, 7]]
  result = jittered(images, uniform, RANGES, np.float64)
  for image, ours, own in zip(images, result, uniform.T.astype(np.float64), strict=True):
    factors = [1 - most + 2 * most * u for most, u in zip(RANGES[:3], own, strict=False)]
    expected = formulas(image / 255, factors, RANGES[3] * (2 * own[3] - 1)) * 255
    assert_equal(ours, expected)


def test_a_factor_is_between_0_and_1_plus_the_range_and_draws_are_apart():
  n = 4000
  white = np.full((n, 1, 1, 3), 51, np.uint8)
  factors = jittered(white, draws(n), (2.5, 0.0, 0.0, 0.0))[:, 0, 0, 0] / 51
  # From 0, not from 1 - 2.5. Of 4,000 uniform numbers the outermost are within 1 % of the ends but
  # for exp(-40), and the mean has a standard deviation of 3.5 / sqrt(12 * 4000) = 0.016.
  assert 0 <= factors.min() < 0.035 and 3.465 < factors.max() <= 3.5 * (1 + rounding(4))
  assert abs(factors.mean() - 1.75) < 0.08
