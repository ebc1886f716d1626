"""The folder of images that tests of this folder change."""

import pytest
from edited_images import NAMES, jpeg
from made_images import write


@pytest.fixture
def source(tmp_path):
  return write(tmp_path / "set", {name: jpeg(i) for i, name in enumerate(NAMES)})
