"""The index of a data set: headers, processes that read them, and when it is made again."""

import io
import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tiny_sets
from image_files import (
  CLASSES,
  as_shards,
  assert_holds,
  encoded,
  png_header,
  small_files,
  write,
  write_split,
)
from PIL import Image

from jaxspeed.data.disk import index
from jaxspeed.data.formats import npz, pixels
from jaxspeed.data.prepare.writing import write_index
from jaxspeed.errors import UserError


def warnings_of(caplog):
  return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# Headers


def test_images_without_a_header_have_no_size(tmp_path, opened, recwarn):
  whole = encoded(40, 50)
  contents = {
    "bomb": png_header(60_000, 60_000),
    "cut": whole[: whole.index(b"\xff\xc0")],  # before the frame header, which holds the size
    "empty": b"",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "large": png_header(10_000, 10_000),  # Pillow warns of it
    "other": encoded(4, 4, "ICO"),
    "whole": whole,
    "without data": png_header(30, 20),
  }
  files = {f"train/ant/{name}.jpg": content for name, content in contents.items()}
  write(tmp_path / "set", files | {"val/ant/1.jpg": whole})
  train = opened(tmp_path / "set").train
  found = {os.path.basename(train.name(i))[:-4]: i for i in range(len(train))}
  has_size = {"large": (10_000, 10_000), "whole": (40, 50), "without data": (30, 20)}
  for name, i in found.items():
    assert (train.width[i], train.height[i]) == has_size.get(name, (0, 0)), name
    assert train.read(i) == contents[name] and train.length[i] == len(contents[name])
  assert not recwarn.list


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_sizes_are_those_that_are_shown_not_those_that_are_stored(tmp_path, kind):
  exif, files = Image.Exif(), {}
  for orientation in range(1, 9):
    exif[0x0112] = orientation
    files[f"{orientation}.jpg"] = encoded(40, 50, kind, exif=exif)
  table = write_split(tmp_path, files)
  assert table.width.tolist() == [40] * 4 + [50] * 4 == table.height.tolist()[::-1]
  assert [pixels.decode(each).shape[0] for each in files.values()] == table.height.tolist()
  assert set(table.decoder[1:]) == {pixels.PILLOW}


@pytest.mark.parametrize("link", [False, True])
def test_pipes_are_refused_and_not_waited_for(tmp_path, opened, link):
  root, where = write(tmp_path / "set", small_files()), "val/bee/x.png"
  os.mkfifo(tmp_path / "pipe" if link else root / where)
  if link:
    (root / where).symlink_to(tmp_path / "pipe")
  with pytest.raises(UserError, match=f"{where} cannot be read .it is no regular file"):
    opened(root)


def test_a_file_that_cannot_be_opened_is_an_error_and_not_stored(tmp_path, opened):
  """What is broken stays broken in the index; a disk that is away comes back."""
  write(tmp_path / "set", small_files())
  (tmp_path / "set" / "train" / "bee" / "1.jpg").symlink_to(tmp_path / "file" / "away.jpg")
  (tmp_path / "file").write_text("a disk that is away")
  with pytest.raises(UserError, match=r"train/bee/1.jpg cannot be read \(Not a directory"):
    opened(tmp_path / "set")
  assert not list((tmp_path / "cache").iterdir())


def test_a_disk_that_fails_is_no_broken_image():
  class Failing(io.BytesIO):
    def read(self, size=-1):
      raise OSError(5, "Input/output error")

  with pytest.raises(OSError, match="Input/output error"):
    index._header(Failing(encoded(4, 4)))


# Processes


def test_processes_find_what_one_finds(tmp_path, opened, monkeypatch):
  name = os.fsdecode(b"val/cat/\xff.jpg")  # no text
  files = small_files() | {name: encoded(2, 2)}
  write(tmp_path / "set", files)
  as_shards(tmp_path / "1.0.0", small_files(), "val")
  monkeypatch.setattr(index, "_NAMES_PER_JOB", 1)
  monkeypatch.setattr(index, "_IMAGES_FOR_PROCESSES", 0)
  monkeypatch.setattr(index, "usable_cpus", lambda: 2)
  monkeypatch.setattr(index.pixels, "drop_warnings", None)  # this process is not to call it
  assert_holds(opened(tmp_path / "set"), files)
  assert_holds(opened(tmp_path / "1.0.0"), small_files())


SCRIPT = """
import sys
from jaxspeed.data.disk import index, sources
index._IMAGES_FOR_PROCESSES, index._NAMES_PER_JOB = int(sys.argv[3]), 5
images = sources.open_images(name='', path=sys.argv[1], cache=sys.argv[2],
                             show=lambda done, _: print("read", done))
print(images.train.width.tolist())
heavy = {'tensorflow', 'tensorflow_datasets', 'torch', 'jax', 'sklearn'}
sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)
"""


