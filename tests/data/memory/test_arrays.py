"""open_arrays: which format a path is, classes, splits, the cache behind it, and each bad input."""

import dataclasses
import hashlib
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
import tarfile
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_sets

from jaxspeed.data.memory.arrays import Arrays, hold_out, open_arrays
from jaxspeed.errors import UserError

CIFAR_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())


@pytest.fixture
def opened(tmp_path):
  """open_arrays with a cache in the test's own folder."""

  def call(path, *, name="cifar10", classes=10, cache=tmp_path / "cache", **options):
    return open_arrays(name=name, path=str(path), cache=str(cache), classes=classes, **options)

  return call


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
  """(folder, expected arrays) of a CIFAR-10 with 5 x 3 + 3 images."""
  tiny_sets.shrink_cifar(monkeypatch, 3)
  folder = tmp_path / "sets" / "cifar-10-batches-bin"
  return folder, tiny_sets.write_cifar10(folder, 3)


def assert_holds(found, expected):
  names = ("train_images", "train_labels", "eval_images", "eval_labels")
  for name, array in zip(names, expected, strict=True):
    np.testing.assert_array_equal(getattr(found, name), array)
  assert found.train_images.dtype == np.uint8 and found.train_labels.dtype == np.int32
  assert found.eval_images.dtype == np.uint8 and found.eval_labels.dtype == np.int32


def write_tfds(folder, labels=(3, 0, 1, 2), class_names=CIFAR_NAMES, **info):
  """Three images for training and the rest for evaluation; returns what they hold."""
  images = tiny_sets.random_images(5, len(labels), height=4, width=4)
  examples = [tiny_sets.example(*pair) for pair in zip(images, labels, strict=True)]
  splits = {"train": [examples[:2], examples[2:3]], "test": [examples[3:]]}
  tiny_sets.write_tfds(folder, splits, class_names=class_names, **info)
  return images[:3], labels[:3], images[3:], labels[3:]


def write_npy(folder, images, labels):
  folder.mkdir(parents=True, exist_ok=True)
  np.save(folder / "images.npy", images)
  np.save(folder / "labels.npy", labels)
  return folder


# CIFAR's binary version and the cache


def test_binary_folder_from_itself_or_from_above(cifar10, opened):
  folder, expected = cifar10
  found = opened(folder)
  assert_holds(found, expected)
  assert found.class_names == CIFAR_NAMES
  assert found.source == "CIFAR-10, binary version in cifar-10-batches-bin"
  above = opened(folder.parent)
  assert_holds(above, expected)
  assert above.source == "CIFAR-10, binary version in cifar-10-batches-bin, from the cache"
  assert above.class_names == CIFAR_NAMES


def test_archive(cifar10, opened, tmp_path):
  folder, expected = cifar10
  with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
    archive.add(folder, "cifar-10-batches-bin")
  for ending in ("", ", from the cache"):
    found = opened(tmp_path / "cifar-10-binary.tar.gz")
    assert_holds(found, expected)
    assert found.source == f"CIFAR-10, binary version in cifar-10-binary.tar.gz{ending}"


def test_a_changed_source_is_read_again(cifar10, opened, caplog):
  folder, expected = cifar10
  opened(folder)
  path = folder / "test_batch.bin"
  images = expected[2][::-1]
  path.write_bytes(tiny_sets.cifar_bytes(images, expected[3]))
  os.utime(path, (1, 1))
  assert_holds(opened(folder), (*expected[:2], images, expected[3]))
  assert "have changed" in caplog.text
  assert opened(folder).source.endswith("from the cache")


def test_a_damaged_cache_is_made_again(cifar10, opened, tmp_path, caplog):
  folder, expected = cifar10
  opened(folder)
  (path,) = (tmp_path / "cache").glob("cifar10-*.npz")
  content = bytearray(path.read_bytes())
  content[200] ^= 1
  path.write_bytes(content)
  again = opened(folder)
  assert_holds(again, expected)
  assert not again.source.endswith("from the cache")
  assert "Bad CRC-32" in caplog.text
  assert opened(folder).source.endswith("from the cache")


