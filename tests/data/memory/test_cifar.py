"""The reader of CIFAR's binary version: folders, archives, and what is wrong with them."""

import pathlib
import pickle
import shutil
import tarfile

import numpy as np
import pytest
import tiny_sets

from jaxspeed.data.memory.cifar import arrays_of, find_files
from jaxspeed.errors import UserError

RECORDS = 3


def read(path, name=""):
  return arrays_of(find_files(path, name), path, name)


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


def test_planes_become_channels(tmp_path, small):
  """The first record's bytes: red 0 ... 1,023, then green, then blue, each row after row."""
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  planes = np.arange(3 * 32 * 32).reshape(3, 32, 32) % 251
  content = bytearray((tmp_path / "c" / "data_batch_1.bin").read_bytes())
  content[:3_073] = bytes([6]) + planes.astype(np.uint8).tobytes()
  (tmp_path / "c" / "data_batch_1.bin").write_bytes(content)
  found = read(tmp_path / "c")
  assert found.train_labels[0] == 6
  np.testing.assert_array_equal(found.train_images[0], planes.transpose(1, 2, 0))


def test_cifar100_takes_the_fine_label(tmp_path, small):
  expected = write_cifar100(tmp_path / "c")
  tiny_sets.assert_holds(read(tmp_path / "c"), expected)


def test_folders_and_archives_are_read_without_extraction(tmp_path, small):
  expected = tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  (tmp_path / "c" / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
  (tmp_path / "c" / "readme.html").write_text("<html>")
  paths = [archive_of(tmp_path / "c", tmp_path / m, m, "../../out/") for m in ("w:gz", "w")]
  before = sorted(tmp_path.rglob("*"))
  for path in (tmp_path / "c", *paths):
    found = read(path)
    tiny_sets.assert_holds(found, expected)
    assert found.class_names == tuple("abcdefghij")
  assert sorted(tmp_path.rglob("*")) == before


def test_links_in_an_archive_are_not_followed(tmp_path, small):
  tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  target = tmp_path / "c" / "test_batch.bin"
  target.rename(tmp_path / "secret")
  target.symlink_to(tmp_path / "secret")
  path = archive_of(tmp_path / "c", tmp_path / "a.tar.gz")
  with pytest.raises(UserError, match="a.tar.gz has 0 bytes of test_batch.bin"):
    read(path)


def test_of_two_sets_that_of_the_config_is_read(tmp_path, small):
  tiny_sets.write_cifar10(tmp_path / "cifar-10-batches-bin", RECORDS)
  assert read(tmp_path, "cifar100").source.startswith("CIFAR-10, ")
  write_cifar100(tmp_path / "cifar-100-binary")
  both = shutil.copytree(tmp_path / "cifar-10-batches-bin", tmp_path / "both")
  shutil.copytree(tmp_path / "cifar-100-binary", both, dirs_exist_ok=True)
  for name, title in (("cifar100", "CIFAR-100"), ("cifar10", "CIFAR-10"), ("", "CIFAR-10")):
    for path in (tmp_path, both):
      assert read(path, name).source.startswith(f"{title}, ")
  assert read(tmp_path / "cifar-100-binary", "cifar10").source.startswith("CIFAR-100, ")
  assert find_files(tmp_path / "nothing") == {}


def test_files_of_two_folders_are_not_mixed(tmp_path, small):
  expected = tiny_sets.write_cifar10(tmp_path / "cifar-10-batches-bin", RECORDS)
  (tmp_path / "batches.meta.txt").write_text("a")
  (tmp_path / "train.bin").mkdir()
  tiny_sets.assert_holds(read(tmp_path), expected)
  shutil.copy(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", tmp_path)
  with pytest.raises(UserError, match="has 0 bytes of data_batch_1.bin"):
    read(tmp_path)


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
    read(tmp_path / "c")
  with pytest.raises(UserError, match=sentence):
    read(archive_of(tmp_path / "c", tmp_path / "a.tar.gz"))


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_an_archive_that_is_cut_off_or_damaged_is_named(tmp_path, small, mode):
  """Some damage hits bytes that say nothing (the time in gzip's head): then all must be right."""
  expected = tiny_sets.write_cifar10(tmp_path / "c", RECORDS)
  content = archive_of(tmp_path / "c", tmp_path / "whole", mode).read_bytes()
  damaged = [content[: len(content) * eighths // 8] for eighths in range(7)]
  if mode == "w:gz":
    for at in range(0, len(content), len(content) // 60):
      damaged.append(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
  bad, refused = tmp_path / "bad.tar.gz", list[int]()
  for number, each in enumerate(damaged):
    bad.write_bytes(each)
    try:
      tiny_sets.assert_holds(read(bad), expected)
    except UserError as error:
      assert "bad.tar.gz" in str(error)
      refused.append(number)
  assert refused[:7] == list(range(7))  # all that are cut off
  assert len(refused) > (7 + 50 if mode == "w:gz" else 6)


def test_a_huge_member_is_refused_and_not_read_whole(tmp_path, small):
  header = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
  header.size = 1 << 50
  path = tmp_path / "bomb.tar"
  path.write_bytes(header.tobuf() + bytes(2_048))
  with pytest.raises(UserError, match="bomb.tar cannot be read as an archive .unexpected end"):
    read(path)


def test_the_pickled_version_is_refused(tmp_path, opened):
  for folder, file in (("cifar-10-batches-py", "data_batch_1"), ("cifar-100-python", "train")):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / file).write_bytes(pickle.dumps({"data": [0]}))
    archive_of(tmp_path / folder, tmp_path / "python.tar.gz", prefix=f"{folder}/")
    for path in (tmp_path, tmp_path / folder, tmp_path / "python.tar.gz"):
      with pytest.raises(UserError, match="is the pickled.*cifar-10-binary.tar.gz"):
        opened(path)
