"""open_images: folders, lists and shards, what is held out, and the sentence for bad input."""

import os
import re
import sys

import numpy as np
import pytest
import tiny_sets
from image_files import (
  CLASSES,
  as_shards,
  assert_holds,
  encoded,
  many_files,
  names_of,
  small_files,
  write,
)

from jaxspeed.data.disk.sources import class_names_of
from jaxspeed.errors import UserError

# Folders


@pytest.mark.parametrize("held_out", ["val", "validation", "test"])
def test_a_folder_of_class_folders(tmp_path, opened, held_out):
  files = small_files(held_out)
  images = opened(write(tmp_path / "set", files))
  assert_holds(images, files)
  assert images.train.class_names == CLASSES
  assert images.train.source == f"set: splits train and {held_out}" and images.train.offset is None
  assert images.train.full_path(3) == str(tmp_path / "set" / "train" / "bee" / "0.jpg")
  assert images.train.name(3) == "train/bee/0.jpg"
  assert images.eval.name(2) == f"{held_out}/cat/9.jpg"


def test_names_are_in_the_order_of_plain_strings_and_others_left_out(tmp_path, opened):
  image = encoded(5, 6)
  names = ("B/10.JPEG", "B/9.jpg", "B/Z.PNG", "a/1.bmp", "a/é.gif")  # "B" < "a"
  files = {f"{split}/{name}": image for split in ("train", "val") for name in names}
  others = (".hidden/1.jpg", "a/.hidden.jpg", "a/notes.txt", "a/deeper/1.jpg", "loose.jpg")
  # What a NAS puts beside images.
  others += ("@eaDir/1.jpg@SynoEAStream/x", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg")
  write(tmp_path / "set", files | {f"train/{name}": b"no" for name in others})
  (tmp_path / "set/val/@eaDir").mkdir()
  images = opened(tmp_path / "set")
  assert_holds(images, files)
  assert images.train.class_names == ("B", "a")


@pytest.mark.parametrize("name", ["train", "test", "val"])
def test_a_class_may_have_the_name_of_a_split(tmp_path, opened, name):
  files = {f"{each}/{i}.jpg": encoded(5 + i, 6) for each in ("bus", name) for i in range(4)}
  images = opened(write(tmp_path / "set", files))
  assert (
    images.train.class_names == ("bus", name) == class_names_of(name="", path=str(tmp_path / "set"))
  )
  assert images.evaluated_on == "held-out" and len(images.train) + len(images.eval) == 8


def test_links_are_followed_and_val_may_lack_a_class(tmp_path, opened):
  files = {name: content for name, content in small_files().items() if name != "val/bee/9.jpg"}
  write(tmp_path / "elsewhere", files)
  for name in files:
    link = tmp_path / "set" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "elsewhere" / name)
  (tmp_path / "set/train/cat").rename(tmp_path / "cats")
  (tmp_path / "set/train/cat").symlink_to(tmp_path / "cats")
  images = opened(tmp_path / "set")
  assert_holds(images, files)
  assert images.eval.label.tolist() == [0, 2]  # the numbers of train


