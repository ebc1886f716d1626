"""What tests of feeds share."""

import pytest
from toy_images import write_folder


@pytest.fixture(scope="module")
def places(tmp_path_factory):
  """A folder of images and one for caches."""
  pytest.importorskip("tensorflow")
  return write_folder(tmp_path_factory.mktemp("images")), tmp_path_factory.mktemp("cache")