def test_without_a_path_the_cache_serves_while_its_source_is_there(
  cifar10, opened, tmp_path, monkeypatch
):
  folder, expected = cifar10
  opened(folder)
  found = opened("")
  assert_holds(found, expected)
  assert found.source == "CIFAR-10, binary version in cifar-10-batches-bin, from the cache"
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  folder.rename(tmp_path / "moved")
  with pytest.raises(UserError, match="config.data.path is not set: name .* downloads cifar10"):
    opened("")
  with pytest.raises(UserError, match="cifar-10-batches-bin does not exist"):
    opened(folder)  # a path that is wrong stays an error, cache or not


def test_without_a_path_no_other_set_is_taken_for_cifar10(opened, tmp_path, monkeypatch):
  """One's own set, opened through cifar10's config, is in the cache under that name too."""
  write_tfds(tmp_path / "1.0.0", name="flowers")
  assert opened(tmp_path / "1.0.0").source == "TFDS flowers 1.0.0, splits train and test"
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(UserError, match="config.data.path is not set: name .* downloads cifar10"):
    opened("")


def test_a_cache_that_cannot_be_written_is_one_warning(cifar10, opened, tmp_path, caplog):
  folder, expected = cifar10
  (tmp_path / "file").write_text("in the way")
  assert_holds(opened(folder, cache=tmp_path / "file" / "cache"), expected)
  warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
  assert len(warnings) == 1 and "cannot be written" in warnings[0].getMessage()


def test_threads_that_store_at_once_all_get_the_set(cifar10, opened, tmp_path, caplog):
  folder, expected = cifar10
  with ThreadPoolExecutor(8) as pool:
    for found in pool.map(lambda _: opened(folder), range(24)):
      assert_holds(found, expected)
  assert [path.name[:8] for path in (tmp_path / "cache").iterdir()] == ["cifar10-"]
  assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_processes_that_store_at_once_all_get_the_set(tmp_path, opened):
  expected = write_tfds(tmp_path / "3.0.2")
  code = (
    "import sys; from jaxspeed.data.memory.arrays import open_arrays\n"
    "a = open_arrays(name='cifar10', path=sys.argv[1], cache=sys.argv[2], classes=10)\n"
    "print(a.train_images.sum(), a.eval_labels.tolist())"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "3.0.2"), str(tmp_path / "cache")]
  processes = [
    subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(3)
  ]
  for process in processes:
    out, err = process.communicate(timeout=60)
    assert (out, err) == (f"{expected[0].sum()} [2]\n", "")
  assert len(list((tmp_path / "cache").iterdir())) == 1
  found = opened(tmp_path / "3.0.2")
  assert_holds(found, expected)
  assert found.source.endswith("from the cache")


def test_no_tensorflow_and_no_jax_is_imported(tmp_path):
  write_tfds(tmp_path / "3.0.2")
  code = (
    "import sys; from jaxspeed.data.memory.arrays import open_arrays\n"
    "open_arrays(name='cifar10', path=sys.argv[1], cache=sys.argv[2], classes=10)\n"
    "heavy = {'tensorflow', 'tensorflow_datasets', 'torch', 'jax', 'sklearn'}\n"
    "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
  )
  command = [sys.executable, "-c", code, str(tmp_path / "3.0.2"), str(tmp_path / "cache")]
  assert subprocess.run(command, timeout=60, capture_output=True, text=True).stderr == ""


# TFDS


def test_tfds_folders(tmp_path, opened):
  expected = write_tfds(tmp_path / "cifar10" / "3.0.2")
  for path in (tmp_path, tmp_path / "cifar10", tmp_path / "cifar10" / "3.0.2"):
    found = opened(path)
    assert_holds(found, expected)
    assert found.class_names == CIFAR_NAMES
    assert found.source.startswith("TFDS cifar10 3.0.2, splits train and test")
  assert found.source.endswith("from the cache")


