"""What tests of images on disk share."""

import os

import numpy as np
import pytest
from image_files import encode, write_split

from jaxspeed.data.disk import index
from jaxspeed.data.disk.sources import open_images


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
  """22 noisy JPEGs of many shapes."""
  rng = np.random.RandomState(0)
  contents = {}
  for number in range(22):
    height, width = rng.randint(20, 60, 2)
    contents[f"{number}.jpg"] = encode(rng.randint(0, 256, (height, width, 3)).astype(np.uint8))
  return write_split(tmp_path_factory.mktemp("noise"), contents)


@pytest.fixture
def opened(tmp_path):
  """open_images with a cache in the test's own folder."""

  def call(path, *, cache=tmp_path / "cache", **options):
    return open_images(name="insects", path=str(path), cache=str(cache), **options)

  return call


@pytest.fixture
def scans(monkeypatch):
  """The jobs that were done: the number of files, or the name of a shard."""
  done = []

  def files(folder, names, real=index.scan_files):
    done.append(len(names))
    return real(folder, names)

  def shard(path, *rest, real=index.scan_shard):
    done.append(os.path.basename(path))
    return real(path, *rest)

  monkeypatch.setattr(index, "scan_files", files)
  monkeypatch.setattr(index, "scan_shard", shard)
  return done
