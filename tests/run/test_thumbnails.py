"""Small images and filters that a run leaves for its report."""

import numpy as np

from jaxspeed.run.thumbnails import filters_of, small


def test_small_images_are_means_and_filters_those_over_three_channels():
  images = np.arange(2 * 130 * 65 * 3).reshape(2, 130, 65, 3) % 251
  found = small(images.astype(np.uint8))
  assert found.shape == (2, 44, 22, 3)
  assert abs(found[1, 2, 3, 0] - images[1, 6:9, 9:12, 0].mean()) <= 1
  ours, flax = np.full((5, 2, 2, 3), -1.0), np.ones((4, 4, 3, 6))
  inner = np.ones((7, 3, 3, 9))
  assert filters_of({"a": inner, "b": ours}).shape == (5, 2, 2, 3)
  assert filters_of({"b": ours}).max() == 0 and filters_of({"b": flax}).shape == (6, 4, 4, 3)
  assert len(filters_of({"b": np.ones((3, 3))})) == 0