def test_a_missing_shard_is_named(tmp_path, opened):
  write_tfds(tmp_path / "3.0.2")
  (tmp_path / "3.0.2" / "cifar10-train.tfrecord-00001-of-00002").unlink()
  with pytest.raises(UserError, match="tfrecord-00001-of-00002 cannot be read .*not complete"):
    opened(tmp_path / "3.0.2")


def test_a_damaged_shard_is_named_and_not_stored(tmp_path, opened):
  write_tfds(tmp_path / "3.0.2")
  path = tmp_path / "3.0.2" / "cifar10-test.tfrecord-00000-of-00001"
  content = bytearray(path.read_bytes())
  content[60] ^= 1
  path.write_bytes(content)
  with pytest.raises(UserError, match="cifar10-test.tfrecord-00000-of-00001 is damaged: record 0"):
    opened(tmp_path / "3.0.2")
  assert not (tmp_path / "cache").exists()


def test_without_a_path_tfds_prepares_the_set(tmp_path, opened, monkeypatch):
  expected = write_tfds(tmp_path / "data" / "cifar10" / "3.0.2")
  asked = []

  def builder(name, file_format):
    asked.append((name, file_format))
    folder = str(tmp_path / "data" / "cifar10" / "3.0.2")
    return types.SimpleNamespace(data_dir=folder, download_and_prepare=lambda: None)

  module = types.ModuleType("tensorflow_datasets")
  module.builder = builder
  module.__spec__ = types.SimpleNamespace(name="tensorflow_datasets")
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
  assert_holds(opened(""), expected)
  assert opened("").source.endswith("from the cache") and asked == [("cifar10", "tfrecord")]


def test_a_download_that_fails_is_told_in_one_line(tmp_path, opened, monkeypatch):
  def builder(name, file_format):
    raise ConnectionError("Failed to resolve 'www.cs.toronto.edu'\nand much more")

  module = types.ModuleType("tensorflow_datasets")
  module.builder = builder
  module.__spec__ = types.SimpleNamespace(name="tensorflow_datasets")
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
  with pytest.raises(UserError) as caught:
    opened("")
  assert "could not prepare cifar10 (ConnectionError: Failed to resolve" in str(caught.value)
  assert "\n" not in str(caught.value) and "much more" not in str(caught.value)


# One's own arrays


@pytest.mark.parametrize("split", ["val", "validation", "test"])
def test_own_arrays_in_two_splits(tmp_path, opened, split):
  images = tiny_sets.random_images(0, 9, height=6, width=5)
  labels = np.array([0, 1, 2, 3, 4, 9, 9, 0, 1], np.uint8)
  write_npy(tmp_path / "train", images[:6], labels[:6])
  write_npy(tmp_path / split, images[6:], labels[6:].astype(np.int64))
  found = opened(tmp_path)
  assert_holds(found, (images[:6], labels[:6], images[6:], labels[6:]))
  assert found.class_names == tuple("0123456789")
  assert found.source == f"{tmp_path.name}: train and {split}"
  assert not (tmp_path / "cache").exists()  # they are plain arrays already


def test_a_class_without_training_images_is_refused(tmp_path, opened):
  images = tiny_sets.random_images(0, 9, height=6, width=5)
  write_npy(tmp_path / "train", images[:4], np.array([0, 1, 0, 1]))
  write_npy(tmp_path / "val", images[4:], np.array([0, 2, 2, 3, 2]))
  with pytest.raises(UserError, match=r"no training image has the class of .*: 2 \(3\), 3 \(1\)"):
    opened(tmp_path)
  opened(tmp_path, tune=True)  # which does not read those