def start_script(tmp_path, threshold):
  (tmp_path / "script.py").write_text(SCRIPT)
  command = [sys.executable, "script.py", str(tmp_path / "set"), str(tmp_path / "cache"), threshold]
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  return subprocess.Popen(command, text=True, cwd=tmp_path, env=environment, **pipes)


def test_scripts_may_open_a_set_and_one_process_of_a_host_reads_the_headers(tmp_path):
  """Scripts without `if __name__ == "__main__"`; neither JAX nor TensorFlow is imported."""
  names = [f"{split}/ant/{i}.jpg" for split in ("train", "val") for i in range(300)]
  write(tmp_path / "set", dict.fromkeys(names, encoded(9, 9)))
  done = [each.communicate(timeout=60) for each in [start_script(tmp_path, "0") for _ in range(3)]]
  assert sum("read 600\n" in out for out, _ in done) == 1
  assert all(err == "" and f"{300 * [9]}\n" in out for out, err in done), done


# When it is made again


def test_an_index_is_made_once_and_for_both_splits(tmp_path, opened, scans, caplog):
  files = small_files()
  write(tmp_path / "set", files)
  shown = []
  assert_holds(opened(tmp_path / "set", show=lambda *each: shown.append(each)), files)
  assert scans == [10] and shown == [(10, 10)]
  assert_holds(opened(tmp_path / "set", show=lambda *each: shown.append(each)), files)
  opened(tmp_path / "set", tune=True)  # the images for training come first
  assert len(scans) == len(shown) == 1
  write(tmp_path / "set", {"train/bee/7.jpg": encoded(99, 98)})
  assert opened(tmp_path / "set").train.width.tolist() == [8, 9, 10, 11, 99, 12, 13, 14]
  (warning,) = warnings_of(caplog)
  assert "images-" in warning and "other files" in warning and scans == [10, 11]
  bee, cat = (tmp_path / "set" / "train" / name / "7.jpg" for name in ("bee", "cat"))
  bee.rename(cat)
  assert opened(tmp_path / "set").train.width.tolist() == [8, 9, 10, 11, 12, 13, 14, 99]


def test_the_index_beside_the_images_comes_first_and_moves_with_them(tmp_path, opened, scans):
  files = small_files()
  write_index(write(tmp_path / "set", files))
  (tmp_path / "set").rename(tmp_path / "moved")
  images = opened(tmp_path / "moved", cache=tmp_path / "other")
  assert_holds(images, files)
  assert scans == [10] and not list((tmp_path / "other").iterdir())
  assert [path.name for path in (tmp_path / "moved" / ".jaxspeed").iterdir()] == ["images.npz"]
  write(tmp_path / "moved", {"val/bee/10.jpg": encoded(99, 98)})
  write_index(tmp_path / "moved")
  found = opened(tmp_path / "moved", cache=tmp_path / "third")
  assert scans == [10, 11] and found.eval.width.tolist() == [15, 99, 16, 17]


def flipped(content):
  return content[:300] + bytes([content[300] ^ 1]) + content[301:]


# Columns of an index that a stranger or another version has written.
FORGED = {
  "length": (lambda a: a.astype(np.int64), lambda a: a[:-1], lambda a: -a),
  "width": (lambda a: a.astype(str), lambda a: -a),
  "names": (lambda a: a[:0], lambda a: np.zeros(3, "i4,f8"), lambda a: np.array("x")),
  "stats": (lambda a: a.astype(np.int32), lambda a: np.array("x")),
}


@pytest.mark.parametrize(
  ("file", "content", "words"),
  [
    ("images.npz", flipped, "CRC-32"),
    ("images.npz", lambda content: b"", "No data left in file"),
    ("val/bee/8.jpg", lambda content: encoded(9, 9), "other files"),
    ("train/bee/0.jpg", lambda content: encoded(11, 99), "1 of 10 sampled images have changed"),
    *[
      (column, forge, "column|other files|changed|sizes below 0")
      for column, forges in FORGED.items()
      for forge in forges
    ],
  ],
)
def test_an_index_beside_the_images_that_is_no_use_is_passed_over(
  tmp_path, opened, scans, caplog, file, content, words
):
  root = write(tmp_path / "set", small_files())
  write_index(root)
  index = root / ".jaxspeed" / "images.npz"
  if file in FORGED:
    arrays, about = npz.read(index)
    npz.write(index, arrays | {file: content(arrays[file])}, about)
  else:
    path = index if file == index.name else root / file
    write(root, {path: content(path.read_bytes() if path.exists() else b"")})
  for run in (1, 2):
    assert opened(root).train.width.tolist() == [8, 9, 10, 11, 12, 13, 14]
    assert len(warnings_of(caplog)) == run and len(scans) == 2  # the cache serves the second
  assert f"the index {index} is not used" in caplog.text and re.search(words, caplog.text)
  assert "python -m jaxspeed.prepare index renews one" in caplog.text and index.exists()


