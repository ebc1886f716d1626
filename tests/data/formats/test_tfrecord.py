"""The reader of TFDS folders: checksums, frames, Examples and dataset_info.json."""

import json

import numpy as np
import pytest
import tiny_sets

from jaxspeed.data.formats.tfrecord import (
  find_tfds,
  list_tfds,
  parse_example,
  read_records,
  read_shards,
)
from jaxspeed.errors import UserError

KEYS = ("image", "label")


def records_of(data, tmp_path):
  return [bytes(r) for r in read_records(np.frombuffer(data, np.uint8), tmp_path / "shard")]


def small_set(tmp_path, **info):
  """3 + 2 + 2 training images in three shards, one of them empty, and 2 for evaluation."""
  images = tiny_sets.random_images(0, 7, height=4, width=5)
  labels = [3, 0, 1, 2, 3, 1, 0]
  images[6] = images[6, ..., :1]
  stored = [*images[:6], images[6, ..., 0]]  # the last is grey
  examples = [tiny_sets.example(*pair) for pair in zip(stored, labels, strict=True)]
  splits = {"train": [examples[:3], [], examples[3:5]], "test": [examples[5:]]}
  folder = tiny_sets.write_tfds(tmp_path / "cifar10" / "3.0.2", splits, **info)
  return folder, images, labels


def test_every_damaged_byte_is_found(tmp_path):
  data = bytearray(b"".join(map(tiny_sets.frame, [b"first", b"second"])))
  for i in range(len(data)):
    data[i] ^= 4
    with pytest.raises(UserError, match=f"shard is damaged: record {int(i >= 21)}"):
      records_of(bytes(data), tmp_path)
    data[i] ^= 4


