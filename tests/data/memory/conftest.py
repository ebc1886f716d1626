"""What tests of data in memory share."""

import types

import pytest
import tiny_sets

from jaxspeed.data.memory.sources import open_arrays


@pytest.fixture
def opened(tmp_path):
  """open_arrays with a cache in the test's own folder."""

  def call(path, *, name="cifar10", classes=10, cache=tmp_path / "cache", hold_out=0.1, **options):
    parts = dict(name=name, path=str(path), cache=str(cache), classes=classes, hold_out=hold_out)
    return open_arrays(types.SimpleNamespace(**parts), **options)

  return call


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
  """(folder, expected arrays) of a CIFAR-10 with 5 x 3 + 3 images."""
  tiny_sets.shrink_cifar(monkeypatch, 3)
  folder = tmp_path / "sets" / "cifar-10-batches-bin"
  return folder, tiny_sets.write_cifar10(folder, 3)
