"""Boxes of crops against torchvision's own draw and arithmetic."""

import math
import random

import numpy as np
import pytest
from scipy.stats import ks_2samp

from jaxspeed.data.disk.streams import CROP_NUMBERS, crop_boxes


def draw_box(rng, width, height, min_scale):
  """RandomResizedCrop as its documentation describes it, one attempt after the other."""
  for _ in range(10):
    area = width * height * rng.uniform(min_scale, 1)
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      return rng.randint(0, height - h), rng.randint(0, width - w), h, w
  w = min(width, round(height * 4 / 3))
  h = min(height, round(width * 4 / 3))
  return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (400, 90), (7, 5)])
@pytest.mark.parametrize("min_scale", [0.08, 0.5])
def test_boxes_have_the_distribution_of_torchvisions(width, height, min_scale):
  rng = random.Random(0)
  reference = [draw_box(rng, width, height, min_scale) for _ in range(1500)]
  n = 20_000
  uniform = np.random.RandomState(1).random_sample((n, CROP_NUMBERS))
  boxes = crop_boxes(uniform, np.full(n, width), np.full(n, height), min_scale=min_scale)
  for found, expected in zip(_features(boxes), _features(np.array(reference)), strict=True):
    assert ks_2samp(found, expected).pvalue > 1e-4


def _features(boxes):
  y, x, h, w = boxes.T
  return y, x, h, w, h * w, w / h, y + h, x + w


def test_boxes_lie_within_their_images():
  rng = np.random.RandomState(0)
  width, height = rng.randint(1, 40, (2, 5000))
  uniform = rng.random_sample((5000, CROP_NUMBERS))
  uniform[:100] = np.nextafter(1, 0)
  y, x, h, w = crop_boxes(uniform, width, height, min_scale=0.01).T
  assert (np.minimum(y, x) >= 0).all() and (np.minimum(h, w) >= 1).all()
  assert (y + h <= height).all() and (x + w <= width).all()
  assert ((y + h == height) & (x + w == width)).any() and (y == 0).any()


def test_boxes_by_arithmetic():
  uniform = np.zeros((6, CROP_NUMBERS))
  uniform[:, 10:20] = 0.5  # a ratio of 1
  uniform[1, 0] = 0.5  # the area's middle: (0.25 + 1) / 2
  uniform[1, 20:] = 0.999
  uniform[2, :9] = 0.999  # attempts that do not fit: 100 x 100 in 200 x 50
  # None fits in the last three.
  width, height = np.array([[40, 40, 200, 1000, 10, 1], [40, 40, 50, 10, 1000, 1]])
  boxes = crop_boxes(uniform, width, height, min_scale=0.25)
  side = round((0.625 * 1600) ** 0.5)
  assert boxes[:3].tolist() == [[0, 0, 20, 20], [40 - side, 40 - side, side, side], [0, 0, 50, 50]]
  middle = (1000 - 13) // 2
  assert boxes[3:].tolist() == [[0, middle, 10, 13], [middle, 0, 13, 10], [0, 0, 1, 1]]
