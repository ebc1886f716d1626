"""Files of arrays: what is stored comes back, and what is damaged never does."""

import os

import numpy as np
import pytest

from jaxspeed.data.formats import npz

ABOUT = {
  "name": "cifar10",
  "source": os.fsdecode(b"/data/caf\xe9"),
  "files": [["a.bin", 3, 10**18]],
}


def arrays():
  images = np.random.default_rng(0).integers(256, size=(5, 4, 3, 3), dtype=np.uint8)
  return {"images": images, "labels": np.array([4, -1, 2, 70_000, 0], np.int32)}


@pytest.fixture
def entry(tmp_path):
  (tmp_path / "disk").mkdir()
  (tmp_path / "cache").symlink_to(tmp_path / "disk")
  path = npz.entry_of(tmp_path / "cache", "cifar10", tmp_path)
  npz.store(path, arrays(), ABOUT)
  return path


def assert_holds(stored):
  content, about = stored
  assert about == ABOUT and list(content) == ["images", "labels"]
  for name, array in arrays().items():
    np.testing.assert_array_equal(content[name], array, strict=True)


def test_what_is_stored_comes_back(entry, caplog):
  assert_holds(npz.read(entry))
  npz.store(entry, arrays(), ABOUT)
  assert list(entry.parent.iterdir()) == [entry] and not caplog.records


def test_pickles_and_what_is_compressed_are_not_unpacked(entry):
  for save, content, words in (
    (np.savez, np.array([print], object), "allow_pickle=False"),
    (np.savez_compressed, np.zeros(10_000), "it is compressed"),
  ):
    with open(entry, "wb") as file:
      save(file, about=content)
    with pytest.raises(ValueError, match=words):
      npz.read(entry)


def test_what_cannot_be_written_is_told_once_and_leaves_nothing(tmp_path, monkeypatch, caplog):
  (tmp_path / "file").write_text("in the way")
  npz.store(tmp_path / "file" / "cache" / "a.npz", arrays(), ABOUT)
  (record,) = caplog.records
  assert "cannot be written" in caplog.text and "--config.data.cache" in caplog.text

  def full_disk(*args, **kwargs):
    raise OSError("1000 requested and 5 written")  # NumPy's, which has no strerror

  monkeypatch.setattr(np, "savez", full_disk)
  npz.store(tmp_path / "cache" / "a.npz", arrays(), ABOUT)
  assert "cannot be written (1000 requested and 5 written)" in caplog.text
  assert not list((tmp_path / "cache").iterdir())
