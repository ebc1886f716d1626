"""The folder of images that tests of this folder change."""

import pytest
from image_files import NAMES, noise, write


@pytest.fixture
def source(tmp_path):
  return write(tmp_path / "set", {name: noise(i) for i, name in enumerate(NAMES)})