def test_of_flat_arrays_the_same_share_of_each_class_is_held_out(tmp_path, opened):
  numbers = np.arange(43)
  labels = numbers % 3  # 15, 14 and 14 images
  images = np.broadcast_to(numbers[:, None, None, None], (43, 4, 4, 3)).astype(np.uint8)
  write_npy(tmp_path, images, labels)
  found, again = (opened(tmp_path, classes=3, share=0.2) for _ in range(2))
  assert np.bincount(found.eval_labels).tolist() == [3, 3, 3]  # 2.8 is 3
  held_out = found.eval_images[:, 3, 3, 2]
  assert sorted([*found.train_images[:, 0, 0, 0], *held_out]) == list(range(43))
  np.testing.assert_array_equal(found.train_images[:, 0, 0, 0] % 3, found.train_labels)
  np.testing.assert_array_equal(held_out % 3, found.eval_labels)
  np.testing.assert_array_equal(held_out, again.eval_images[:, 3, 3, 2])
  # By the pixels, whatever the order: a picture that is there twice is on one side only.
  order = np.random.default_rng(1).permutation(43)
  write_npy(tmp_path / "other", images[order], labels[order])
  other = opened(tmp_path / "other", classes=3, share=0.2)
  assert set(other.eval_images[:, 0, 0, 0]) == set(held_out)
  line = "9 of 43 images, 20 % of each class, are held out for evaluation"
  assert found.source == f"{tmp_path.name}: arrays; {line}"
  whole = opened(tmp_path, classes=3, share=1)
  assert whole.counts == (43, 43) and whole.source.endswith(
    "; all 43 images are evaluated (data.hold_out=1)"
  )


@pytest.mark.parametrize("shape", [(20, 4, 5), (20, 4, 5, 1)])
def test_grey_images_are_repeated_to_three_channels(tmp_path, opened, shape):
  grey = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
  write_npy(tmp_path / "train", grey, np.arange(20) % 2)
  write_npy(tmp_path / "val", grey, np.arange(20) % 2)
  found = opened(tmp_path)
  for channel in range(3):
    np.testing.assert_array_equal(found.train_images[..., channel], grey.reshape(20, 4, 5))
  assert found.notes == ("all 40 images are grey: repeated to three channels",)
  write_npy(tmp_path / "val", np.repeat(grey.reshape(20, 4, 5, 1), 3, -1), np.arange(20) % 2)
  assert opened(tmp_path).notes == ("20 of 40 images are grey: repeated to three channels",)
  assert opened(tmp_path, tune=True).notes == (
    "all 20 images are grey: repeated to three channels",
  )


def test_classes_txt_names_the_classes(tmp_path, opened):
  write_npy(tmp_path, tiny_sets.random_images(0, 10, 4, 4), np.arange(10) % 3)
  (tmp_path / "classes.txt").write_text("cat\ndog\nred fox\n\n")
  assert opened(tmp_path, classes=3).class_names == ("cat", "dog", "red fox")
  with pytest.raises(UserError, match="name 3 classes .* is 10: set --config.data.classes=3"):
    opened(tmp_path, classes=10)
  (tmp_path / "classes.txt").write_bytes("\ufeffcat\r\ndog\r\nred fox".encode())  # of Windows
  assert opened(tmp_path, classes=3).class_names == ("cat", "dog", "red fox")
  (tmp_path / "classes.txt").write_text("cat\ndog\n")
  with pytest.raises(UserError, match="go up to 2, but it has names for only 2 classes"):
    opened(tmp_path, classes=2)