def test_a_shard_cut_off_anywhere_is_named(tmp_path):
  data = b"".join(map(tiny_sets.frame, [b"first", b"second"]))
  for end in (*range(1, 21), *range(22, len(data))):  # 8 + 4 + len("first") + 4 = 21
    with pytest.raises(UserError, match=f"shard ends in the middle of record {int(end > 21)}"):
      records_of(data[:end], tmp_path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("label", [0, 7, 127, 128, 300, 2**40, -1, -(2**63)])
def test_examples_hold_labels_of_any_size(label, packed):
  image = tiny_sets.random_images(0, 1, height=2, width=2)[0]
  record = tiny_sets.example(image, label, packed=packed)
  encoded, place, found, name = parse_example(record, KEYS, "x")
  assert (encoded[:4], found, name) == (b"\x89PNG", label, b"")
  assert record[place : place + len(encoded)] == encoded


def test_bytes_that_are_no_example_are_an_error_never_a_hang():
  record = tiny_sets.example(tiny_sets.random_images(0, 1, height=2, width=2)[0], 1)
  value = tiny_sets.field(3, tiny_sets.field(1, b"\xff" * 9 + b"\x7f"))  # more than 64 bits
  label = tiny_sets.field(1, b"label") + tiny_sets.field(2, value)
  for content in (*(record[:end] for end in range(len(record))), b"\xff" * 20):
    with pytest.raises(UserError, match="^a: record 7 is not .*(x.Example|feature)"):
      parse_example(content, KEYS, "a: record 7")
  with pytest.raises(UserError, match="'nolabel'"):
    parse_example(record, ("image", "nolabel"), "x")
  forged = record + tiny_sets.field(1, tiny_sets.field(1, label))
  assert parse_example(forged, KEYS, "x").label == -1
  zeros = bytes(10**6)  # an image within a longer name: no search takes the square of its bytes
  entries = [tiny_sets.field(1, tiny_sets.field(1, each)) for each in (zeros * 2, zeros + b"1")]
  names = zip((b"file_name", b"image"), entries, strict=True)
  entries = [tiny_sets.field(1, key) + tiny_sets.field(2, each) for key, each in names]
  long = tiny_sets.field(1, b"".join(tiny_sets.field(1, each) for each in (*entries, label)))
  assert parse_example(long, KEYS, "x").place > 2 * 10**6


def test_shards_are_read_in_order(tmp_path):
  folder, images, labels = small_set(tmp_path, class_names=("a", "b", "c", "d"))
  table = list_tfds(folder)
  assert table.source == "TFDS cifar10 3.0.2, splits train and test"
  assert table.class_names == ("a", "b", "c", "d") and table.keys == KEYS
  assert table.train == 5 and table.file.tolist() == [0, 0, 0, 1, 1, 2, 2]
  found = read_shards(table)
  np.testing.assert_array_equal(found[0], images)
  assert found[1].tolist() == labels and found[1].dtype == np.int32
  assert len(list_tfds(folder, evaluation=False)) == 5


def test_the_newest_version_is_found_from_every_folder(tmp_path):
  folder, _, _ = small_set(tmp_path)
  for version in ("3.0.10", "incomplete.AB12CD_4.0.0"):
    tiny_sets.write_tfds(tmp_path / "cifar10" / version, {})
  newest = tmp_path / "cifar10" / "3.0.10"
  assert find_tfds(tmp_path, "cifar10") == newest
  assert find_tfds(tmp_path / "cifar10", "cifar10") == newest
  assert find_tfds(folder, "cifar10") == folder
  assert find_tfds(tmp_path, "cifar100") == newest  # the only one
  assert find_tfds(tmp_path / "nothing", "cifar10") is None
  tiny_sets.write_tfds(tmp_path / "more" / "1.0.0", {})
  with pytest.raises(UserError, match=r"holds 2 data sets \(cifar10, more\): name the folder"):
    find_tfds(tmp_path, "cifar100")


def info_of(**content):
  return json.dumps({"name": "a"} | content)


def train_of(*lengths, file="x"):
  return [{"name": "train", "filepathTemplate": file, "shardLengths": lengths}]


@pytest.mark.parametrize(
  ("text", "sentence"),
  [
    *[(text, "cannot be read as TFDS writes it") for text in ("", "[]", "{}", "1" * 5000)],
    *[
      (info_of(**{field: value}), "cannot be read as TFDS writes it")
      for field, value in {"splits": [7], "supervisedKeys": 3}.items()
    ],
    *[
      (info_of(splits=train_of("1", file=file)), "cannot be read as TFDS writes it")
      for file in ("a\0b", "\ud800", ["x"])
    ],
    *[
      (info_of(splits=train_of(*lengths)), "shardLengths of train are not from 0 to 100,000,000")
      for lengths in (["-1"], ["99999999999999999999"], [10**8, 1])
    ],
    (info_of(fileFormat="array_record"), "stored as array_record.*='tfrecord'"),
    (info_of(splits=train_of("5")), "has the split train but none of val, validation and test"),
    (info_of(splits=train_of("0")), "has no split train to train on"),
  ],
)
def test_another_info_is_refused(tmp_path, text, sentence):
  (tmp_path / "dataset_info.json").write_text(text)
  with pytest.raises(UserError, match=sentence):
    list_tfds(tmp_path)


def test_supervised_keys_name_the_features(tmp_path):
  items = {"tuple": {"items": [{"featureKey": "picture"}, {"featureKey": "kind"}]}}
  table = list_tfds(small_set(tmp_path, supervisedKeys=items)[0])
  assert table.keys == ("picture", "kind")
  with pytest.raises(UserError, match="record 0 is not a labelled image: it has no feature"):
    read_shards(table)


PNG = tiny_sets.example(tiny_sets.random_images(0, 1, height=4, width=5)[0], 0)
WIDE = tiny_sets.example(tiny_sets.random_images(0, 1, height=4, width=6)[0], 0)


@pytest.mark.parametrize(
  ("train", "more", "sentence"),
  [
    ([PNG], tiny_sets.frame(PNG), "00000-of-00001 holds 2 records .* promises 1"),
    ([PNG, WIDE], b"", "00000-of-00001: its images differ in size; data in memory"),
    ([PNG.replace(b"IHDR", b"IHXX")], b"", "cannot be decoded: it is not an image of a known"),
  ],
)
def test_shards_that_do_not_fit_memory_or_the_info_are_named(tmp_path, train, more, sentence):
  folder = tiny_sets.write_tfds(tmp_path / "1.0.0", {"train": [train], "test": [[PNG]]})
  shard = folder / "cifar10-train.tfrecord-00000-of-00001"
  shard.write_bytes(shard.read_bytes() + more)
  with pytest.raises(UserError, match=sentence):
    read_shards(list_tfds(folder))


def test_what_tfds_writes_is_what_is_read(tmp_path):
  """A set that TFDS itself prepares: two shards, its names of features, its own checksums."""
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("tensorflow")
  builder = tfds.testing.DummyMnist(data_dir=str(tmp_path), file_format="tfrecord")
  builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
  table = list_tfds(find_tfds(tmp_path, "dummy_mnist"))
  assert len(table.names) == 4 and table.train == 20
  images, labels = read_shards(table)
  splits = [tfds.as_numpy(builder.as_dataset(split=each)) for each in ("train", "test")]
  expected = [each for split in splits for each in split]
  np.testing.assert_array_equal(images, [np.repeat(each["image"], 3, -1) for each in expected])
  assert labels.tolist() == [each["label"] for each in expected]
