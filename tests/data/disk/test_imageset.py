"""open_images: folders and shards, headers, the index and when it is made again, and bad input."""

import collections
import importlib.util
import io
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import types
import zlib

import numpy as np
import pytest
import tiny_sets
from PIL import Image

from jaxspeed.data.disk import headers, imageset, sizes
from jaxspeed.data.disk.imageset import open_images
from jaxspeed.data.disk.labels import class_names_of
from jaxspeed.data.formats.folders import folder_notes
from jaxspeed.data.prepare.index import write_indices
from jaxspeed.errors import UserError

CLASSES = ("ant", "bee", "cat")


def encoded(width, height, image_format="JPEG", **options):
  image = tiny_sets.random_images(width, 1, height=height, width=width)[0]
  buffer = io.BytesIO()
  Image.fromarray(image).save(buffer, image_format, **options)
  return buffer.getvalue()


def png_header(width, height):
  """A PNG that ends after its header."""
  header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
  length, checksum = struct.pack(">I", 13), struct.pack(">I", zlib.crc32(header))
  return b"\x89PNG\r\n\x1a\n" + length + header + checksum + struct.pack(">I", 0) + b"IDAT"


def write(root, files):
  for name, content in files.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
  return root


def small_files(held_out="val"):
  """Seven images for training and three for evaluation, none of the size of another."""
  names = [
    f"train/{name}/{i}.jpg" for name, n in zip(CLASSES, (3, 1, 3), strict=True) for i in range(n)
  ]
  names += [f"{held_out}/{name}/9.jpg" for name in CLASSES]
  return {name: encoded(8 + i, 30 - i) for i, name in enumerate(names)}


def as_shards(folder, files, split, *, named=True, **options):
  """The files of a folder as a set of TFDS: two shards for training, one for evaluation."""

  def record(name, content):
    features = {
      b"file_name": tiny_sets.field(1, tiny_sets.field(1, name.encode())),
      b"image": tiny_sets.field(1, tiny_sets.field(1, content)),
      b"label": tiny_sets.field(
        3, tiny_sets.field(1, tiny_sets.varint(CLASSES.index(name.split("/")[1])))
      ),
    }
    if not named:
      del features[b"file_name"]
    # Protocol buffers do not promise an order of a map.
    keys = sorted(features, reverse=len(content) % 2 == 0)
    entries = [tiny_sets.field(1, key) + tiny_sets.field(2, features[key]) for key in keys]
    return tiny_sets.field(1, b"".join(tiny_sets.field(1, entry) for entry in entries))

  train = [record(*each) for each in files.items() if each[0].startswith("train/")]
  held_out = [record(*each) for each in files.items() if not each[0].startswith("train/")]
  splits = {"train": [train[:4], train[4:]], split: [held_out]}
  return tiny_sets.write_tfds(folder, splits, name="insects", **{"class_names": CLASSES} | options)


@pytest.fixture
def opened(tmp_path):
  """open_images with a cache in the test's own folder."""

  def call(path, *, cache=tmp_path / "cache", **options):
    return open_images(name="insects", path=str(path), cache=str(cache), **options)

  return call


@pytest.fixture
def scans(monkeypatch):
  """The jobs that were done, by the name of their split or shard."""
  done = []

  def counting(scan):
    def call(path, *rest):
      done.append(os.path.basename(path))
      return scan(path, *rest)

    return call

  for kind, scan in list(headers._SCANS.items()):
    monkeypatch.setitem(headers._SCANS, kind, counting(scan))
  return done


def warnings_of(caplog):
  return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def assert_holds(images, files):
  """Bytes, labels and sizes of both splits, in the order of `files`."""
  for split, is_train in ((images.train, True), (images.eval, False)):
    names = [name for name in files if name.startswith("train/") == is_train]
    assert len(split) == len(names)
    assert [split.read(i) for i in range(len(split))] == [files[name] for name in names]
    assert split.length.tolist() == [len(files[name]) for name in names]
    assert split.label.tolist() == [images.class_names.index(n.split("/")[1]) for n in names]
    found = [Image.open(io.BytesIO(files[name])).size for name in names]
    assert list(zip(split.width.tolist(), split.height.tolist(), strict=True)) == found
    dtypes = [each.dtype for each in (split.file, split.label, split.width, split.height)]
    assert dtypes == [np.int32] * 4 and split.offset.dtype == split.length.dtype == np.int64


# Folders