@pytest.mark.parametrize(
  ("images", "labels", "message"),
  [
    (np.zeros((4, 3, 3, 3), np.float32), np.zeros(4, int), "images.npy is float32 of shape"),
    (
      np.zeros((4, 3, 3, 4), np.uint8),
      np.zeros(4, int),
      r"images.npy is uint8 of shape \(4, 3, 3,",
    ),
    (np.zeros((4, 27), np.uint8), np.zeros(4, int), r"images.npy is uint8 of shape \(4, 27\)"),
    (np.zeros((4, 3, 3, 3), np.uint8), np.zeros(4), "labels.npy is float64 of shape"),
    (np.zeros((4, 3, 3, 3), np.uint8), np.zeros(5, int), r"labels.npy .*\(5,\).* the 4 images"),
    (
      np.zeros((4, 3, 3, 3), np.uint8),
      np.zeros((4, 1), int),
      r"labels.npy is int64 of shape \(4, 1",
    ),
    (np.zeros((0, 3, 3, 3), np.uint8), np.zeros(0, int), "labels.npy .* at least one"),
    (np.zeros((1, 3, 3, 3), np.uint8), np.zeros(1, int), "1 image, too few to hold one out"),
    (np.zeros((4, 0, 3, 3), np.uint8), np.zeros(4, int), r"images.npy is uint8 of shape \(4, 0"),
    (np.zeros((4, 3, 3, 3), np.uint8), np.array([0, 0, -1, 2]), "a label of .* is -1"),
    (
      np.zeros((4, 3, 3, 3), np.uint8),
      np.array([0, 1, 2, 2**40]),
      "label 1099511627776: labels count",
    ),
    (
      np.zeros((4, 3, 3, 3), np.uint8),
      np.array([0, 0, -(2**40), 2]),
      "a label of .* is -2147483648",
    ),
  ],
)
def test_own_arrays_of_the_wrong_kind_are_named(tmp_path, opened, images, labels, message):
  write_npy(tmp_path, images, labels)
  with pytest.raises(UserError, match=message):
    opened(tmp_path)


BAD_NAMES = {
  b"cat\n\ndog": "classes.txt, line 2, is empty",
  b"cat\ndog\ncat\n": "names the classes 0 and 2 both 'cat'",
  b"cat\nd\xffg\n": "classes.txt, line 2, is not UTF-8",
  b"cat\nd\x1b[2Jg\n": "classes.txt, line 2, .* holds a control character",
  "cat\nd\u2028g\n".encode(): "classes.txt, line 2, .* holds a control character",
  "cat\nd\u0085g\n".encode(): "classes.txt, line 2, .* holds a control character",
}


@pytest.mark.parametrize("content", BAD_NAMES)
def test_names_that_would_shift_others_are_refused(tmp_path, opened, content):
  write_npy(tmp_path, tiny_sets.random_images(0, 10, 4, 4), np.arange(10) % 2)
  (tmp_path / "classes.txt").write_bytes(content)
  with pytest.raises(UserError, match=BAD_NAMES[content]) as error:
    opened(tmp_path, classes=2)
  assert str(error.value).isprintable()