def test_images_edited_in_place_are_scanned_again(tmp_path, opened, scans):
  """Of many images those of a sample are compared, also to tune; one that is gone is no edit."""
  root = write(tmp_path / "set", small_files())
  opened(write(root, {"train/bee/5.jpg": encoded(5, 5)}))
  (root / "train/bee/5.jpg").unlink()
  (root / "train/bee/5.jpg").symlink_to(tmp_path / "away")
  for tune in (True, False):
    opened(root, tune=tune)
  assert scans == [11]
  write(root, {"val/bee/9.jpg": encoded(77, 66)})
  opened(root, tune=True)
  assert len(scans) == 1
  assert opened(root).eval.width.tolist() == [15, 77, 17] and scans == [11, 11]


def test_an_index_is_not_written_through_a_link(tmp_path):
  root = write(tmp_path / "set", small_files())
  (tmp_path / "theirs").mkdir()
  (root / ".jaxspeed").symlink_to(tmp_path / "theirs")
  with pytest.raises(UserError, match=r"images.npz cannot be written \(it is a link"):
    write_index(root)
  assert not list((tmp_path / "theirs").iterdir())


def test_folders_that_cannot_be_written(tmp_path, opened, caplog):
  files = small_files()
  write(tmp_path / "set", files)
  (tmp_path / "set/.jaxspeed/images.npz").mkdir(parents=True)
  (tmp_path / "file").write_text("in the way")
  assert_holds(opened(tmp_path / "set", cache=tmp_path / "file" / "cache"), files)
  (warning,) = warnings_of(caplog)
  assert "images-" in warning and "cannot be written" in warning
  with pytest.raises(UserError, match=r"images.npz cannot be written \(Is a dir"):
    write_index(tmp_path / "set")


# Shards


def test_shards_hold_what_the_folder_holds(tmp_path, opened):
  files = small_files()
  files["train/ant/0.jpg"] = encoded(33, 44, comment=b"c" * 40_000)  # a header of three windows
  files["train/ant/1.jpg"] = b""
  files["train/ant/2.jpg"] = b"c" * 40_000
  as_shards(tmp_path / "data" / "insects" / "1.2.3", files, "validation")
  folder = opened(write(tmp_path / "set", files))
  for path in (tmp_path / "data", tmp_path / "data" / "insects" / "1.2.3"):
    images = opened(path)
    for shards, whole in ((images.train, folder.train), (images.eval, folder.eval)):
      assert [*map(shards.read, range(len(shards)))] == [*map(whole.read, range(len(whole)))]
      for column in ("label", "width", "height", "length"):
        np.testing.assert_array_equal(getattr(shards, column), getattr(whole, column), strict=True)
  assert (images.train.width[0], images.train.height[0]) == (33, 44)
  assert images.train.class_names == folder.train.class_names == CLASSES
  assert images.train.source == "TFDS insects 1.2.3, splits train and validation"
  assert images.train.file.tolist() == [0, 0, 0, 0, 1, 1, 1]
  assert images.train.file.dtype == np.int32 and images.train.offset.dtype == np.int64
  name = "insects-train.tfrecord-00001-of-00002"
  assert images.train.name(5) == f"{name}, byte {images.train.offset[5]}"


def test_the_index_of_shards(tmp_path, opened, scans, caplog):
  files = small_files()
  folder = as_shards(tmp_path / "1.0.0", files, "test")
  shards = [
    f"insects-{n}" for n in ("train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002")
  ]
  shards.append("insects-test.tfrecord-00000-of-00001")
  shown = []
  assert_holds(opened(folder, show=lambda *each: shown.append(each)), files)
  assert scans == shards and shown == [(4, 10), (7, 10), (10, 10)]
  assert_holds(opened(folder), files)
  assert scans == shards
  os.utime(folder / shards[1], (1, 1))
  assert_holds(opened(folder), files)
  assert scans == 2 * shards and "other files" in caplog.text
  write_index(folder)
  folder.rename(tmp_path / "1.0.1")
  assert_holds(opened(tmp_path / "1.0.1", cache=tmp_path / "other"), files)
  assert scans == 3 * shards and not list((tmp_path / "other").iterdir())


def test_damaged_shards_are_named_and_not_stored(tmp_path, opened):
  folder = as_shards(tmp_path / "1.0.0", small_files(), "test")
  shard = folder / "insects-train.tfrecord-00001-of-00002"
  whole = bytearray(shard.read_bytes())
  whole[-100] ^= 1
  for content, message in (
    (b"", "holds 0 records and dataset_info.json promises 3"),
    (3 * tiny_sets.frame(b"no Example"), "record 0 is not a labelled image"),
    (whole, "is damaged: record 2 does not fit its checksum"),
  ):
    shard.write_bytes(content)
    for open_it in (opened, write_index):
      with pytest.raises(UserError, match=f"{shard.name}:? {message}"):
        open_it(folder)
  shard.unlink()
  with pytest.raises(UserError, match=f"{shard.name} cannot be read .*the data set is not compl"):
    opened(folder)
  assert not list((tmp_path / "cache").iterdir())