BAD_FOLDERS = {
  "train": (["train/ant/1.jpg"], "set has the split train but none of val, validation and test"),
  "val": (["val/ant/1.jpg"], "set has no split train to train on"),
  "nothing": (["notes.txt"], "set has no train/ and no dataset_info.json; it names a folder with"),
  "flat": (["train/ant/1.jpg", "val/1.JPEG"], "val holds images but no class folders: put the"),
  "only flat": (["train/1.jpg"], "none of val, "),
  "no class": (["train/1.txt", "val/ant/1.jpg"], "train holds no class folders: put the images"),
  "empty class": (
    ["train/ant/1.jpg", "train/bee/1.txt", "val/ant/1.jpg"],
    r"the class folder .*train/bee holds no image \(.jpg, .jpeg, .*: remove it, or complete",
  ),
  "only sub-folders": (
    ["train/ant/images/1.jpg", "val/ant/1.jpg"],
    r"train/ant holds only sub-folders \(images, ...\), which are not searched",
  ),
  "broken images": (
    ["train/ant/1.jpg", "val/ant/broken.jpg"],
    r"none of 1 images of .*/set has a header that .* \(the first is val/ant/broken.jpg\)",
  ),
  "unknown classes": (
    ["train/ant/1.jpg", *(f"val/{name}/1.jpg" for name in "pqrstu")],
    r"set: no training image has the class of .*: p \(1\), q \(1\), .* and 1 more: add",
  ),
  "only Unicode tells apart": (
    ["caf\u00e9/1.jpg", "cafe\u0301/1.jpg"],
    r"look alike, 0: 'cafe.u0301' and 1: 'caf.xe9'",
  ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_folders_that_are_not_complete_are_named(tmp_path, opened, case):
  names, message = BAD_FOLDERS[case]
  write(tmp_path / "set", {name: encoded(4, 4) * ("broken" not in name) for name in names})
  with pytest.raises(UserError, match=message) as caught:
    opened(tmp_path / "set")
  assert "\n" not in str(caught.value)


def test_paths_that_are_no_folder_are_named(tmp_path, opened):
  (tmp_path / "set.tar").write_text("")
  os.mkfifo(tmp_path / "pipe.csv")
  csv_set(tmp_path, {"a/x.jpg": b""}, ["file,label", "a,cat", "a/x.jpg,dog"])
  for name, message in {
    "set/photos.csv": "set/a cannot be read .it is no regular file",
    "nowhere": "config.data.path: .*nowhere does not exist; it names a folder with",
    "set.tar": "config.data.path: .*set.tar is a file; it names a folder with",
    "gone.csv": "gone.csv does not exist; it names .* a .csv file with",
    "pipe.csv": "pipe.csv cannot be read .it is no regular file",
  }.items():
    with pytest.raises(UserError, match=message):
      opened(tmp_path / name)


def test_what_is_left_out_or_doubtful_is_noted(tmp_path, opened):
  files = small_files()
  others = [f"train/ant/{i}.heic" for i in range(3)] + ["val/bee/notes", "train/bee/a.\x1b[2Jtxt"]
  others += [f"train/cat/1.{name}" for name in "uvwx"] + ["train/ant/.hidden.heic"]
  others += ["train/1.jpg", "train/cat/a/1.jpg", "val/cat/b/1.jpg"]
  images = opened(write(tmp_path / "set", files | dict.fromkeys(others, b"")))
  assert images.train.notes == (
    "12 files in the class folders are left out: images beside the class folders (1), no ending "
    "(1), sub-folders, which are not searched (2), .\\x1b[2jtxt (1), .heic (3) and 4 more",
  )


# A share that is held out


def test_of_a_folder_without_splits_a_share_of_each_class_is_held_out(tmp_path, opened):
  files = many_files()
  images = opened(write(tmp_path / "set", files))
  assert (len(images.train), len(images.eval)) == (37, 3)
  assert names_of(images.train) | names_of(images.eval) == set(files)
  assert (
    images.train.source
    == "set: class folders; 3 of 40 images, 10 % of each class, are held out for evaluation"
  )
  assert images.train.class_names == CLASSES and images.eval.label.tolist() == [0, 1, 2]
  tuned = opened(tmp_path / "set", tune=True)  # the share for evaluation stays out
  assert (len(tuned.train), len(tuned.eval)) == (34, 3)
  assert not names_of(images.eval) & (names_of(tuned.train) | names_of(tuned.eval))
  # By the names: another folder and another file more change nothing for the others.
  write(tmp_path / "other", files | {"bee/more.jpg": encoded(5, 5)})
  assert names_of(opened(tmp_path / "other").eval) <= names_of(images.eval) | {"bee/more.jpg"}


def test_to_tune_only_the_training_images_are_looked_at(tmp_path, opened):
  files = many_files(prefix="train/")
  root = write(tmp_path / "set", files)
  for _ in ("no val", "val of unknown classes"):
    images = opened(root, tune=True)
    assert (len(images.train), len(images.eval)) == (37, 3)
    assert names_of(images.train) | names_of(images.eval) == set(files)
    line = "3 of 40 training images, 10 % of each class, are held out for tuning"
    assert images.train.source == f"set: split train; {line}"
    with pytest.raises(UserError):
      opened(root)
    (root / "val/unknown").mkdir(parents=True, exist_ok=True)


def test_to_tune_shards_need_no_other_split(tmp_path, opened):
  folder = as_shards(tmp_path / "1.0.0", small_files(), "val")
  info = folder / "dataset_info.json"
  info.write_text(info.read_text().replace('"name": "val"', '"name": "extra"'))
  with pytest.raises(UserError, match="has the split train but none of"):
    opened(folder)
  images = opened(folder, tune=True)
  assert (len(images.train), len(images.eval)) == (5, 2)  # of 3, 1 and 3 images
  line = "2 of 7 training images, 10 % of each class, are held out for tuning"
  assert images.train.source == f"TFDS insects 1.0.0, split train; {line}"
  assert images.train.notes == ("classes with one image are trained on but not evaluated: bee",)
  folder = as_shards(tmp_path / "2.0.0", small_files(), "val", named=False)
  assert len(opened(folder).train) == 7
  with pytest.raises(UserError, match="7 of 7 images in the shards of .* have no file_name"):
    opened(folder, tune=True)


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


def test_names_that_are_no_text_can_be_held_out(tmp_path, opened):
  names = [os.fsdecode(b"\xff%d" % i) for i in range(20)]
  files = {f"{name}/{name}\n{end}": encoded(4, 5) for name in names for end in (".jpg", ".png")}
  images = opened(write(tmp_path / os.fsdecode(b"\xffset"), files))
  assert (len(images.train), len(images.eval)) == (20, 20)
  assert images.train.class_names == tuple(sorted(names))
  for text in (images.train.source, *(images.train.name(i) for i in range(20))):
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
  assert images.train.class_names == CLASSES == class_names_of(name="", path=str(path))
  assert images.train.source == "photos.csv: splits train and val" and images.evaluated_on == "test"
  assert images.train.name(0) == "train/ant/0.jpg"
  # The index is that of the names: labels are read anew, and other rows read the headers again.
  scans.clear()
  rows[rows.index("train/ant/0.jpg,ant,train")] = "train/ant/0.jpg,cat,train"
  path.write_text("\n".join(["file,label,split", *rows]))
  assert opened(path).train.label[0] == 2 and not scans
  path.write_text("\n".join(["file,label,split", *rows[1:]]))
  assert len(opened(path).train) == 6 and scans
  tuned = opened(path, tune=True)
  assert tuned.evaluated_on == "validation"
  assert tuned.train.source.startswith("photos.csv: split train; ")


def test_of_a_csv_without_splits_a_share_is_held_out_by_whole_names(tmp_path, opened):
  # Files of one name in many folders, as of patients.
  files = {f"{i}/scan.jpg": encoded(8 + i, 9) for i in range(40)}
  rows = [f"{name},{CLASSES[i % 2]}" for i, name in enumerate(files)]
  path = csv_set(tmp_path, files, ["file,label", *rows])
  images = opened(path, share=0.25)
  assert images.train.source == (
    "photos.csv; 10 of 40 images, 25 % of each class, are held out for evaluation"
  )
  assert np.bincount(images.eval.label).tolist() == [5, 5]
  assert names_of(images.train) | names_of(images.eval) == set(files)
  assert names_of(images.eval) != set(sorted(files)[:10])
  path.write_text("\n".join(["file,label", *rows[::-1]]))
  assert names_of(opened(path, share=0.25).eval) == names_of(images.eval)
  whole = opened(path, share=1)
  assert (
    names_of(whole.eval) == set(files) and "; all 40 images are evaluated" in whole.train.source
  )


def test_names_of_a_folder_of_images_are_its_subfolders_whatever_list_lies_beside_them(tmp_path):
  for name in ("cat", "dog"):
    write(tmp_path, {f"train/{name}/1.jpg": b""})
  (tmp_path / "classes.txt").write_text("a\nb\nc\n")
  assert class_names_of(name="", path=str(tmp_path)) == ("cat", "dog")
  (tmp_path / "train" / "images.npy").touch()
  assert class_names_of(name="", path=str(tmp_path)) == ("a", "b", "c")


# TFDS


def test_without_tfds_the_sentence_says_what_to_install(tmp_path, opened, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(UserError, match=r"not set, and TFDS \(pip install 'jaxspeed\[images\]'\)"):
    opened("")


def tiny_shard(folder, labels, class_names=CLASSES):
  image = tiny_sets.random_images(0, 1, height=4, width=4)[0]
  examples = [tiny_sets.example(image, label) for label in labels]
  splits = {"train": [examples], "test": [examples[:1]]}
  return tiny_sets.write_tfds(folder, splits, name="insects", class_names=class_names)


def test_a_set_without_names_of_classes_numbers_them(tmp_path, opened):
  assert opened(tiny_shard(tmp_path / "1.0.0", (0, 1), ())).train.class_names == ("0", "1")


LABELS = {
  "a label of .*1.0.0 is -1: labels count from 0": ((0, -1), CLASSES),
  "go up to 3, but it has names for only 3 classes": ((0, 3), CLASSES),
  "go up to 2147483647, but it has names for only 3 classes": ((0, 1 << 40), CLASSES),
  "go up to 2147483647, but it has only 3 images": ((0, 1 << 40), ()),
}


@pytest.mark.parametrize("message", LABELS)
def test_labels_without_a_class_are_refused(tmp_path, opened, message):
  with pytest.raises(UserError, match=message):
    opened(tiny_shard(tmp_path / "1.0.0", *LABELS[message]))
