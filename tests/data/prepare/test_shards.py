"""Shards of a folder of images."""

import os

import numpy as np
import pytest
import tiny_sets
from image_files import decoded, encode, images_in, notes_of_training, pack, ramp, small_set, write

from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.formats.protobuf import make_frames
from jaxspeed.data.formats.tfrecord import find_tfds, list_tfds, parse_example, read_records
from jaxspeed.data.prepare.shards import shards_folder, write_shards
from jaxspeed.errors import UserError


@pytest.fixture
def images(tmp_path):
  source = small_set(tmp_path / "source", train=60, held_out=5)
  return write(source, {"train/b/broken.jpg": b"", "val/a/as png.jpg": encode(ramp(9, 8), "PNG")})


def records_of(folder, split):
  for path in sorted(folder.glob(f"tiny-{split}.tfrecord-*")):
    yield from read_records(np.fromfile(path, np.uint8), path)


@pytest.mark.parametrize("length", [0, 1, 4097])
def test_frames_are_those_of_tfrecord(length):
  data = np.random.default_rng(length).integers(256, size=length, dtype=np.uint8).tobytes()
  assert make_frames([b"abc", data]) == tiny_sets.frame(b"abc") + tiny_sets.frame(data)


def test_shards_hold_the_files_as_they_are(tmp_path, images):
  done = write_shards(images, tmp_path / "sets", name="tiny", shards=4, workers=2)
  folder = shards_folder(tmp_path / "sets", "tiny")
  assert done.images == done.made == 66
  assert [name for name, _ in done.broken] == ["train/b/broken.jpg"]
  assert find_tfds(tmp_path / "sets", "tiny") == folder
  table = list_tfds(folder)
  assert table.class_names == ("a", "b") and table.source.endswith("train and validation")
  assert np.bincount(table.file[:60]).tolist() == [15, 15, 15, 15]
  for part, split in (("train", "train"), ("validation", "val")):
    found = {}
    for record in records_of(folder, part):
      encoded_image, _, label, name = parse_example(bytes(record), table.keys, "x")
      found[os.fsdecode(name)] = (encoded_image, label)
    root = tmp_path / "source" / split
    expected = {
      name: (content, "ab".index(name[0])) for name, content in images_in(root).items() if content
    }
    assert found == expected
  opened = open_images(name="", path=str(folder), cache=str(tmp_path / "cache"))
  shares = [opened.train.label[opened.train.file == shard].mean() for shard in range(4)]
  assert all(0.2 < share < 0.8 for share in shares)  # 30 of 60 in all


def test_shards_stay_when_no_original_can_be_read_any_more(tmp_path, images):
  def packed():
    write_shards(images, tmp_path / "sets", name="tiny")
    return {path: path.read_bytes() for path in (tmp_path / "sets").rglob("*.tfrecord*")}

  before, originals = packed(), images_in(images)
  write(images, dict.fromkeys(originals, b"version https://git-lfs"))
  with pytest.raises(UserError, match="none of 61 images of .* has a header"):
    packed()
  write(images, originals)
  assert packed() == before


def test_the_number_of_shards_follows_the_number_of_images(tmp_path, images):
  write_shards(images, tmp_path, name="one")
  write_shards(images, tmp_path, name="many", shards=20)
  counts = [len(list_tfds(shards_folder(tmp_path, name)).names) for name in ("one", "many")]
  assert counts == [1 + 1, 20 + 6]


def test_names_that_tfds_does_not_take(tmp_path, images):
  for name in ("my-set", "Set", "1", "", "a/b", 101 * "a"):
    with pytest.raises(UserError, match=f"--name={name}: TFDS's names are lower-case"):
      write_shards(images, tmp_path, name=name)
  data = encode(ramp(9, 8))
  for name in ("b ", "b\n", "b\udcff"):  # no line of text
    files = {f"{split}/{name}/x.jpg": data for split in ("train", "val")}
    with pytest.raises(UserError, match="cannot be a line of label.labels.txt"):
      write_shards(write(tmp_path / ascii(name), files), tmp_path, name="tiny")


def test_an_image_that_goes_meanwhile_is_named(tmp_path, images):
  gone = images / "train/a/002.jpg"
  with pytest.raises(UserError, match="train/a/002.jpg cannot be read or written .No such"):
    write_shards(images, tmp_path / "sets", name="t", show=lambda *_: gone.unlink(missing_ok=True))
  assert not list((tmp_path / "sets").rglob("*.tfrecord*"))


def test_shards_are_not_packed_again(tmp_path, images):
  write_shards(images, tmp_path / "sets", name="tiny")
  with pytest.raises(UserError, match="1.0.0 holds shards: name the folder"):
    write_shards(shards_folder(tmp_path / "sets", "tiny"), tmp_path / "again", name="tiny")


def test_tfds_reads_the_shards(tmp_path, images):
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("tensorflow")
  write_shards(images, tmp_path / "sets", name="tiny", shards=4)
  folder = shards_folder(tmp_path / "sets", "tiny")
  builder = tfds.builder_from_directory(str(folder))
  assert builder.info.features["label"].names == ["a", "b"]
  assert builder.info.splits["train"].num_examples == 60
  found = {
    each["file_name"].decode(): each
    for each in tfds.as_numpy(builder.as_dataset(split="validation", shuffle_files=True))
  }
  assert len(found) == 6
  for name, each in found.items():
    pixels = decoded((tmp_path / "source" / "val" / name).read_bytes())[2]
    assert "ab"[each["label"]] == name[0]
    # TensorFlow decodes chroma without smoothing and in a faster DCT: noise differs a little.
    assert each["image"].shape == pixels.shape
    assert np.abs(each["image"] - pixels).mean() < 3


def test_shards_that_are_one_less_leave_none_behind(tmp_path, source, monkeypatch):
  monkeypatch.setattr("jaxspeed.data.prepare.shards._IMAGES_A_SHARD", 6)
  pack(source, tmp_path)
  folder = shards_folder(tmp_path / "sets", "set")
  assert len(list(folder.glob("*train*"))) == 2
  for name in "abc":
    (source / f"train/{name}/0.jpg").rename(source / f"val/{name}/0.jpg")
    (source / f"train/{name}/1.jpg").unlink()
  write(folder, {"notes.txt": b"mine"})
  pack(source, tmp_path)
  names = sorted(path.name for path in folder.iterdir() if "tfrecord" in path.name)
  assert names == ["set-train.tfrecord-00000-of-00001", "set-validation.tfrecord-00000-of-00001"]
  assert (folder / "notes.txt").read_bytes() == b"mine"


def test_two_classes_of_one_name_are_refused(tmp_path, source):
  pack(source, tmp_path)
  folder = shards_folder(tmp_path / "sets", "set")
  (folder / "label.labels.txt").write_text("a\nb\na\n")
  with pytest.raises(UserError, match="1.0.0 has two classes that look alike, 0: 'a' and 2: 'a'"):
    notes_of_training(source, path=str(folder), sides=(0,))


def test_shards_of_a_folder_without_splits_follow_it(tmp_path, source):
  flat = source / "train"
  pack(flat, tmp_path)
  folder = shards_folder(tmp_path / "sets", "set")
  assert notes_of_training(source, path=str(folder), sides=(0,)) == ()
  (flat / "a/0.jpg").rename(flat / "a/7.jpg")
  with pytest.raises(UserError, match="there were images of other names; run"):
    notes_of_training(source, path=str(folder), sides=(0,))
