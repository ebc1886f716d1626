"""What tests of data in memory share."""

import pytest
import tiny_sets

from jaxspeed.data.memory.sources import open_arrays


@pytest.fixture
def opened(tmp_path):
  """open_arrays with a cache in the test's own folder."""

  def call(path, *, name="cifar10", classes=10, cache=tmp_path / "cache", **options):
    return open_arrays(name=name, path=str(path), cache=str(cache), classes=classes, **options)

  return call


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
  """(folder, expected arrays) of a CIFAR-10 with 5 x 3 + 3 images."""
  tiny_sets.shrink_cifar(monkeypatch, 3)
  folder = tmp_path / "sets" / "cifar-10-batches-bin"
  return folder, tiny_sets.write_cifar10(folder, 3)
