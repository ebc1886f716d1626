"""The reader of TFDS folders: checksums, frames, Examples and dataset_info.json."""

import importlib
import sys
import textwrap

import numpy as np
import pytest
import tiny_sets

from jaxspeed.data.formats.protobuf import masked_checksum
from jaxspeed.data.formats.tfrecord import (
  find_tfds,
  open_tfds,
  parse_example,
  read_records,
  read_shards,
)
from jaxspeed.errors import UserError


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


def test_masked_checksums_of_the_strings_of_rfc_3720():
  parts = [bytes(32), b"\xff" * 32, bytes(range(32)), bytes(range(31, -1, -1)), b"123456789"]
  checksums = [0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C, 0xE3069283]
  # As TensorFlow's core/lib/hash/crc32c.h masks them.
  masked = [(((c >> 15) | (c << 17)) + 0xA282EAD8) % 2**32 for c in checksums]
  assert [masked_checksum(part) for part in parts] == masked
  assert [masked_checksum(memoryview(part)) for part in parts] == masked


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
@pytest.mark.parametrize("label", [0, 7, 127, 128, 300, -1])
def test_examples_hold_labels_of_any_size(label, packed):
  image = tiny_sets.random_images(0, 1, height=2, width=2)[0]
  record = memoryview(tiny_sets.example(image, label, packed=packed))
  encoded, found, name = parse_example(record, "image", "label")
  assert (encoded[:4], found, name) == (b"\x89PNG", label, b"")


def test_bytes_that_are_no_example_are_an_error_never_a_hang():
  record = tiny_sets.example(tiny_sets.random_images(0, 1, height=2, width=2)[0], 1)
  for end in range(len(record)):
    with pytest.raises((ValueError, IndexError)):
      parse_example(memoryview(record[:end]), "image", "label")
  with pytest.raises(ValueError, match="'nolabel'"):
    parse_example(memoryview(record), "image", "nolabel")
  with pytest.raises(ValueError, match="more than ten bytes"):
    parse_example(memoryview(b"\xff" * 20), "image", "label")


def test_shards_are_read_in_order(tmp_path):
  folder, images, labels = small_set(tmp_path, class_names=("a", "b", "c", "d"))
  info = open_tfds(folder)
  assert (info.name, info.eval_split, info.class_names) == ("cifar10", "test", ("a", "b", "c", "d"))
  assert [shard.records for shard in info.train] == [3, 2]
  train_images, train_labels = read_shards(info, info.train)
  eval_images, eval_labels = read_shards(info, info.eval)
  np.testing.assert_array_equal(train_images, images[:5])
  np.testing.assert_array_equal(eval_images, images[5:])
  assert train_labels.tolist() == labels[:5] and train_labels.dtype == np.int32
  assert eval_labels.tolist() == labels[5:]


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


def test_supervised_keys_name_the_features(tmp_path):
  items = {"tuple": {"items": [{"featureKey": "picture"}, {"featureKey": "kind"}]}}
  info = open_tfds(small_set(tmp_path, supervisedKeys=items)[0])
  assert (info.image_key, info.label_key) == ("picture", "kind")
  with pytest.raises(UserError, match="record 0 is not a labelled image: it has no feature"):
    read_shards(info, info.train)


@pytest.mark.parametrize(
  ("text", "sentence"),
  [
    ("", "dataset_info.json cannot be read"),
    ("[]", "dataset_info.json cannot be read"),
    ("{}", "dataset_info.json cannot be read"),
    (
      '{"name": "a", "splits": [{"name": "train", "shardLengths": ["-1"]}]}',
      "dataset_info.json cannot be read .*shardLengths of train",
    ),
    (
      '{"name": "a", "splits": [{"name": "train", "shardLengths": ["99999999999999999999"]}]}',
      "dataset_info.json cannot be read .*shardLengths of train",
    ),
    ('{"name": "a", "fileFormat": "array_record"}', "stored as array_record.*='tfrecord'"),
    ('{"name": "a", "splits": [{"name": "train"}]}', r"names the splits \['train'\], but"),
  ],
)
def test_another_info_is_refused(tmp_path, text, sentence):
  (tmp_path / "dataset_info.json").write_text(text)
  with pytest.raises(UserError, match=sentence):
    open_tfds(tmp_path)