@pytest.mark.parametrize("held_out", ["val", "validation", "test"])
def test_a_folder_of_class_folders(tmp_path, opened, held_out):
  files = small_files(held_out)
  images = opened(write(tmp_path / "set", files))
  assert_holds(images, files)
  assert images.class_names == CLASSES
  assert images.source == f"set: folders train and {held_out}"
  assert images.train.whole_files and not images.train.offset.any()
  assert images.train.files[3] == str(tmp_path / "set" / "train" / "bee" / "0.jpg")
  assert images.train.name(3) == "train/bee/0.jpg"
  assert images.eval.name(2) == f"{held_out}/cat/9.jpg"


def test_class_folders_that_differ_in_case_only_are_noted():
  none: collections.Counter[str] = collections.Counter()
  assert folder_notes(none, {"train": ["Dog", "cat"]}) == ()
  assert folder_notes(none, {"train": ["Cat", "cat", "dog"]}) == (
    "class folders whose names differ in upper and lower case only are classes apart: Cat and cat",
  )


def test_names_are_in_the_order_of_plain_strings_and_others_left_out(tmp_path, opened):
  image = encoded(5, 6)
  names = ("B/10.JPEG", "B/9.jpg", "B/Z.PNG", "a/1.bmp", "a/é.gif")  # "B" < "a"
  files = {f"{split}/{name}": image for split in ("train", "val") for name in names}
  others = (".hidden/1.jpg", "a/.hidden.jpg", "a/notes.txt", "a/deeper/1.jpg", "loose.jpg")
  write(tmp_path / "set", files | {f"train/{name}": b"no" for name in others})
  images = opened(tmp_path / "set")
  assert_holds(images, files)
  assert images.class_names == ("B", "a")


def test_val_may_lack_a_class_and_keeps_the_numbers_of_train(tmp_path, opened):
  files = {n: content for n, content in small_files().items() if n != "val/bee/9.jpg"}
  assert opened(write(tmp_path / "set", files)).eval.label.tolist() == [0, 2]


def test_links_are_followed(tmp_path, opened):
  files = small_files()
  write(tmp_path / "elsewhere", files)
  for split in ("train", "val"):
    (tmp_path / "set" / split).mkdir(parents=True)
    (tmp_path / "set" / split / "ant").mkdir()
    for path in (tmp_path / "elsewhere" / split / "ant").iterdir():
      (tmp_path / "set" / split / "ant" / path.name).symlink_to(path)
    for name in ("bee", "cat"):
      (tmp_path / "set" / split / name).symlink_to(tmp_path / "elsewhere" / split / name)
  assert_holds(opened(tmp_path / "set"), files)


def test_names_that_are_no_text_are_names(tmp_path, opened, monkeypatch):
  name = os.fsdecode(b"\xff.jpg")
  files = {"train/ant/" + name: encoded(4, 5), "val/ant/" + name: encoded(6, 7)}
  write(tmp_path / "set", files)
  monkeypatch.setattr(headers, "_IMAGES_FOR_PROCESSES", 0)
  assert_holds(opened(tmp_path / "set"), files)


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  files = small_files()
  write(tmp_path / "set", files)
  assert_holds(open_images(name="insects", path="~/set", cache=""), files)
  assert (tmp_path / ".cache" / "jaxspeed" / "data").is_dir()