def test_own_arrays_may_decide_the_number_of_classes(tmp_path, opened):
  write_npy(tmp_path, tiny_sets.random_images(0, 12, 4, 4), np.arange(12) % 4)
  found = opened(tmp_path, name="digits", follow=True)
  assert found.is_own and found.class_names == tuple("0123")
  (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
  assert opened(tmp_path, follow=True).class_names == tuple("abcde")
  (tmp_path / "classes.txt").unlink()
  np.save(tmp_path / "labels.npy", np.arange(12) % 4 * 85)
  with pytest.raises(UserError, match="go up to 255, but use only 4 numbers: .*classes=256"):
    opened(tmp_path, follow=True)
  assert len(opened(tmp_path, classes=256, follow=True).class_names) == 256
  np.save(tmp_path / "labels.npy", np.zeros(12, int))
  for follow in (True, False):
    with pytest.raises(UserError, match="are all 0: at least two classes"):
      opened(tmp_path, classes=3, follow=follow)


def test_known_sets_do_not_decide_it(cifar10, opened):
  found = opened(cifar10[0], follow=True)
  assert (found.name, found.is_own) == ("cifar10", False)
  with pytest.raises(UserError, match="set --config.data.classes=10"):
    opened(cifar10[0], follow=True, classes=100)


def test_pickled_objects_are_never_loaded(tmp_path, opened):
  class Trap:
    def __reduce__(self):
      return (open, (str(tmp_path / "sprung"), "w"))

  write_npy(tmp_path, np.zeros((4, 3, 3, 3), np.uint8), np.zeros(4, int))
  with open(tmp_path / "labels.npy", "wb") as file:
    np.save(file, np.array([Trap()], object), allow_pickle=True)
  with pytest.raises(UserError, match="labels.npy is not a .npy file of numbers"):
    opened(tmp_path)
  (tmp_path / "labels.npy").write_bytes(pickle.dumps(Trap()))
  with pytest.raises(UserError, match="labels.npy is not a .npy file of numbers"):
    opened(tmp_path)
  assert not (tmp_path / "sprung").exists()


def test_files_that_are_no_npy_are_named(tmp_path, opened):
  write_npy(tmp_path, np.zeros((40, 3, 3, 3), np.uint8), np.zeros(40, int))
  whole = (tmp_path / "images.npy").read_bytes()
  np.savez(tmp_path / "archive.npz", a=np.zeros(3))
  for content in (b"", whole[:50], whole[:-1], (tmp_path / "archive.npz").read_bytes()):
    (tmp_path / "images.npy").write_bytes(content)
    with pytest.raises(UserError, match="images.npy is not a .npy file of numbers"):
      opened(tmp_path)
  (tmp_path / "images.npy").write_bytes(whole)
  (tmp_path / "labels.npy").unlink()
  with pytest.raises(UserError, match="labels.npy is missing"):
    opened(tmp_path)


def test_own_arrays_need_one_size_and_two_splits(tmp_path, opened):
  write_npy(tmp_path / "train", tiny_sets.random_images(0, 4, 4, 5), np.arange(4) // 2)
  with pytest.raises(UserError, match="has train/ but none of val/.*tune_on=validation"):
    opened(tmp_path)
  tuned = opened(tmp_path, tune=True)
  assert (len(tuned.train_labels), len(tuned.eval_labels)) == (2, 2)
  write_npy(tmp_path / "val", tiny_sets.random_images(0, 4, 4, 6), np.arange(4) // 2)
  with pytest.raises(UserError, match="have 4 x 5 pixels and those for evaluation 4 x 6"):
    opened(tmp_path)


# A hold-out for tuning


def numbered(labels, seed=0):
  """A set whose images are random, with four evaluation images of another kind: all of them 7."""
  return Arrays(
    train_images=tiny_sets.random_images(seed, len(labels), height=4, width=4),
    train_labels=np.array(labels, np.int32),
    eval_images=np.full((4, 4, 4, 3), 7, np.uint8),
    eval_labels=np.full(4, 9, np.int32),
    class_names=CIFAR_NAMES,
    source="a set",
  )


def rows(images, labels):
  """The examples, without their order."""
  return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def test_a_tenth_of_each_class_takes_the_place_of_the_test_set():
  labels = np.arange(1_005) % 9  # classes of 111 and 112 images
  arrays = numbered(labels)
  found = hold_out(arrays)
  assert (len(found.train_labels), len(found.eval_labels)) == (906, 99)
  line = "99 of 1,005 training images, 10 % of each class, are held out for tuning"
  assert found.source == f"a set; {line}" and found.class_names == CIFAR_NAMES
  # The smallest digests of each class, as Python's integers compare.
  by_digest = sorted(
    range(1_005),
    key=lambda i: int.from_bytes(
      hashlib.blake2b(arrays.train_images[i].tobytes(), digest_size=8).digest(), "little"
    ),
  )
  out = sorted(i for label in range(9) for i in [i for i in by_digest if labels[i] == label][:11])
  rest = sorted(set(range(1_005)) - set(out))
  np.testing.assert_array_equal(found.eval_images, arrays.train_images[out])
  np.testing.assert_array_equal(found.eval_labels, labels[out])
  np.testing.assert_array_equal(found.train_images, arrays.train_images[rest])
  np.testing.assert_array_equal(found.train_labels, labels[rest])
  assert found.train_labels.dtype == found.eval_labels.dtype == np.int32


@pytest.mark.parametrize(
  "counts, share, held_out",
  [
    ((20, 200, 2_000), 0.1, (2, 20, 200)),
    ((1, 2, 3, 4, 5), 0.1, (0, 1, 1, 1, 1)),
    ((2, 3, 10), 0.99, (1, 2, 9)),  # one of each is trained on
    ((14, 15, 16), 0.1, (1, 2, 2)),  # rounded, halves up
  ],
)
def test_the_share_of_each_class(counts, share, held_out):
  arrays = numbered(np.repeat(np.arange(len(counts)), counts))
  found = hold_out(arrays, share)
  assert np.bincount(found.eval_labels, minlength=len(counts)).tolist() == list(held_out)
  single = "classes with one image are trained on but not evaluated: airplane"
  assert found.notes == ((single,) if 1 in counts else ())


def test_new_images_move_few_of_those_held_out():
  arrays = numbered(np.arange(400) % 4)
  fewer = dataclasses.replace(
    arrays, train_images=arrays.train_images[:380], train_labels=arrays.train_labels[:380]
  )
  before, after = ({each.tobytes() for each in hold_out(a).eval_images} for a in (fewer, arrays))
  assert (len(before), len(after)) == (40, 40)
  assert len(before - after) <= 8  # 20 new images, a tenth held out: 2 on average


def test_the_hold_out_is_the_same_in_another_order():
  arrays = numbered(np.arange(300) % 10)
  order = np.random.default_rng(1).permutation(300)
  shuffled = Arrays(
    train_images=arrays.train_images[order],
    train_labels=arrays.train_labels[order],
    eval_images=arrays.eval_images,
    eval_labels=arrays.eval_labels,
    class_names=CIFAR_NAMES,
    source="another format",
  )
  one, other = hold_out(arrays), hold_out(shuffled)
  assert rows(one.eval_images, one.eval_labels) == rows(other.eval_images, other.eval_labels)


def test_formats_of_a_set_have_the_same_hold_out(cifar10, tmp_path, opened):
  folder, (images, labels, test_images, test_labels) = cifar10
  order = np.random.default_rng(1).permutation(15)
  shards = [tiny_sets.example(images[i], int(labels[i])) for i in order]
  test = [tiny_sets.example(test_images[i], int(test_labels[i])) for i in range(3)]
  tiny_sets.write_tfds(
    tmp_path / "3.0.2", {"train": [shards], "test": [test]}, class_names=CIFAR_NAMES
  )
  write_npy(tmp_path / "npy" / "train", images[::-1], labels[::-1])
  write_npy(tmp_path / "npy" / "val", test_images, test_labels)
  found = [hold_out(opened(path)) for path in (folder, tmp_path / "3.0.2", tmp_path / "npy")]
  for each in found:
    assert each.eval_labels.shape == (5,) and each.train_labels.shape == (10,)
    held_out = rows(each.eval_images, each.eval_labels)
    assert held_out == rows(found[0].eval_images, found[0].eval_labels)
  again = hold_out(opened(folder))
  np.testing.assert_array_equal(again.eval_images, found[0].eval_images)
  assert again.source.endswith(
    "from the cache; 5 of 15 training images, 10 % of each class, are held out for tuning"
  )


def test_images_that_cannot_be_held_out_and_trained_on_are_told():
  assert len(hold_out(numbered([3, 3])).eval_labels) == 1
  with pytest.raises(UserError, match="a set has 1 image for training, .*tune_on=test"):
    hold_out(numbered([3]))
  with pytest.raises(UserError, match="a set has one image of each class, so none"):
    hold_out(numbered([3, 4]))
  for share in (0, -0.1, 1.5, float("nan")):
    with pytest.raises(UserError, match=f"config.data.hold_out={share}: it must be above 0"):
      hold_out(numbered([3, 3]), share)


# Digits


def test_digits():
  from sklearn.datasets import load_digits

  found = open_arrays(name="digits", path="", cache="", classes=10)
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
  again = open_arrays(name="digits", path="", cache="", classes=10)
  np.testing.assert_array_equal(found.eval_labels, again.eval_labels)


def test_digits_held_out_are_training_digits():
  digits = open_arrays(name="digits", path="", cache="", classes=10)
  found = hold_out(digits)
  assert (len(found.train_labels), len(found.eval_labels)) == (1_348, 152)
  assert sorted(
    rows(found.train_images, found.train_labels) + rows(found.eval_images, found.eval_labels)
  ) == rows(digits.train_images, digits.train_labels)


def test_digits_have_ten_classes():
  with pytest.raises(UserError, match="name 10 classes .* is 12: set --config.data.classes=10"):
    open_arrays(name="digits", path="", cache="", classes=12)


# What is no set at all


def test_the_number_of_classes_is_checked_and_the_flag_told(tmp_path, opened):
  write_npy(tmp_path, tiny_sets.random_images(0, 74, 4, 4), np.arange(74) % 37)
  message = (
    f"labels of {tmp_path} name 37 classes (largest label 36) but config.data.classes is 10: "
    "set --config.data.classes=37."
  )
  with pytest.raises(UserError) as caught:
    opened(tmp_path)
  assert str(caught.value) == message
  assert len(opened(tmp_path, classes=40).class_names) == 40  # fewer labels than classes may be


def test_cifar10_means_ten_classes(cifar10, opened):
  with pytest.raises(UserError, match="name 10 classes .* is 100: set --config.data.classes=10"):
    opened(cifar10[0], classes=100)


def test_a_label_without_a_class_is_refused(tmp_path, opened):
  """TFDS marks images without a label by -1."""
  write_tfds(tmp_path / "3.0.2", labels=(0, 1, 2, -1))
  with pytest.raises(UserError, match="a label of .*3.0.2 is -1"):
    opened(tmp_path / "3.0.2")
  write_tfds(tmp_path / "3.0.3", labels=(0, 1, 2, 10))
  with pytest.raises(UserError, match="go up to 10, but it has names for only 10 classes"):
    opened(tmp_path / "3.0.3")


def test_paths_that_hold_no_set_are_named(tmp_path, opened):
  (tmp_path / "empty").mkdir()
  (tmp_path / "photos" / "train" / "cat").mkdir(parents=True)
  (tmp_path / "notes.txt").write_text("no set")
  (tmp_path / "cifar-10-batches-py").mkdir()
  (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps({}))
  for path, message in {
    "nowhere": "nowhere does not exist; it names a folder or .tar.gz archive of CIFAR's binary",
    "empty": "empty is empty; it names .*dataset_info.json.*train/images.npy",
    "photos": "photos has folders of images, and this recipe trains from memory: choose",
    "notes.txt": "notes.txt cannot be read as an archive",
    "cifar-10-batches-py": "cifar-10-batches-py is the pickled Python version",
  }.items():
    with pytest.raises(UserError, match=message):
      opened(tmp_path / path)


def test_an_unknown_name_lists_the_known_ones(opened):
  with pytest.raises(
    UserError, match="='cifar11': set config.data.path, or choose one of cifar10, cifar100, digits"
  ):
    opened("", name="cifar11")


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  expected = write_tfds(tmp_path / "3.0.2")
  assert_holds(open_arrays(name="cifar10", path="~/3.0.2", cache="", classes=10), expected)
  assert list((tmp_path / ".cache" / "jaxspeed" / "data").glob("cifar10-*.npz"))
