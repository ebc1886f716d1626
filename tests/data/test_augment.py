"""Augmentation against NumPy's padding, slicing and arithmetic, and the statistics of the draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from tolerances import rounding

from jaxspeed.data import augment as augment_module
from jaxspeed.data.augment import augment, crop_and_flip
from jaxspeed.data.batch import AUGMENT
from jaxspeed.data.mixing import cutmix

MEAN, STD = (125.31, 122.95, 113.87), (62.99, 62.09, 66.70)
# Four roundings of numbers up to 255 / std, and with jitter four more of up to twice as large ones.
NORMALIZED, JITTERED = rounding(4) * 255 / min(STD), rounding(8) * 2 * 255 / min(STD)


def key(seed=0):
  return jnp.array([0, seed], jnp.uint32)


def random_images(n, size, seed=0):
  return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


OFF = dict(
  flip=None,
  crop_padding=0,
  cutout=0,
  brightness=0.0,
  contrast=0.0,
  randaugment_layers=0,
  randaugment_magnitude=10.0,
  color_jitter=(),
  erasing=0.0,
  mean=(0.0,) * 3,
  std=(1.0,) * 3,
)


def augment_by_fields(key, images, *, first, global_batch, flip, mean, std, drawn=None, **fields):
  """`augment` with `config.augment` as keywords, and the same key for each purpose."""
  parts = dict(first=first, global_batch=global_batch, flip=flip, mean=mean, std=std, drawn=drawn)
  return augment(lambda purpose: key, images, ConfigDict(fields), **parts)


jitted_augment = jax.jit(
  augment_by_fields, static_argnames=("global_batch", *(OFF.keys() - {"flip"}))
)
jitted_cutmix = jax.jit(cutmix, static_argnames=("global_batch", "size"))


ALL = dict(crop_padding=4, cutout=3, brightness=0.2, contrast=0.2)


def augmented(images, *, seed=0, first=0, global_batch=0, **changes):
  batch = global_batch or len(images)
  fields = OFF | changes
  return np.asarray(jitted_augment(key(seed), images, first=first, global_batch=batch, **fields))


def coins(n, seed=0):
  return np.random.default_rng(seed).integers(2, size=n).astype(bool)


def positions(n, size):
  """Images whose first two channels are the row and the column of a pixel."""
  rows, columns = np.indices((size, size), np.uint8)
  return np.broadcast_to(np.stack([rows, columns, rows], axis=-1), (n, size, size, 3))


def assert_alike_often(places, possible):
  """Both coordinates take all values, each pair within 5 standard deviations of the mean count."""
  values, counts = np.unique(places, axis=0, return_counts=True)
  np.testing.assert_array_equal(values, list(itertools.product(possible, repeat=2)))
  mean = len(places) / len(values)
  assert np.abs(counts - mean).max() < 5 * mean**0.5


@pytest.mark.parametrize("form", ["_by_gather", "_by_products"])  # the second is a TPU's
@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip_is_pad_slice_and_mirror_for_every_offset(monkeypatch, flip, form):
  monkeypatch.setattr(augment_module, "_by_gather", getattr(augment_module, form))
  offsets = list(itertools.product(range(-4, 5), repeat=2))
  assert len(offsets) == 81
  images = np.random.default_rng(0).integers(256, size=(81, 9, 11, 3), dtype=np.uint8)
  padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
  expected = np.stack(
    [p[4 + y : 4 + y + 9, 4 + x : 4 + x + 11] for p, (y, x) in zip(padded, offsets, strict=True)]
  )
  if flip:
    expected = expected[:, :, ::-1]
  y, x = jnp.array(offsets).T
  result = crop_and_flip(jnp.asarray(images), y, x, jnp.full(81, flip))
  assert result.dtype == jnp.uint8
  np.testing.assert_array_equal(result, expected)


def test_crops_have_all_81_offsets_alike_often():
  n, size = 8100, 10
  result = augmented(positions(n, size), crop_padding=4)
  # The pixel (5, 5) is 4 pixels from every border, so no offset reflects it.
  assert_alike_often(result[:, 5, 5, :2] - 5, range(-4, 5))


def test_the_images_of_the_mask_are_mirrored_and_no_others():
  images, flip = random_images(64, 6), coins(64)
  result = augmented(images, flip=flip)
  np.testing.assert_array_equal(result[flip], images[flip][:, :, ::-1])
  np.testing.assert_array_equal(result[~flip], images[~flip])


def test_cutout_sets_a_square_wholly_inside_to_the_mean():
  n, size, side = 2000, 9, 5
  white = np.full((n, size, size, 3), 255, np.uint8)
  result = augmented(white, cutout=side, mean=MEAN, std=STD)
  gone = (result == 0).all(axis=-1)
  np.testing.assert_array_equal((result == 0).any(axis=-1), gone)
  corners = []
  for image in gone:
    rows, columns = np.flatnonzero(image.any(axis=1)), np.flatnonzero(image.any(axis=0))
    assert image.sum() == side * side
    assert rows[-1] - rows[0] + 1 == columns[-1] - columns[0] + 1 == side
    corners.append((rows[0], columns[0]))
  assert_alike_often(corners, range(9 - 5 + 1))
  outside = result[~gone]
  expected = np.broadcast_to(numpy_normalize(255), outside.shape)
  np.testing.assert_allclose(outside, expected, rtol=0, atol=NORMALIZED)


def numpy_normalize(pixels):
  return (np.asarray(pixels, np.float64) - MEAN) / STD


@pytest.mark.parametrize("devices", [2, 8])
def test_a_devices_part_is_as_in_the_whole_batch(devices):
  images, labels, size = random_images(16, 12), np.arange(16, dtype=np.int32), 16 // devices
  fields = ALL | dict(mean=MEAN, std=STD, randaugment_layers=2, erasing=0.5)
  whole = augmented(images, flip=coins(16), **fields)
  mix = mixed(whole, labels, size=5)
  for first in range(0, 16, size):
    own, place = slice(first, first + size), dict(first=first, global_batch=16)
    part = augmented(images[own], flip=coins(16)[own], **place, **fields)
    np.testing.assert_array_equal(part, whole[own])
    for found, expected in zip(mixed(part, labels[own], size=5, **place), mix, strict=True):
      np.testing.assert_array_equal(found, expected[own])


def test_an_option_does_not_change_what_the_others_draw():
  images = random_images(64, 12)
  gone = augmented(images, cutout=5, mean=MEAN, std=STD) == 0
  result = augmented(images, **(ALL | dict(cutout=5, mean=MEAN, std=STD)))
  np.testing.assert_array_equal(result == 0, gone)
  uncut = augmented(images, **(ALL | dict(cutout=0, mean=MEAN, std=STD)))
  np.testing.assert_array_equal(result, np.where(gone, 0, uncut))


def test_jitter_by_hand():
  images = random_images(3, 2)
  # 0, 1/2 and 3/4 of the way from -b to b are -b, 0 and b / 2.
  uniform = jnp.zeros((6, 3)).at[4:].set(jnp.array([[0.0, 0.5, 0.75], [0.5, 0.75, 0.0]]))
  changes = dict(brightness=0.2, contrast=0.4, std=(255.0,) * 3, drawn={AUGMENT: uniform})
  result = augmented(images, **changes)
  images = images / 255.0
  expected = [(images[0] - 0.2) * 1.0, images[1] * 1.2, (images[2] + 0.1) * 0.6]
  np.testing.assert_allclose(result, expected, rtol=0, atol=JITTERED)


def test_what_is_drawn_for_an_image_is_uncorrelated():
  # Of one key, one option at a time: its draws are the same with the others on.
  n, size = 2000, 12
  crops = augmented(positions(n, size), crop_padding=4)[:, 6, 6, :2]
  kept = augmented(np.full((n, size, size, 3), 255, np.uint8), cutout=3)[..., 0] > 0
  corners = [np.argmin(kept.all(axis=axis), axis=1) for axis in (2, 1)]
  jittered = positions(n, size) + 1
  brightness = (augmented(jittered, brightness=1.0) - jittered)[:, 0, 0, 0]
  contrast = (augmented(jittered, contrast=1.0) / jittered)[:, 0, 0, 0]
  drawn = np.stack([*crops.T, *corners, brightness, contrast])
  correlation = np.corrcoef(drawn)
  # Standard deviation of a correlation of independent numbers: 1 / sqrt(n).
  np.testing.assert_allclose(correlation, np.eye(6), rtol=0, atol=5 / np.sqrt(n))


def mixed(images, labels, *, size, first=0, global_batch=0):
  parts = dict(size=size, first=first, global_batch=global_batch or len(images))
  # The last image of 1,800 is padding.
  found = jitted_cutmix(key(), jnp.asarray(images), labels, labels != 1_799, **parts)
  return [np.asarray(x) for x in found]


def test_cutmix_takes_a_square_from_the_partner():
  n, size, side = 1800, 8, 3
  labels = np.arange(n, dtype=np.int32)
  # Pixel (y, x) of image i holds i, y and x, so each pixel tells where it came from.
  where = np.broadcast_to(np.stack(np.indices((size, size)), axis=-1), (n, size, size, 2))
  number = np.broadcast_to(labels[:, None, None, None], (n, size, size, 1))
  images = np.concatenate([number, where], axis=-1).astype(np.float32)
  result, partner, share = mixed(images, labels, size=side)
  np.testing.assert_array_equal(result[..., 1:], images[..., 1:])
  np.testing.assert_array_equal(partner, labels ^ 1)
  np.testing.assert_array_equal(share, np.where(labels == 1_798, 0, np.float32(3 * 3 / (8 * 8))))
  np.testing.assert_array_equal(result[1_798], images[1_798])
  corners = []
  for i, image in enumerate(result[:1_798, ..., 0]):
    y, x = np.argwhere(image == i ^ 1)[0]
    expected = np.full((size, size), i)
    expected[y : y + side, x : x + side] = i ^ 1
    np.testing.assert_array_equal(image, expected)
    corners.append((y, x))
  assert_alike_often(corners, range(8 - 3 + 1))


def test_one_gather_does_crop_and_flip_and_nothing_scatters():
  def both(images, flip, labels):
    x = augment_by_fields(key(), images, first=0, global_batch=8, **(OFF | ALL | dict(flip=flip)))
    return cutmix(key(1), x, labels, labels < 7, 3, first=0, global_batch=8)

  program = str(jax.make_jaxpr(both)(random_images(8, 12), coins(8), jnp.arange(8)))
  assert program.count(" gather[") == 1
  assert "scatter" not in program
