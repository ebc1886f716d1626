"""One's own arrays take little more memory than they have, and their statistics none."""

import tracemalloc

import numpy as np
import pytest

from jaxspeed.data.memory.own import gathered, read_own
from jaxspeed.data.memory.statistics import channel_statistics


@pytest.fixture
def peak():
  """The most bytes that Python and NumPy held at once, since the test began."""
  tracemalloc.start()
  yield lambda: tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()


def write_images(folder, number=30_000, size=16):
  """23 MB of noise, and labels."""
  folder.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (number, size, size, 3), np.uint8)
  np.save(folder / "images.npy", images)
  np.save(folder / "labels.npy", np.arange(number) % 3)
  return images.nbytes


@pytest.mark.parametrize("splits", [("",), ("train", "val")])
def test_reading_takes_little_more_memory_than_the_set(tmp_path, splits, peak):
  size = sum(write_images(tmp_path / split) for split in splits)
  tracemalloc.reset_peak()
  read_own(tmp_path, tune=False)
  assert peak() < 1.2 * size


@pytest.mark.parametrize("number", [1, 5, 1_024, 3_000])
def test_images_are_gathered_in_their_own_memory(number):
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (number + 300, 2, 3, 3), np.uint8)
  kept = np.sort(rng.permutation(len(images))[:number])
  expected = images[kept]
  found = gathered(images, kept)
  assert np.shares_memory(found, images)
  np.testing.assert_array_equal(found, expected)


def test_statistics_are_exact_and_take_no_memory(peak):
  images = np.random.default_rng(0).integers(0, 256, (5_000, 32, 32, 3), np.uint8)
  images[..., 2] = 7
  tracemalloc.reset_peak()
  before = tracemalloc.get_traced_memory()[0]
  mean, std = channel_statistics(images)
  # A chunk of a channel as NumPy counts it: eight bytes a pixel.
  assert peak() - before < 0.9 * images.nbytes
  pixels = images.reshape(-1, 3).astype(np.float64)
  np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-12)
  np.testing.assert_allclose(std[:2], pixels.std(axis=0)[:2], rtol=1e-12)
  assert (mean[2], std[2]) == (7.0, 1.0)
