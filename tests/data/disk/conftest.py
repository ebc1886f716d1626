"""What tests of images on disk share."""

import numpy as np
import pytest
from image_streams import encode
from toy_images import write_split


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
  """22 noisy JPEGs of many shapes."""
  rng = np.random.RandomState(0)
  contents = {}
  for number in range(22):
    height, width = rng.randint(20, 60, 2)
    contents[f"{number}.jpg"] = encode(rng.randint(0, 256, (height, width, 3)).astype(np.uint8))
  return write_split(tmp_path_factory.mktemp("noise"), contents)
