"""Augmentation against NumPy's padding and slicing, and the statistics of what is drawn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.data.augment import augment, crop_and_flip, cutout_mask, normalize, reflect_index

MEAN, STD = (125.31, 122.95, 113.87), (62.99, 62.09, 66.70)


def key(seed=0):
  return jnp.array([0, seed], jnp.uint32)


def random_images(n, size, seed=0):
  return np.random.default_rng(seed).integers(256, size=(n, size, size, 3), dtype=np.uint8)


STATIC = ("global_batch", "crop_padding", "flip", "cutout", "mean", "std")
jitted_augment = jax.jit(augment, static_argnames=STATIC)


def augmented(images, *, seed=0, first=0, global_batch=0, **changes):
  fields = dict(crop_padding=0, flip=False, cutout=0, mean=(0.0,) * 3, std=(1.0,) * 3) | changes
  batch = global_batch or len(images)
  return np.asarray(jitted_augment(key(seed), images, first=first, global_batch=batch, **fields))


def positions(n, size):
  """Images whose first two channels are the row and the column of a pixel."""
  rows, columns = np.indices((size, size), np.uint8)
  return np.broadcast_to(np.stack([rows, columns, rows], axis=-1), (n, size, size, 3))


def test_reflect_index_is_numpys_reflecting_border():
  padded = np.pad(np.arange(5), 4, mode="reflect")
  np.testing.assert_array_equal(reflect_index(jnp.arange(-4, 9), 5), padded)


@pytest.mark.parametrize("flip", [False, True])
def test_crop_and_flip_is_pad_slice_and_mirror_for_every_offset(flip):
  offsets = list(itertools.product(range(-4, 5), repeat=2))
  assert len(offsets) == 81
  images = random_images(81, 9)
  padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
  expected = np.stack(
    [p[4 + y : 4 + y + 9, 4 + x : 4 + x + 9] for p, (y, x) in zip(padded, offsets, strict=True)]
  )
  if flip:
    expected = expected[:, :, ::-1]
  y, x = jnp.array(offsets).T
  result = crop_and_flip(jnp.asarray(images), y, x, jnp.full(81, flip))
  assert result.dtype == jnp.uint8
  np.testing.assert_array_equal(result, expected)


def test_crop_and_flip_of_images_that_are_not_square():
  image = np.random.default_rng(0).integers(256, size=(1, 6, 11, 3), dtype=np.uint8)
  padded = np.pad(image, ((0, 0), (3, 3), (3, 3), (0, 0)), mode="reflect")
  one = jnp.ones(1, jnp.int32)
  result = crop_and_flip(jnp.asarray(image), -2 * one, 3 * one, jnp.array([True]))
  np.testing.assert_array_equal(result, padded[:, 1:7, 6:17][:, :, ::-1])


def test_each_image_is_flipped_by_its_own_coin():
  images, zero = random_images(2, 4), jnp.zeros(2, jnp.int32)
  result = crop_and_flip(jnp.asarray(images), zero, zero, jnp.array([False, True]))
  np.testing.assert_array_equal(result, [images[0], images[1][:, ::-1]])


def test_crops_have_all_81_offsets_alike_often():
  n, size = 8100, 10
  result = augmented(positions(n, size), crop_padding=4)
  # The pixel (5, 5) is 4 pixels from every border, so no offset reflects it.
  offsets = result[:, 5, 5, :2] - 5
  values, counts = np.unique(offsets, axis=0, return_counts=True)
  np.testing.assert_array_equal(values, list(itertools.product(range(-4, 5), repeat=2)))
  # 100 each, with a standard deviation of 10.
  assert counts.min() > 50 and counts.max() < 150


def test_flips_are_half_of_the_images_and_independent_of_the_crops():
  n = 4000
  result = augmented(positions(n, 12), crop_padding=4, flip=True)
  middle = result[:, 6, 5:7, 1]
  flipped = middle[:, 0] > middle[:, 1]
  # Standard deviation of the share: 0.5 / sqrt(4000) = 0.008.
  assert abs(flipped.mean() - 0.5) < 0.04
  offset_y = result[:, 6, 6, 0] - 6
  assert abs(np.corrcoef(flipped, offset_y)[0, 1]) < 5 / np.sqrt(n)


def test_flip_alone_mirrors_and_crop_alone_does_not():
  images = random_images(64, 6)
  result = augmented(images, flip=True)
  mirrored = [(a == b[:, ::-1]).all() for a, b in zip(result, images, strict=True)]
  as_they_were = [(a == b).all() for a, b in zip(result, images, strict=True)]
  assert np.logical_xor(mirrored, as_they_were).all()
  assert 0 < sum(mirrored) < 64
  cropped = augmented(positions(64, 12), crop_padding=2)
  assert (np.diff(cropped[:, 6, 4:8, 1]) == 1).all()


def test_cutout_mask_is_one_square():
  mask = cutout_mask(jnp.array([0, 3]), jnp.array([1, 2]), 2, 5, 4)
  expected = np.ones((2, 5, 4, 1), bool)
  expected[0, 0:2, 1:3] = expected[1, 3:5, 2:4] = False
  np.testing.assert_array_equal(mask, expected)


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
  # 9 - 5 + 1 = 5 places on each axis, 2,000 / 25 = 80 images each, standard deviation 9.
  values, counts = np.unique(corners, axis=0, return_counts=True)
  np.testing.assert_array_equal(values, list(itertools.product(range(5), repeat=2)))
  assert counts.min() > 35 and counts.max() < 125
  outside = result[~gone]
  np.testing.assert_allclose(outside, np.broadcast_to(numpy_normalize(255), outside.shape), 1e-5)


def numpy_normalize(pixels):
  return (np.asarray(pixels, np.float64) - MEAN) / STD


def test_normalize_is_numpys():
  images = random_images(4, 8)
  result = normalize(jnp.asarray(images), MEAN, STD)
  assert result.dtype == jnp.float32
  np.testing.assert_allclose(result, numpy_normalize(images), rtol=0, atol=1e-6)


def test_without_augmentation_images_are_only_normalized():
  images = random_images(4, 8)
  result = augmented(images, mean=MEAN, std=STD)
  np.testing.assert_allclose(result, numpy_normalize(images), rtol=0, atol=1e-6)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_devices_part_is_augmented_as_in_the_whole_batch(devices):
  images, size = random_images(16, 12), 16 // devices
  fields = dict(crop_padding=4, flip=True, cutout=3, mean=MEAN, std=STD)
  whole = augmented(images, **fields)
  for first in range(0, 16, size):
    part = augmented(images[first : first + size], first=first, global_batch=16, **fields)
    np.testing.assert_array_equal(part, whole[first : first + size])


def test_the_same_key_gives_the_same_images_and_another_key_others():
  images = random_images(32, 12)
  fields = dict(crop_padding=4, flip=True, cutout=3)
  first, again = augmented(images, seed=1, **fields), augmented(images, seed=1, **fields)
  np.testing.assert_array_equal(first, again)
  assert (first != augmented(images, seed=2, **fields)).any(axis=(1, 2, 3)).sum() > 28
