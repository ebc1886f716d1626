"""The cache of arrays: what is stored comes back, and what is damaged never does."""

import json
import logging
import os

import numpy as np
import pytest

from jaxspeed.data.formats import array_cache

ABOUT = {"name": "cifar10", "class_names": ["cat", "dog"], "source": "a test"}
SOURCE = {"path": "somewhere", "files": [["a.bin", 3, 1_700_000_000_000_000_001]]}


@pytest.fixture
def entry(tmp_path):
  folder = tmp_path / "cache" / "cifar10-0123"
  array_cache.store(folder, arrays(), ABOUT, SOURCE)
  return folder


def arrays():
  images = np.random.default_rng(0).integers(256, size=(5, 4, 3, 3), dtype=np.uint8)
  return {"images": images, "labels": np.array([4, -1, 2, 70_000, 0], np.int32)}


def assert_loaded(stored):
  content, about = stored
  assert about == ABOUT and list(content) == ["images", "labels"]
  for name, array in arrays().items():
    np.testing.assert_array_equal(content[name], array, strict=True)
    assert content[name].flags.writeable  # in memory, not a view of a file that may change


def test_what_is_stored_comes_back(entry):
  assert_loaded(array_cache.load(entry, SOURCE))
  assert_loaded(array_cache.load(entry, None))
  assert sorted(each.name for each in entry.iterdir()) == [
    "images.npy",
    "labels.npy",
    "manifest.json",
  ]
  np.testing.assert_array_equal(np.load(entry / "images.npy"), arrays()["images"])


def test_mapped_arrays_are_the_files_and_are_checked_like_copies(entry):
  content, about = array_cache.load(entry, SOURCE, mapped=True)
  assert about == ABOUT
  for name, array in arrays().items():
    np.testing.assert_array_equal(content[name], array, strict=True)
    assert not content[name].flags.writeable and type(content[name]) is np.ndarray
  damaged = bytearray((entry / "labels.npy").read_bytes())
  damaged[-1] ^= 1
  (entry / "labels.npy").write_bytes(damaged)
  assert array_cache.load(entry, SOURCE, mapped=True) is None


def test_a_source_whose_name_is_no_utf8_comes_back(tmp_path):
  source = {"path": os.fsdecode(b"/data/caf\xe9")}
  array_cache.store(tmp_path / "a", arrays(), ABOUT, source)
  assert_loaded(array_cache.load(tmp_path / "a", source))


def test_nothing_is_found_where_nothing_was_stored(tmp_path, caplog):
  assert array_cache.load(tmp_path / "none", SOURCE) is None
  assert array_cache.entries(tmp_path / "none", "cifar10") == []
  assert not caplog.records


def test_a_changed_source_is_told_and_the_entry_removed(entry, caplog):
  changed = SOURCE | {"files": [["a.bin", 3, 1_700_000_000_000_000_002]]}
  assert array_cache.load(entry, changed) is None
  assert "cifar10-0123 is not used" in caplog.text and "have changed" in caplog.text
  assert list(entry.parent.iterdir()) == []


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "manifest.json"])
def test_no_damaged_byte_is_trusted(entry, file, caplog):
  """Every third byte is changed in turn: the arrays come back right, or not at all."""
  whole = {path.name: path.read_bytes() for path in entry.iterdir()}
  refused = 0
  for position in range(0, len(whole[file]), 3):
    entry.mkdir(exist_ok=True)
    for name, content in whole.items():
      (entry / name).write_bytes(content)
    damaged = bytearray(whole[file])
    damaged[position] ^= 1
    (entry / file).write_bytes(damaged)
    caplog.clear()
    if stored := array_cache.load(entry, SOURCE):
      assert_loaded(stored)
    else:
      assert "is not used" in caplog.text
      refused += 1
  # The header of an .npy file (128 bytes) and white space in the JSON need not be right.
  data = {"images.npy": 5 * 4 * 3 * 3, "labels.npy": 5 * 4, "manifest.json": 300}
  assert refused >= data[file] // 3


def test_a_cut_off_or_missing_file_is_told(entry, caplog):
  whole = {path.name: path.read_bytes() for path in entry.iterdir()}
  for file in whole:
    for content in (b"", whole[file][:20], whole[file][:-1], None):
      entry.mkdir(exist_ok=True)
      for name, data in whole.items():
        (entry / name).write_bytes(data)
      (entry / file).unlink()
      if content is not None:
        (entry / file).write_bytes(content)
      caplog.clear()
      assert array_cache.load(entry, SOURCE) is None
      assert "is not used" in caplog.text


def test_an_entry_of_another_format_is_made_again(entry, monkeypatch, caplog):
  monkeypatch.setattr(array_cache, "_FORMAT", 2)
  assert array_cache.load(entry, SOURCE) is None
  assert "format 1" in caplog.text


def test_the_first_of_two_writers_wins_in_silence(entry, caplog):
  array_cache.store(entry, {"images": np.zeros(1, np.uint8)}, ABOUT, SOURCE)
  assert_loaded(array_cache.load(entry, SOURCE))
  assert [path.name for path in entry.parent.iterdir()] == ["cifar10-0123"]
  assert not caplog.records


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, caplog):
  (tmp_path / "file").write_text("in the way")
  array_cache.store(tmp_path / "file" / "cache" / "cifar10-1", arrays(), ABOUT, SOURCE)
  assert [record.levelno for record in caplog.records] == [logging.WARNING]
  assert "cannot be written" in caplog.text and "--config.data.cache" in caplog.text


def test_a_failure_without_a_number_is_told_in_its_own_words(tmp_path, monkeypatch, caplog):
  def full_disk(*args, **kwargs):
    raise OSError("1000 requested and 5 written")  # NumPy's, which has no strerror

  monkeypatch.setattr(np, "save", full_disk)
  array_cache.store(tmp_path / "cifar10-1", arrays(), ABOUT, SOURCE)
  assert "cannot be written (1000 requested and 5 written)" in caplog.text


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, caplog):
  def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "save", full_disk)
  array_cache.store(tmp_path / "cifar10-1", arrays(), ABOUT, SOURCE)
  assert list(tmp_path.iterdir()) == [] and "No space left" in caplog.text


def test_entries_are_named_by_set_and_source_newest_first(tmp_path):
  cache = tmp_path / "cache"
  folders = [array_cache.entry_of(cache, "cifar10", tmp_path / name) for name in "ab"]
  assert folders[0] != folders[1] and folders[0].name.startswith("cifar10-")
  for i, folder in enumerate(folders):
    array_cache.store(folder, arrays(), ABOUT, SOURCE)
    os.utime(folder / "manifest.json", ns=(i, 10**18 - i))
  array_cache.store(cache / "cifar100-0", arrays(), ABOUT, SOURCE)
  assert array_cache.entries(cache, "cifar10") == folders


def test_the_fingerprint_sees_size_and_time(tmp_path):
  path = tmp_path / "a.bin"
  path.write_bytes(b"abc")
  os.utime(path, ns=(0, 1_234_567_890_123_456_789))
  first = array_cache.fingerprint(tmp_path, [path])
  assert first["files"] == [["a.bin", 3, 1_234_567_890_123_456_789]]
  assert json.loads(json.dumps(first)) == first
  path.write_bytes(b"abd")
  assert array_cache.fingerprint(tmp_path, [path]) != first
