"""open_arrays: which format a path is, the cache behind it, and each bad input."""

import os
import subprocess
import sys
import tarfile
import types

import numpy as np
import pytest
from tiny_sets import CIFAR_NAMES, assert_holds, write_arrays

from jaxspeed.errors import UserError


@pytest.fixture
def archive(cifar10, tmp_path):
  """(archive, expected arrays) of `cifar10`."""
  folder, expected = cifar10
  (folder / "batches.meta.txt").write_text("\n".join(CIFAR_NAMES))
  path = tmp_path / "cifar-10-binary.tar.gz"
  with tarfile.open(path, "w:gz") as file:
    file.add(folder, "cifar-10-batches-bin")
  return path, expected


def test_a_changed_archive_and_a_damaged_cache_are_read_again(archive, opened, tmp_path, caplog):
  path, expected = archive
  for ending in ("", ", from the cache"):
    found = opened(path)
    assert_holds(found, expected)
    assert found.source == f"CIFAR-10, binary version in cifar-10-binary.tar.gz{ending}"
    assert found.class_names == CIFAR_NAMES
  os.utime(path, (1, 1))
  assert not opened(path).source.endswith("from the cache")
  (entry,) = (tmp_path / "cache").glob("arrays-*.npz")
  content = bytearray(entry.read_bytes())
  content[200] ^= 1
  entry.write_bytes(content)
  again = opened(path)
  assert_holds(again, expected)
  assert not again.source.endswith("from the cache") and "Bad CRC-32" in caplog.text
  assert opened(path).source.endswith("from the cache")


def test_no_tensorflow_and_no_jax_is_imported(tmp_path):
  write_arrays(tmp_path / "3.0.2")
  code = (
    "import sys, types; from jaxspeed.data.memory.sources import open_arrays\n"
    "fields = dict(name='cifar10', path=sys.argv[1], cache=sys.argv[2], classes=10)\n"
    "open_arrays(types.SimpleNamespace(**fields))\n"
    "heavy = {'tensorflow', 'tensorflow_datasets', 'torch', 'jax', 'sklearn'}\n"
    "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "3.0.2"), str(tmp_path / "cache")]
  assert subprocess.run(command, timeout=60, capture_output=True, text=True).stderr == ""


def test_tfds_folders(tmp_path, opened):
  expected = write_arrays(tmp_path / "cifar10" / "3.0.2")
  for path in (tmp_path, tmp_path / "cifar10", tmp_path / "cifar10" / "3.0.2"):
    found = opened(path)
    assert_holds(found, expected)
    assert found.class_names == CIFAR_NAMES
    assert found.source.startswith("TFDS cifar10 3.0.2, splits train and test")
  assert found.source.endswith("from the cache")


def test_damaged_shards_and_labels_without_a_class_are_named_and_not_stored(tmp_path, opened):
  write_arrays(tmp_path / "3.0.2", labels=(0, 1, 2, -1))  # TFDS's mark of no label
  path = tmp_path / "3.0.2" / "cifar10-test.tfrecord-00000-of-00001"
  with pytest.raises(UserError, match="a label of .*3.0.2 is -1"):
    opened(tmp_path / "3.0.2", cache=tmp_path / "other")
  content = bytearray(path.read_bytes())
  content[60] ^= 1
  path.write_bytes(content)
  with pytest.raises(UserError, match="cifar10-test.tfrecord-00000-of-00001 is damaged: record 0"):
    opened(tmp_path / "3.0.2")
  assert not list((tmp_path / "cache").glob("*"))


@pytest.fixture
def builder(tmp_path, monkeypatch):
  """A function that takes the place of TFDS's `builder`; its data lie in tmp_path / "data"."""
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "data"))

  def call(make):
    module = types.ModuleType("tensorflow_datasets")
    module.builder = make
    module.__spec__ = types.SimpleNamespace(name="tensorflow_datasets")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)

  return call


def test_without_a_path_tfds_prepares_the_set_once(tmp_path, opened, builder):
  folder = tmp_path / "data" / "cifar10" / "3.0.2"
  expected, asked = [], []

  def make(name, file_format):
    asked.append((name, file_format))
    expected.extend(write_arrays(folder))
    return types.SimpleNamespace(data_dir=str(folder), download_and_prepare=lambda: None)

  builder(make)
  assert_holds(opened(""), expected)
  assert opened("").source.endswith("from the cache") and asked == [("cifar10", "tfrecord")]


def test_a_download_that_fails_is_told_in_one_line(opened, builder):
  def make(name, file_format):
    raise ConnectionError("Failed to resolve 'www.cs.toronto.edu'\nand much more")

  builder(make)
  with pytest.raises(
    UserError, match="could not prepare cifar10 .ConnectionError: Failed"
  ) as found:
    opened("")
  assert "\n" not in str(found.value) and "much more" not in str(found.value)


def test_digits(opened):
  from sklearn.datasets import load_digits

  found = opened("", name="digits")
  assert found.train_images.shape == (1_500, 8, 8, 3) and found.eval_images.shape == (297, 8, 8, 3)
  assert found.class_names == tuple("0123456789")
  images = np.concatenate([found.train_images, found.eval_images])
  labels = np.concatenate([found.train_labels, found.eval_labels])
  assert (images.min(), images.max()) == (0, 255)
  assert (images == images[..., :1]).all()
  # 255 / 16 > 1, so that no two of the 17 greys fall together and rounding turns back exactly.
  grey = np.round(images[..., 0] / 255 * 16).astype(int)
  digits = load_digits()
  rows = sorted((*image.ravel(), label) for image, label in zip(grey, labels, strict=True))
  expected = digits.images.astype(int).reshape(1_797, 64)
  assert rows == sorted((*x, y) for x, y in zip(expected, digits.target, strict=True))
  again = opened("", name="digits")
  np.testing.assert_array_equal(found.eval_labels, again.eval_labels)


def test_paths_that_hold_no_set_are_named(tmp_path, opened):
  (tmp_path / "empty").mkdir()
  (tmp_path / "photos" / "train" / "cat").mkdir(parents=True)
  (tmp_path / "notes.txt").write_text("no set")
  with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as file:
    file.add(tmp_path / "notes.txt", "notes.txt")
  for path, message in {
    "nowhere": "nowhere does not exist; it names a folder or .tar.gz archive of CIFAR's binary",
    "empty": "empty holds no data set, .*; it names .*dataset_info.json.*train/images.npy",
    "photos": "photos holds no data set, .* trains from memory; .*configs/imagenette.py",
    "notes.txt": "notes.txt cannot be read as an archive",
    "other.tar.gz": "other.tar.gz has 0 bytes of data_batch_1.bin, not the .* of the binary",
  }.items():
    with pytest.raises(UserError, match=message):
      opened(tmp_path / path)
