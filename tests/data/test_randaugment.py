"""RandAugment against Pillow on photographs; its draws; that it costs nothing where it is off."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image

from jaxspeed.data.randaugment import FILL, OPERATIONS, apply, rand_augment

HEIGHT, WIDTH = 46, 60
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
# The exact ones. Pillow computes the others in floating point and rounds down: 1 of 255 less.
EXACT = (*GEOMETRIC, "equalize", "invert", "posterize", "solarize", "solarize_add")


def photographs():
  """Two photographs, and images of one value and of two: [4, 46, 60, 3]."""
  photos = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
  images = [np.asarray(photo.resize((WIDTH, HEIGHT))) for photo in photos]
  flat = np.full((HEIGHT, WIDTH, 3), 77, np.uint8)
  halves = np.where(np.arange(WIDTH)[:, None] < 20, np.uint8(30), np.uint8(200))
  return np.stack([*images, flat, np.broadcast_to(halves, flat.shape)])


def pillows(name, pixels, magnitude, sign=1):
  """The operation by Pillow, with the strengths of tensorflow/tpu's EfficientNet."""
  image, level = Image.fromarray(pixels), magnitude / 10
  part, factor = sign * level, level * 1.8 + 0.1
  x, y = (100 / 224 * part * side for side in image.size)

  def transformed(*matrix):
    affine, nearest = Image.Transform.AFFINE, Image.Resampling.NEAREST
    return image.transform(image.size, affine, matrix, nearest, fillcolor=(FILL,) * 3)

  added = [min(i + int(level * 110), 255) if i < 128 else i for i in range(256)]
  made = {
    "autocontrast": lambda: ImageOps.autocontrast(image),
    "equalize": lambda: ImageOps.equalize(image),
    "invert": lambda: ImageOps.invert(image),
    "rotate": lambda: image.rotate(-30 * part, fillcolor=(FILL,) * 3),
    "posterize": lambda: ImageOps.posterize(image, max(1, int(level * 4))),
    "solarize": lambda: ImageOps.solarize(image, int(level * 256)),
    "solarize_add": lambda: image.point(added * 3),
    "color": lambda: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
    "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
    "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
    "shear_x": lambda: transformed(1, 0.3 * part, 0, 0, 1, 0),
    "shear_y": lambda: transformed(1, 0, 0, 0.3 * part, 1, 0),
    "translate_x": lambda: transformed(1, 0, x, 0, 1, 0),
    "translate_y": lambda: transformed(1, 0, 0, 0, 1, y),
  }
  return np.asarray(made[name]())


jitted_apply = jax.jit(apply, static_argnames="magnitude")


@pytest.mark.parametrize("magnitude", [2.0, 10.0])
def test_every_operation_is_pillows(magnitude):
  images = photographs()
  cases = [(name, sign) for name in OPERATIONS for sign in (1, -1)]
  n = len(images)
  operation = np.repeat([OPERATIONS.index(name) for name, _ in cases], n).astype(np.int32)
  positive = np.repeat([sign > 0 for _, sign in cases], n)
  batch = jnp.asarray(np.tile(images, (len(cases), 1, 1, 1)))
  result = np.asarray(jitted_apply(batch, operation, positive, magnitude=magnitude))
  assert result.dtype == np.uint8
  for (name, sign), ours in zip(cases, np.split(result, len(cases)), strict=True):
    expected = np.stack([pillows(name, image, magnitude, sign) for image in images])
    difference = np.abs(ours.astype(int) - expected)
    assert difference.max() <= (0 if name in EXACT else 1), name
    assert (difference > 0).mean() < 0.02, name
    # At 10 solarize changes nothing.
    if magnitude == 2:
      assert (ours[:2] != images[:2]).any(), name


def test_layers_follow_each_other_as_drawn():
  names = [("rotate", "equalize"), ("invert", "shear_x"), ("posterize", "solarize_add")]
  # The middle of the interval of each operation; geometric ones are positive below 1/2.
  middle = [[(OPERATIONS.index(name) + 0.5) / 15 for name in pair] for pair in names]
  uniform = np.zeros((4, 3), np.float32)
  uniform[::2] = np.transpose(middle)
  uniform[1], uniform[3] = 0.2, 0.7
  image = photographs()[0]
  result = rand_augment(jnp.asarray(uniform), jnp.asarray(np.stack([image] * 3)), magnitude=9.0)
  expected = [pillows(second, pillows(first, image, 9.0, 1), 9.0, -1) for first, second in names]
  np.testing.assert_array_equal(result, expected)


@pytest.mark.usefixtures("float64")
def test_with_64_bit_types_the_arithmetic_is_the_same():
  uniform, images = jnp.zeros((2, 3), jnp.float32), jnp.zeros((3, 8, 8, 3), jnp.uint8)
  traced = str(jax.make_jaxpr(lambda u, x: rand_augment(u, x, magnitude=9.0))(uniform, images))
  assert "i32[" in traced and not re.search(r"[iuf]64\[[\d,]*\d", traced)