def test_counts_must_be_those_of_the_info(tmp_path):
  folder, _, _ = small_set(tmp_path)
  shard = folder / "cifar10-train.tfrecord-00002-of-00003"
  shard.write_bytes(shard.read_bytes() + tiny_sets.frame(b"more"))
  info = open_tfds(folder)
  with pytest.raises(UserError, match="00002-of-00003 holds 3 records .* promises 2"):
    read_shards(info, info.train)


def test_images_of_two_sizes_are_refused(tmp_path):
  examples = [
    tiny_sets.example(tiny_sets.random_images(0, 1, height=4, width=width)[0], 0)
    for width in (5, 6)
  ]
  info = open_tfds(
    tiny_sets.write_tfds(tmp_path / "1.0.0", {"train": [examples], "test": [examples]})
  )
  with pytest.raises(UserError, match="an image is 4 x 6 pixels and the first one 4 x 5"):
    read_shards(info, info.train)


def test_an_image_that_cannot_be_decoded_is_refused(tmp_path):
  image = tiny_sets.random_images(0, 1, height=4, width=5)[0]
  bad = tiny_sets.example(image, 0).replace(b"IHDR", b"IHXX")
  info = open_tfds(tiny_sets.write_tfds(tmp_path / "1.0.0", {"train": [[bad]], "test": [[bad]]}))
  with pytest.raises(UserError, match="an image cannot be decoded: it is not an image of a known"):
    read_shards(info, info.train)


def test_what_tfds_writes_is_what_is_read(tmp_path, monkeypatch):
  """Prepares a set with TFDS itself: two shards, names of classes, its own checksums."""
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("tensorflow")
  code = """
    import numpy as np
    import tensorflow_datasets as tfds

    class TinyDigits(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.2.3")

      def _info(self):
        return tfds.core.DatasetInfo(
          builder=self,
          features=tfds.features.FeaturesDict({
            "image": tfds.features.Image(shape=(6, 7, 3)),
            "label": tfds.features.ClassLabel(names=["one", "two", "three"]),
          }),
          supervised_keys=("image", "label"),
        )

      def _split_generators(self, dl_manager):
        seeds = {"train": range(20), "test": range(20, 23)}
        return {split: self._generate_examples(values) for split, values in seeds.items()}

      def _generate_examples(self, seeds):
        for seed in seeds:
          image = np.random.default_rng(seed).integers(256, size=(6, 7, 3), dtype=np.uint8)
          yield seed, {"image": image, "label": seed % 3}
  """
  (tmp_path / "tiny_digits_builder").mkdir()
  (tmp_path / "tiny_digits_builder" / "__init__.py").write_text(textwrap.dedent(code))
  monkeypatch.syspath_prepend(tmp_path)
  builder_class = importlib.import_module("tiny_digits_builder").TinyDigits
  builder = builder_class(data_dir=str(tmp_path / "data"), file_format="tfrecord")
  builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
  sys.modules.pop("tiny_digits_builder")

  folder = find_tfds(tmp_path / "data", "tiny_digits")
  assert folder is not None
  info = open_tfds(folder)
  assert len(info.train) == 2 and info.class_names == ("one", "two", "three")
  for shards, split in ((info.train, "train"), (info.eval, "test")):
    images, labels = read_shards(info, shards)
    expected = list(tfds.as_numpy(builder.as_dataset(split=split)))
    np.testing.assert_array_equal(images, [each["image"] for each in expected])
    assert labels.tolist() == [each["label"] for each in expected]