BAD_FOLDERS = {
  "train": (["train/ant/1.jpg"], "set has train/ but none of val/, validation/ and test/"),
  "val": (["val/ant/1.jpg"], "set has val/ but no train/ to train on"),
  "nothing": (["notes.txt"], "set has no train/ and no dataset_info.json; it names a folder with"),
  "flat": (["train/ant/1.jpg", "val/1.JPEG"], "val holds images but no class folders: put the"),
  "no class": (["train/1.txt", "val/ant/1.jpg"], "train holds no class folders: put the images"),
  "empty class": (
    ["train/ant/1.jpg", "train/bee/1.txt", "val/ant/1.jpg"],
    r"the class folder .*train/bee holds no image \(.jpg, .jpeg, .*: remove it, or complete",
  ),
  "only sub-folders": (
    ["train/ant/images/1.jpg", "val/ant/1.jpg"],
    r"train/ant holds only sub-folders \(images, ...\), which are not searched",
  ),
  "unknown class": (
    ["train/ant/1.jpg", "val/ant/1.jpg", "val/dog/1.jpg"],
    r"val has images of classes that train/ lacks \(dog: 1\): both name",
  ),
  "unknown classes": (
    ["train/ant/1.jpg", *(f"val/{name}/1.jpg" for name in "pqrst")],
    r"val has images of classes that train/ lacks \(p: 1, q: 1, r: 1 and 2 more\)",
  ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_folders_that_are_not_complete_are_named(tmp_path, opened, case):
  names, message = BAD_FOLDERS[case]
  write(tmp_path / "set", dict.fromkeys(names, encoded(4, 4)))
  with pytest.raises(UserError, match=message) as caught:
    opened(tmp_path / "set")
  assert "\n" not in str(caught.value)
  assert not (tmp_path / "cache").exists()


def test_paths_that_are_no_folder_are_named(tmp_path, opened):
  (tmp_path / "set.tar").write_text("")
  for name, message in {
    "nowhere": "nowhere does not exist",
    "set.tar": "set.tar is a file",
  }.items():
    with pytest.raises(UserError, match=f"config.data.path: .*{message}; it names a folder with"):
      opened(tmp_path / name)


def test_a_folder_that_may_not_be_read_is_named(tmp_path, opened, monkeypatch):
  write(tmp_path / "set", small_files())
  scandir = os.scandir

  def refuse(path):
    if os.fspath(path).endswith("bee"):
      raise PermissionError(13, "Permission denied", os.fspath(path))
    return scandir(path)

  monkeypatch.setattr(imageset.os, "scandir", refuse)
  with pytest.raises(UserError, match=r"train/bee cannot be read \(Permission denied\)"):
    opened(tmp_path / "set")


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
def test_sizes_are_those_that_are_shown_not_those_that_are_stored(tmp_path, opened, kind):
  exif = Image.Exif()
  exif[0x0112] = 6  # orientation: to be turned by 90 degrees
  content = encoded(40, 50, kind, exif=exif)
  images = opened(write(tmp_path / "set", {"train/ant/1.jpg": content, "val/ant/1.jpg": content}))
  assert (images.train.width.tolist(), images.train.height.tolist()) == ([50], [40])
  # Of TIFF, Pillow turns the pixels itself.
  assert images.train.orientation.tolist() == [1 if kind == "TIFF" else 6]


def test_the_formats_of_a_folder(tmp_path, opened):
  kinds = {
    "a.webp": "WEBP",
    "b.tif": "TIFF",
    "c.TIFF": "TIFF",
    "d.bmp": "BMP",
    "e.gif": "GIF",
    "f.png": "PNG",
  }
  files = {f"train/ant/{name}": encoded(20, 30, kind) for name, kind in kinds.items()}
  files["val/ant/g.JPG"] = encoded(20, 30)
  images = opened(write(tmp_path / "set", files))
  assert set(images.train.width) == {20} and len(images.train) == 6 and not images.notes


def test_what_is_left_out_is_counted(tmp_path, opened):
  files = small_files()
  others = [f"train/ant/{i}.heic" for i in range(3)] + ["val/bee/notes", "train/bee/a.\x1b[2Jtxt"]
  others += [f"train/cat/1.{name}" for name in "uvwx"] + ["train/ant/.hidden.heic"]
  images = opened(write(tmp_path / "set", files | dict.fromkeys(others, b"")))
  (note,) = images.notes
  assert note == (
    "9 files in the class folders are left out, as their names do not end in .jpg, .jpeg, .png, "
    ".bmp, .gif, .webp, .tif, .tiff: .heic (3), .\\x1b[2jtxt (1), .u (1), .v (1), .w (1) and 2 "
    "other endings"
  )


@pytest.mark.parametrize("where", ["train/ant/x.jpg", "val/bee/x.png"])
@pytest.mark.parametrize("link", [False, True])
def test_pipes_are_refused_and_not_waited_for(tmp_path, opened, where, link):
  root = write(tmp_path / "set", small_files())
  os.mkfifo(tmp_path / "pipe" if link else root / where)
  if link:
    (root / where).symlink_to(tmp_path / "pipe")
  with pytest.raises(UserError, match=f"{where} is no regular file"):
    opened(root)
  with pytest.raises(UserError, match=f"{where} cannot be read .it is no regular file"):
    headers.scan_files(str((root / where).parent), [os.path.basename(where)])


# A share that is held out


def many_files(count=40, prefix=""):
  return {f"{prefix}{CLASSES[i % 3]}/{i}.jpg": encoded(8 + i, 9) for i in range(count)}


def names_of(split):
  return {split.path(i) for i in range(len(split))}


def test_of_a_folder_without_splits_a_share_of_each_class_is_held_out(tmp_path, opened, scans):
  files = many_files()
  images = opened(write(tmp_path / "set", files))
  assert (len(images.train), len(images.eval)) == (37, 3)
  assert names_of(images.train) | names_of(images.eval) == set(files)
  assert (
    images.source
    == "set: class folders; 3 of 40 images, 10 % of each class, are held out for evaluation"
  )
  assert images.class_names == CLASSES
  for split in (images.train, images.eval):
    for i in range(len(split)):
      assert images.class_names[split.label[i]] == split.path(i).split("/")[0]
      assert split.read(i) == files[split.path(i)]
  assert images.eval.label.tolist() == [0, 1, 2]
  # By the names: another folder and another file more change nothing for the others.
  write(tmp_path / "other", files | {"bee/more.jpg": encoded(5, 5)})
  assert names_of(opened(tmp_path / "other").eval) <= names_of(images.eval) | {"bee/more.jpg"}
  # And the index beside the images holds all of them.
  write_indices(images)
  scans.clear()
  again = opened(tmp_path / "set")
  assert not scans and names_of(again.eval) == names_of(images.eval)


@pytest.mark.parametrize("held_out", [None, "val"])
def test_to_tune_only_the_training_images_are_looked_at(tmp_path, opened, held_out):
  files = many_files(prefix="train/")
  root = write(tmp_path / "set", files)
  if held_out:
    (root / held_out / "unknown").mkdir(parents=True)
  images = opened(root, tune=True)
  assert (len(images.train), len(images.eval)) == (37, 3)
  assert names_of(images.train) | names_of(images.eval) == set(files)
  assert (
    images.source
    == "set: folders train; 3 of 40 training images, 10 % of each class, are held out for tuning"
  )
  with pytest.raises(UserError):
    opened(root)


def test_to_tune_on_a_folder_without_splits_leaves_its_share_alone(tmp_path, opened):
  root = write(tmp_path / "set", many_files(60))
  test, tuned = opened(root), opened(root, tune=True)
  assert (len(tuned.train), len(tuned.eval)) == (48, 6)
  assert not names_of(test.eval) & (names_of(tuned.train) | names_of(tuned.eval))


def test_to_tune_shards_need_no_other_split(tmp_path, opened):
  files = small_files()
  folder = as_shards(tmp_path / "1.0.0", files, "val")
  info = folder / "dataset_info.json"
  info.write_text(info.read_text().replace('"name": "val"', '"name": "extra"'))
  with pytest.raises(UserError, match="training needs 'train' and one of"):
    opened(folder)
  images = opened(folder, tune=True)
  assert (len(images.train), len(images.eval)) == (5, 2)  # of 3, 1 and 3 images
  line = "2 of 7 training images, 10 % of each class, are held out for tuning"
  assert images.source == f"TFDS insects 1.0.0, split train; {line}"
  assert images.notes == ("classes with one image are trained on but not evaluated: bee",)


def test_an_image_and_its_copies_are_held_out_together(tmp_path, opened):
  files = many_files(200, prefix="train/") | {"val/ant/9.jpg": encoded(5, 5)}
  folder = opened(write(tmp_path / "set", files), tune=True)
  expected = {name.removeprefix("train/") for name in names_of(folder.eval)}
  assert len(expected) == 21
  for number, names in enumerate((sorted(files), sorted(files, reverse=True))):
    shards = as_shards(tmp_path / f"{number}.0.0", {name: files[name] for name in names}, "val")
    held_out = opened(shards, tune=True).eval
    # No image is as wide as another.
    assert set(held_out.width) == {8 + int(re.findall(r"\d+", name)[0]) for name in expected}


def test_images_without_names_are_not_held_out(tmp_path, opened):
  folder = as_shards(tmp_path / "1.0.0", small_files(), "val", named=False)
  assert len(opened(folder).train) == 7
  with pytest.raises(UserError, match="7 of 7 images in the shards of .* have no file_name"):
    opened(folder, tune=True)


def test_names_that_are_no_text_can_be_held_out(tmp_path, opened):
  names = [os.fsdecode(b"\xff%d" % i) for i in range(20)]
  files = {f"{name}/{name}\n{end}": encoded(4, 5) for name in names for end in (".jpg", ".png")}
  images = opened(write(tmp_path / os.fsdecode(b"\xffset"), files))
  assert (len(images.train), len(images.eval)) == (20, 20)
  assert images.class_names == tuple(sorted(names))
  for text in (images.source, *(images.train.name(i) for i in range(20))):
    assert text.isprintable()
  assert re.fullmatch(r"\\xff\d+/\\xff\d+\\n.(jpg|png)", images.train.name(0))


# CSV files


def csv_set(tmp_path, files, rows):
  path = write(tmp_path / "set", files) / "photos.csv"
  path.write_text("\n".join(rows) + "\n")
  return path


def test_a_csv_lists_images_labels_and_splits(tmp_path, opened, scans):
  files = small_files()
  rows = [f"{name},{name.split('/')[1]},{name.split('/')[0]}" for name in sorted(files)]
  path = csv_set(tmp_path, files, ["file,label,split", *rows[::-1]])
  images = opened(path)
  assert_holds(images, {name: files[name] for name in sorted(files)})
  assert images.class_names == CLASSES == class_names_of(name="", path=str(path))
  assert images.source == "photos.csv: splits train and val" and images.evaluated_on == "test"
  assert images.train.name(0) == "train/ant/0.jpg"
  # The index is that of the names: labels are read anew, and other rows read the headers again.
  scans.clear()
  rows[rows.index("train/ant/0.jpg,ant,train")] = "train/ant/0.jpg,cat,train"
  path.write_text("\n".join(["file,label,split", *rows]))
  assert not scans and opened(path).train.label[0] == 2
  assert not scans
  path.write_text("\n".join(["file,label,split", *rows[1:]]))
  assert len(opened(path).train) == 6 and scans
  tuned = opened(path, tune=True)
  assert tuned.evaluated_on == "validation"
  assert tuned.source.startswith("photos.csv: split train; ")


def test_names_of_a_folder_of_images_are_its_subfolders_whatever_list_lies_beside_them(tmp_path):
  for name in ("cat", "dog"):
    (tmp_path / "train" / name).mkdir(parents=True)
  (tmp_path / "classes.txt").write_text("a\nb\nc\n")
  assert class_names_of(name="", path=str(tmp_path)) == ("cat", "dog")
  (tmp_path / "train" / "images.npy").touch()
  assert class_names_of(name="", path=str(tmp_path)) == ("a", "b", "c")


def test_of_a_csv_without_splits_a_share_is_held_out_by_whole_names(tmp_path, opened):
  # Files of one name in many folders, as of patients.
  files = {f"{i}/scan.jpg": encoded(8 + i, 9) for i in range(40)}
  rows = [f"{name},{CLASSES[i % 2]}" for i, name in enumerate(files)]
  path = csv_set(tmp_path, files, ["file,label", *rows])
  images = opened(path, share=0.25)
  assert images.source == (
    "photos.csv; 10 of 40 images, 25 % of each class, are held out for evaluation"
  )
  assert np.bincount(images.eval.label).tolist() == [5, 5]
  assert names_of(images.train) | names_of(images.eval) == set(files)
  assert names_of(images.eval) != set(sorted(files)[:10])
  path.write_text("\n".join(["file,label", *rows[::-1]]))
  assert names_of(opened(path, share=0.25).eval) == names_of(images.eval)
  whole = opened(path, share=1)
  assert names_of(whole.eval) == set(files) and "; all 40 images are evaluated" in whole.source


def test_a_changed_image_of_a_csv_drops_the_indices_of_both_splits(tmp_path, opened):
  files = small_files()
  rows = [f"{name},{name.split('/')[1]},{name.split('/')[0]}" for name in files]
  images = opened(csv_set(tmp_path, files, ["file,label,split", *rows]))
  assert len(list((tmp_path / "cache").iterdir())) == 2
  sizes.drop_index(images.train.index_folder, images.train.root)
  assert not list((tmp_path / "cache").iterdir())


def test_a_csv_that_cannot_be_read_is_one_sentence(tmp_path, opened):
  with pytest.raises(UserError, match="gone.csv does not exist; it names .* a .csv file with"):
    opened(tmp_path / "gone.csv")
  os.mkfifo(tmp_path / "pipe.csv")
  with pytest.raises(UserError, match="pipe.csv cannot be read .it is no regular file"):
    opened(tmp_path / "pipe.csv")
  path = csv_set(tmp_path, {"a/x.jpg": b""}, ["file,label", "a,cat", "a/x.jpg,dog"])
  with pytest.raises(UserError, match="set/a cannot be read .it is no regular file"):
    opened(path)


def test_a_set_of_broken_images_only_is_refused(tmp_path, opened):
  write(tmp_path / "set", {"train/ant/1.jpg": encoded(4, 4), "val/ant/1.jpg": b""})
  message = r"none of the 1 images of .*/set has a header that .* \(the first is val/ant/1.jpg\)"
  with pytest.raises(UserError, match=message):
    opened(tmp_path / "set")


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_a_file_that_cannot_be_opened_is_an_error_and_not_stored(
  tmp_path, opened, monkeypatch, threshold
):
  """What is broken stays broken in the index; a disk that is away comes back."""
  monkeypatch.setattr(headers, "_IMAGES_FOR_PROCESSES", threshold)
  write(tmp_path / "set", small_files())
  (tmp_path / "set" / "train" / "bee" / "1.jpg").symlink_to(tmp_path / "file" / "away.jpg")
  (tmp_path / "file").write_text("a disk that is away")
  with pytest.raises(UserError, match=r"train/bee/1.jpg cannot be read \(Not a directory"):
    opened(tmp_path / "set")
  assert not (tmp_path / "cache").exists()


def test_a_disk_that_fails_is_no_broken_image():
  class Failing(io.BytesIO):
    def read(self, size=-1):
      raise OSError(5, "Input/output error")

  with pytest.raises(OSError, match="Input/output error"):
    headers._header(Failing(encoded(4, 4)))


def test_real_images(tmp_path, opened, shared_data):
  """ImageNet's originals: a CMYK and grey ones, headers of up to 60 kB."""
  folder = shared_data / "imagenet_sample"
  if not folder.is_dir():
    pytest.skip("no sample of ImageNet")
  for split in ("train", "val"):
    (tmp_path / "set" / split).mkdir(parents=True)
    (tmp_path / "set" / split / "ant").symlink_to(folder)
  files = {
    f"{split}/ant/{path.name}": path.read_bytes()
    for split in ("train", "val")
    for path in sorted(folder.iterdir())
    if path.suffix == ".JPEG"
  }
  assert len(files) == 200
  assert_holds(opened(tmp_path / "set"), files)


# Processes


def test_processes_find_what_one_finds(tmp_path, opened, monkeypatch):
  files = small_files()
  write(tmp_path / "large", {f"train/ant/{i:04}.jpg": encoded(3, 1 + i % 7) for i in range(1_100)})
  write(tmp_path / "large", {"val/ant/1.jpg": encoded(2, 2)})
  as_shards(tmp_path / "1.0.0", files, "validation")
  found = {}
  for threshold in (10**9, 0):
    monkeypatch.setattr(headers, "_IMAGES_FOR_PROCESSES", threshold)
    if not threshold:
      monkeypatch.delattr(headers, "_scan_here")  # which this process is then not to call
    for name in ("large", "1.0.0"):
      found[name, threshold] = opened(tmp_path / name, cache=tmp_path / f"cache{threshold}")
  assert_holds(found["1.0.0", 0], files)
  offsets = [found["1.0.0", threshold].train.offset for threshold in (0, 10**9)]
  np.testing.assert_array_equal(*offsets)
  assert found["large", 0].train.height.tolist() == [1 + i % 7 for i in range(1_100)]


def test_where_a_process_dies_the_work_is_done_here(tmp_path, opened, monkeypatch):
  files = small_files()
  monkeypatch.setattr(headers, "_IMAGES_FOR_PROCESSES", 0)
  monkeypatch.setattr(headers.sys, "executable", "false")
  assert_holds(opened(write(tmp_path / "set", files)), files)


def test_a_script_of_its_own_may_open_a_set(tmp_path):
  """One without `if __name__ == "__main__"`; neither JAX nor TensorFlow is imported."""
  write(tmp_path / "set", small_files())
  code = (
    "import sys\n"
    "from jaxspeed.data.disk import headers, imageset\n"
    "headers._IMAGES_FOR_PROCESSES = 0\n"
    "images = imageset.open_images(name='', path=sys.argv[1], cache=sys.argv[2])\n"
    "print(images.train.width.tolist())\n"
    "heavy = {'tensorflow', 'tensorflow_datasets', 'torch', 'jax', 'sklearn'}\n"
    "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)\n"
  )
  (tmp_path / "script.py").write_text(code)
  command = [sys.executable, "script.py", str(tmp_path / "set"), str(tmp_path / "cache")]
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  done = subprocess.run(
    command, timeout=60, capture_output=True, text=True, cwd=tmp_path, env=environment
  )
  assert (done.stdout, done.stderr) == ("[8, 9, 10, 11, 12, 13, 14]\n", "")


# The index


def test_an_index_is_made_once(tmp_path, opened, scans):
  files = small_files()
  write(tmp_path / "set", files)
  shown = []
  assert_holds(opened(tmp_path / "set", show=lambda *each: shown.append(each)), files)
  assert scans == ["train", "val"] and shown == [(7, 10), (10, 10)]
  assert_holds(opened(tmp_path / "set", show=lambda *each: shown.append(each)), files)
  assert len(scans) == len(shown) == 2


def test_a_file_more_makes_the_index_of_its_split_anew(tmp_path, opened, scans, caplog):
  files = small_files()
  write(tmp_path / "set", files)
  opened(tmp_path / "set")
  write(tmp_path / "set", {"train/bee/7.jpg": encoded(99, 98)})
  assert opened(tmp_path / "set").train.width.tolist() == [8, 9, 10, 11, 99, 12, 13, 14]
  (warning,) = warnings_of(caplog)
  assert "index-train-" in warning and "have changed" in warning
  assert scans == ["train", "val", "train"]
  (tmp_path / "set" / "train" / "bee" / "7.jpg").rename(
    tmp_path / "set" / "train" / "cat" / "7.jpg"
  )
  assert opened(tmp_path / "set").train.width.tolist() == [8, 9, 10, 11, 12, 13, 14, 99]


def test_the_index_beside_the_images_comes_first(tmp_path, opened, scans):
  files = small_files()
  write_indices(opened(write(tmp_path / "set", files)))
  (tmp_path / "set").rename(tmp_path / "moved")
  images = opened(tmp_path / "moved", cache=tmp_path / "other")
  assert_holds(images, files)
  assert scans == ["train", "val"] and not (tmp_path / "other").exists()
  assert sorted(path.name for path in (tmp_path / "moved" / ".jaxspeed").iterdir()) == [
    "train",
    "val",
  ]


def test_a_stale_index_beside_the_images_stays_and_is_passed_over(tmp_path, opened, scans, caplog):
  files = small_files()
  write_indices(opened(write(tmp_path / "set", files)))
  write(tmp_path / "set", {"val/bee/10.jpg": encoded(99, 98)})  # "10.jpg" < "9.jpg"
  for run in (1, 2):
    images = opened(tmp_path / "set", cache=tmp_path / "other")
    assert images.eval.width.tolist() == [15, 99, 16, 17]
    assert len(warnings_of(caplog)) == run
  assert f"the index {tmp_path / 'set' / '.jaxspeed' / 'val'} is not used" in caplog.text
  assert "the files that it was made from have changed" in caplog.text
  assert scans == ["train", "val", "val"]
  (tmp_path / "set" / "val" / "bee" / "10.jpg").unlink()
  assert_holds(opened(tmp_path / "set", cache=tmp_path / "third"), files)
  assert not (tmp_path / "third").exists()


def test_an_index_is_written_in_the_place_of_another(tmp_path, opened, scans):
  write_indices(opened(write(tmp_path / "set", small_files())))
  write(tmp_path / "set", {"val/bee/10.jpg": encoded(99, 98)})
  write_indices(opened(tmp_path / "set", cache=tmp_path / "other"))
  scans.clear()
  assert opened(tmp_path / "set", cache=tmp_path / "third").eval.width.tolist() == [15, 99, 16, 17]
  assert not scans


def test_a_damaged_index_is_passed_over(tmp_path, opened, caplog):
  files = small_files()
  write_indices(opened(write(tmp_path / "set", files)))
  own = tmp_path / "set" / ".jaxspeed"
  content = bytearray((own / "train" / "width.npy").read_bytes())
  content[-1] ^= 1
  (own / "train" / "width.npy").write_bytes(content)
  (own / "val" / "manifest.json").unlink()
  assert_holds(opened(tmp_path / "set", cache=tmp_path / "other"), files)
  first, second = warnings_of(caplog)
  assert "train is not used" in first and "width.npy does not fit its checksum" in first
  assert "val is not used" in second and "FileNotFoundError" in second


def test_an_index_with_other_columns_is_passed_over(tmp_path, opened, caplog):
  files = small_files()
  root = write(tmp_path / "set", files)
  width = np.ones(3, np.int32)
  source = sizes.files_source(["ant/9.jpg", "bee/9.jpg", "cat/9.jpg"])
  columns = {"width": width, "height": width, "orientation": width.astype(np.int8)}
  sizes.write_index(root, "val", columns | {"length": width}, source)
  assert_holds(opened(root), files)  # the length is int64
  assert "its columns are not those" in caplog.text
  sizes.write_index(root, "val", columns | {"length": width.astype(np.int64)}, source)
  assert opened(root).eval.width.tolist() == [1, 1, 1]


def test_folders_that_cannot_be_written(tmp_path, opened, caplog):
  files = small_files()
  write(tmp_path / "set", files | {".jaxspeed": b"in the way"})
  (tmp_path / "file").write_text("in the way")
  images = opened(tmp_path / "set", cache=tmp_path / "file" / "cache")
  assert_holds(images, files)
  train, val = warnings_of(caplog)
  assert "index-train-" in train and "index-val-" in val and "cannot be written" in train
  with pytest.raises(UserError, match=r"\.jaxspeed/train cannot be written \(Not a directory\)"):
    write_indices(images)


# TFDS


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
      assert [shards.read(i) for i in range(len(shards))] == list(
        map(whole.read, range(len(whole)))
      )
      for column in ("label", "width", "height", "length"):
        np.testing.assert_array_equal(getattr(shards, column), getattr(whole, column))
        assert getattr(shards, column).dtype == getattr(whole, column).dtype
  assert (images.train.width[0], images.train.height[0]) == (33, 44)
  assert images.class_names == folder.class_names == CLASSES
  assert images.source == "TFDS insects 1.2.3, splits train and validation"
  assert not images.train.whole_files and images.train.file.tolist() == [0, 0, 0, 0, 1, 1, 1]
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
  assert scans == [*shards, *shards[:2]] and "have changed" in caplog.text
  write_indices(opened(folder))
  folder.rename(tmp_path / "1.0.1")
  assert_holds(opened(tmp_path / "1.0.1", cache=tmp_path / "other"), files)
  assert len(scans) == 5 and not (tmp_path / "other").exists()


def test_a_set_without_names_of_classes_numbers_them(tmp_path, opened):
  folder = as_shards(tmp_path / "1.0.0", small_files(), "test", class_names=())
  assert opened(folder).class_names == ("0", "1", "2")


def tiny_shard(folder, labels, class_names=CLASSES):
  image = tiny_sets.random_images(0, 1, height=4, width=4)[0]
  examples = [tiny_sets.example(image, label) for label in labels]
  splits = {"train": [examples], "test": [examples[:1]]}
  return tiny_sets.write_tfds(folder, splits, name="insects", class_names=class_names)


@pytest.mark.parametrize(
  ("labels", "class_names", "message"),
  [
    ((0, -1), CLASSES, "a label of .*1.0.0 is -1: labels count from 0"),
    ((0, 3), CLASSES, "go up to 3, but it has names for only 3 classes"),
    ((0, 1 << 40), CLASSES, "go up to 2147483647, but it has names for only 3 classes"),
    ((0, 1 << 40), (), "go up to 2147483647, but it has only 3 images"),
  ],
)
def test_labels_without_a_class_are_refused(tmp_path, opened, labels, class_names, message):
  with pytest.raises(UserError, match=message):
    opened(tiny_shard(tmp_path / "1.0.0", labels, class_names))


def test_damaged_shards_are_named_and_not_stored(tmp_path, opened):
  shard = tiny_shard(tmp_path / "1.0.0", (0, 1)) / "insects-train.tfrecord-00000-of-00001"
  whole = shard.read_bytes()
  damaged = bytearray(whole)
  damaged[2] ^= 1  # in the length of the first record
  stranger = tiny_sets.frame(b"no Example")
  for content, message in (
    (whole[:-1], "ends in the middle of record 1"),
    (damaged, "is damaged: record 0 does not fit its checksum"),
    (whole * 2, "holds 4 records and dataset_info.json promises 2"),
    (b"", "holds 0 records and dataset_info.json promises 2"),
    (whole[: len(whole) // 2] + stranger, "record 1 is not a labelled image"),
  ):
    shard.write_bytes(content)
    with pytest.raises(UserError, match=f"{shard.name}:? {message}"):
      opened(tmp_path / "1.0.0")
  shard.unlink()
  with pytest.raises(
    UserError, match=f"{shard.name} cannot be read .*the data set is not complete"
  ):
    opened(tmp_path / "1.0.0")
  assert not (tmp_path / "cache").exists()


def test_without_a_path_tfds_prepares_the_set(tmp_path, opened, monkeypatch):
  files = small_files()
  folder = str(as_shards(tmp_path / "1.0.0", files, "test"))
  module = types.ModuleType("tensorflow_datasets")
  module.__spec__ = types.SimpleNamespace(name="tensorflow_datasets")
  module.builder = lambda name, file_format: types.SimpleNamespace(
    data_dir=folder if name == "insects" else "", download_and_prepare=lambda: None
  )
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
  assert_holds(opened(""), files)


def test_without_a_network_tfds_is_not_asked_for_minutes(tmp_path, opened, monkeypatch):
  with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]  # where nobody listens any more
  asked = []
  builder = types.SimpleNamespace(
    data_dir=str(tmp_path / "tfds" / "insects" / "1.0.0"),
    url_infos={f"http://127.0.0.1:{port}/insects.zip": None},
    download_and_prepare=lambda: asked.append(1),
  )
  module = types.ModuleType("tensorflow_datasets")
  module.__spec__ = types.SimpleNamespace(name="tensorflow_datasets")
  module.builder = lambda name, file_format: builder
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
  for name in ("http_proxy", "https_proxy", "all_proxy"):
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(name.upper(), raising=False)
  left = tmp_path / "tfds" / "downloads" / "insects" / "a.zip.tmp.1" / "a.zip"
  left.parent.mkdir(parents=True)
  left.write_text("half")
  with pytest.raises(UserError, match=r"127.0.0.1 cannot be reached, Connection refused\): name a"):
    opened("")
  assert not asked
  # What was downloaded needs no network.
  (left.parents[1] / "a.zip").write_text("whole")
  with pytest.raises(UserError):  # nothing is prepared here
    opened("")
  assert asked


def test_without_a_path_and_without_tfds(opened, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(
    UserError, match=r"is not set: name a folder .*install 'jaxspeed\[imagenet\]'"
  ):
    opened("")
