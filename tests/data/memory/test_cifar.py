"""The reader of CIFAR's binary version: folders, archives, and what is wrong with them."""

import pathlib
import pickle
import tarfile

import numpy as np
import pytest
import tiny_sets

from jaxspeed.data.memory.arrays import FIELDS
from jaxspeed.data.memory.cifar import find_cifar, read_cifar
from jaxspeed.errors import UserError

RECORDS = 3


@pytest.fixture
def small(monkeypatch):
  return tiny_sets.shrink_cifar(monkeypatch, RECORDS)


def write_cifar100(folder):
  """train.bin and test.bin; returns (train images, fine labels, test images, fine labels)."""
  folder.mkdir(parents=True)
  images, fine = tiny_sets.random_images(2, 2 * RECORDS), np.array([99, 0, 50, 20, 7, 98])
  for file, part in {"train.bin": slice(0, RECORDS), "test.bin": slice(RECORDS, None)}.items():
    (folder / file).write_bytes(tiny_sets.cifar_bytes(images[part], fine[part] // 5, fine[part]))
  return images[:RECORDS], fine[:RECORDS], images[RECORDS:], fine[RECORDS:]


def archive_of(folder, path, mode="w:gz", prefix="cifar-10-batches-bin/"):
  with tarfile.open(path, mode) as archive:
    for file in sorted(folder.iterdir()):
      archive.add(file, prefix + file.name)
  return path


def assert_read(found, expected):
  for name, array in zip(FIELDS, expected, strict=True):
    np.testing.assert_array_equal(getattr(found, name), array)
  assert found.train_images.dtype == np.uint8 and found.train_labels.dtype == np.int32


def test_planes_become_channels(tmp_path, small):
  """The first record's bytes: red 0 ... 1,023, then green, then blue, each row after row."""
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  planes = np.arange(3 * 32 * 32).reshape(3, 32, 32) % 251
  content = bytearray((tmp_path / "c" / "data_batch_1.bin").read_bytes())
  content[:3_073] = bytes([6]) + planes.astype(np.uint8).tobytes()
  (tmp_path / "c" / "data_batch_1.bin").write_bytes(content)
  found = read_cifar(tmp_path / "c")
  assert found.train_labels[0] == 6
  np.testing.assert_array_equal(found.train_images[0], planes.transpose(1, 2, 0))


def test_cifar100_takes_the_fine_label(tmp_path, small):
  expected = write_cifar100(tmp_path / "c")
  assert_read(read_cifar(tmp_path / "c"), expected)


def test_folders_and_archives_are_read_without_extraction(tmp_path, small):
  expected = tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  (tmp_path / "c" / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
  (tmp_path / "c" / "readme.html").write_text("<html>")
  paths = [archive_of(tmp_path / "c", tmp_path / m, m, "../../out/") for m in ("w:gz", "w")]
  before = sorted(tmp_path.rglob("*"))
  for path in (tmp_path / "c", *paths):
    found = read_cifar(path)
    assert_read(found, expected)
    assert found.class_names == tuple("abcdefghij")
  assert sorted(tmp_path.rglob("*")) == before


def test_links_in_an_archive_are_not_followed(tmp_path, small):
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  target = tmp_path / "c" / "test_batch.bin"
  target.rename(tmp_path / "secret")
  target.symlink_to(tmp_path / "secret")
  path = archive_of(tmp_path / "c", tmp_path / "a.tar.gz")
  with pytest.raises(UserError, match="a.tar.gz has 0 bytes of test_batch.bin"):
    read_cifar(path)


def test_of_two_sets_in_a_folder_that_of_the_config_is_read(tmp_path, small):
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  write_cifar100(tmp_path / "d")
  for file in (tmp_path / "d").iterdir():
    file.rename(tmp_path / "c" / file.name)
  for name, title in (("cifar100", "CIFAR-100"), ("cifar10", "CIFAR-10"), ("", "CIFAR-10")):
    assert read_cifar(tmp_path / "c", name).source.startswith(f"{title}, ")


def test_the_set_of_the_config_is_found_first(tmp_path, small):
  of_10, of_100 = tmp_path / "cifar-10-batches-bin", tmp_path / "cifar-100-binary"
  tiny_sets.write_cifar10(of_10, RECORDS)
  assert find_cifar(tmp_path, "cifar100") == of_10
  write_cifar100(of_100)
  assert find_cifar(tmp_path, "cifar100") == of_100
  assert find_cifar(tmp_path, "cifar10") == of_10
  assert find_cifar(of_100, "cifar10") == of_100
  assert find_cifar(tmp_path / "nothing", "cifar10") is None


def cut(path):
  path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
  ("damage", "sentence"),
  [
    (cut, "has 9,218 bytes of data_batch_4.bin, not the 9,219 of .*CIFAR-10:"),  # 3 * 3,073
    (pathlib.Path.unlink, "has 0 bytes of data_batch_4.bin"),
  ],
)
def test_a_damaged_file_is_named(tmp_path, small, damage, sentence):
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  damage(tmp_path / "c" / "data_batch_4.bin")
  with pytest.raises(UserError, match=sentence):
    read_cifar(tmp_path / "c")
  with pytest.raises(UserError, match=sentence):
    read_cifar(archive_of(tmp_path / "c", tmp_path / "a.tar.gz"))


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_archive_cut_off_anywhere_is_named(tmp_path, small, mode):
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  content = archive_of(tmp_path / "c", tmp_path / "whole", mode).read_bytes()
  cut = tmp_path / "cut.tar.gz"
  for eighths in range(7):
    cut.write_bytes(content[: len(content) * eighths // 8])
    with pytest.raises(UserError, match="cut.tar.gz"):
      read_cifar(cut)


def test_a_damaged_archive_is_never_read_as_a_whole_one(tmp_path, small):
  """Some damage hits bytes that say nothing (the time in gzip's head): then all must be right."""
  expected = tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  content = bytearray(archive_of(tmp_path / "c", tmp_path / "whole").read_bytes())
  bad = tmp_path / "bad.tar.gz"
  refused = 0
  for position in range(0, len(content), len(content) // 60):
    content[position] ^= 16
    bad.write_bytes(content)
    try:
      assert_read(read_cifar(bad), expected)
    except UserError as error:
      assert "bad.tar.gz" in str(error)
      refused += 1
    content[position] ^= 16
  assert refused > 50


def test_a_huge_member_is_refused_and_not_read_whole(tmp_path, small):
  header = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
  header.size = 1 << 50
  path = tmp_path / "bomb.tar"
  path.write_bytes(header.tobuf() + bytes(2_048))
  with pytest.raises(UserError, match="bomb.tar cannot be read as an archive .unexpected end"):
    read_cifar(path)


def test_the_pickled_version_is_refused(tmp_path, opened):
  for folder, file in (("cifar-10-batches-py", "data_batch_1"), ("cifar-100-python", "train")):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(pickle.dumps({"data": [0]}))
    archive_of(tmp_path / folder, tmp_path / "python.tar.gz", prefix=f"{folder}/")
    for path in (tmp_path, tmp_path / folder, tmp_path / "python.tar.gz"):
      with pytest.raises(UserError, match="is the pickled.*cifar-10-binary.tar.gz"):
        opened(path)
