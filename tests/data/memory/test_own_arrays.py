"""A user's own arrays: splits, names of classes, statistics, and what is refused."""

import os
import pickle
import struct

import numpy as np
import pytest
import tiny_sets
from tiny_sets import assert_holds, write_npy

from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.data.memory.sources import read_npy
from jaxspeed.errors import UserError


@pytest.mark.parametrize("split", ["val", "validation", "test"])
def test_own_arrays_in_two_splits(tmp_path, opened, split):
  images = tiny_sets.random_images(0, 9, height=6, width=5)
  labels = np.array([0, 1, 2, 3, 4, 9, 9, 0, 1], np.uint8)
  write_npy(tmp_path / "train", images[:6], labels[:6])
  write_npy(tmp_path / split, images[6:], labels[6:].astype(np.int64))
  found = opened(tmp_path)
  assert_holds(found, (images[:6], labels[:6], images[6:], labels[6:]))
  assert found.class_names == tuple("0123456789")
  assert found.source == f"{tmp_path.name}: splits train and {split}"
  assert not (tmp_path / "cache").exists()  # they are plain arrays already


@pytest.mark.parametrize("shape", [(20, 4, 5), (20, 4, 5, 1)])
def test_grey_images_are_repeated_to_three_channels(tmp_path, opened, shape):
  grey = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
  for split in ("train", "val"):
    write_npy(tmp_path / split, grey, np.arange(20) % 2)
  found = opened(tmp_path)
  for channel in range(3):
    np.testing.assert_array_equal(found.train_images[..., channel], grey.reshape(20, 4, 5))


def test_statistics_are_exact():
  images = np.random.default_rng(0).integers(0, 256, (1_500, 9, 9, 3), np.uint8)
  images[..., 2] = 7
  labels = np.zeros(1_500, np.int32)
  arrays = Arrays(images, labels, images[:0], labels[:0], (), "")
  mean, std = arrays.channel_statistics()
  pixels = images.reshape(-1, 3).astype(np.float64)
  np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=1e-12)
  np.testing.assert_allclose(std[:2], pixels.std(axis=0)[:2], rtol=1e-12)
  assert (mean[2], std[2]) == (7.0, 1.0)


@pytest.mark.parametrize(
  ("content", "classes", "found"),
  [
    (b"cat\ndog\nred fox\n\n", 3, ("cat", "dog", "red fox")),
    ("\ufeffcat\r\ndog\r\nred fox".encode(), 3, ("cat", "dog", "red fox")),  # of Windows
    (b"cat\ndog\nfox", 10, "name 3 classes .* is 10: set --config.data.classes=3"),
    (b"cat\ndog\n", 2, "go up to 2, but it has names for only 2 classes"),
    (b"cat\n\ndog", 3, "classes.txt, line 2, is empty"),
    (b"cat\tx\ndog", 3, "classes.txt, line 1, is empty or has a tab"),
    (b"cat\ndog\ncat\n", 3, "look alike, 0: 'cat' and 2: 'cat'"),
    (b"cat\nd\xffg\n", 3, "classes.txt is not UTF-8"),
  ],
)
def test_classes_txt_names_the_classes_or_is_refused(tmp_path, opened, content, classes, found):
  write_npy(tmp_path, tiny_sets.random_images(0, 10, 4, 4), np.arange(10) % 3)
  (tmp_path / "classes.txt").write_bytes(content)
  if isinstance(found, tuple):
    assert opened(tmp_path, classes=classes).class_names == found
    return
  with pytest.raises(UserError, match=found) as error:
    opened(tmp_path, classes=classes)
  assert str(error.value).isprintable()


def pixels(*shape):
  return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
  ("images", "labels", "message"),
  [
    (pixels(4, 3, 3, 3).astype(np.int32), [0] * 4, "images.npy is int32 of shape"),
    (pixels(4, 27), [0] * 4, r"images.npy is uint8 of shape \(4, 27\)"),
    (pixels(4, 3, 3, 3), [0] * 5, r"labels.npy .*\(5,\).* of shape \(4,\)"),
    (pixels(2, 3, 3, 3), [0, 1], "has no two images of a class, so none can be held out"),
    (pixels(4, 3, 3, 3), [0, 1, 2, 2**40], "has the label 1099511627776: labels count"),
    (pixels(4, 3, 3, 3), [0, 0, -(2**40), 2], "has the label -1099511627776"),
  ],
)
def test_own_arrays_of_the_wrong_kind_are_named(tmp_path, opened, images, labels, message):
  write_npy(tmp_path, images, labels)
  with pytest.raises(UserError, match=message):
    opened(tmp_path)


def test_own_arrays_may_decide_the_number_of_classes(tmp_path, opened):
  write_npy(tmp_path, tiny_sets.random_images(0, 12, 4, 4), np.arange(12) % 4)
  found = opened(tmp_path, name="digits", follow=True)
  assert found.class_names == tuple("0123")
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


def test_splits_that_do_not_fit_each_other_are_refused(tmp_path, opened):
  write_npy(tmp_path / "train", tiny_sets.random_images(0, 4, 4, 5), np.arange(4) // 2)
  with pytest.raises(UserError, match="has the split train but none of val.*tune_on=validation"):
    opened(tmp_path)
  for side, labels, sentence in (
    (6, np.arange(4) // 2, "have 4 x 5 pixels and those for evaluation 4 x 6"),
    (5, [0, 2, 3, 2], r"no training image has the class of .*: 2 \(2\), 3 \(1\)"),
  ):
    write_npy(tmp_path / "val", tiny_sets.random_images(0, 4, 4, side), np.array(labels))
    with pytest.raises(UserError, match=sentence):
      opened(tmp_path)
    tuned = opened(tmp_path, tune=True)  # which does not read those
    assert (len(tuned.train_labels), len(tuned.eval_labels)) == (2, 2)


class Trap:
  def __reduce__(self):
    return pytest.fail, ("a pickle was loaded",)


def npy(header, data=b""):
  return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def header(shape, descr="|u1"):
  return f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()


@pytest.mark.parametrize(
  "content",
  [
    npy(header("(-4, 3)"), bytes(12)),
    npy(header(f"({10**12},)"), bytes(12)),
    npy(header("(12,)"), bytes(11)),
    npy(header("(3,)", "|O"), pickle.dumps(np.array([Trap()], object))),
    npy(header("(3,)", "|U1"), bytes(12)),
    npy(b"(" * 9_000, bytes(3)),
    npy(b"{'descr': __import__('os').getcwd()}", bytes(3)),
    pickle.dumps(Trap()),
    b"PK\3\4 and so on",
    b"",
  ],
  ids=lambda content: repr(content)[:24],
)
def test_damaged_files_are_one_sentence_and_no_pickle_is_loaded(tmp_path, content):
  (tmp_path / "a.npy").write_bytes(content)
  with pytest.raises(UserError, match=r"a.npy is not a .npy file of numbers \(") as error:
    read_npy(tmp_path / "a.npy")
  assert len(str(error.value)) < 500 and str(error.value).isprintable()


def test_pipes_and_devices_are_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "a.npy")
  (tmp_path / "b.npy").symlink_to("/dev/zero")
  for path in (tmp_path / "a.npy", tmp_path / "b.npy", tmp_path):
    with pytest.raises(UserError, match=r"\(it is no regular file\)"):
      read_npy(path)
  with pytest.raises(UserError, match="c.npy is not .*No such file"):
    read_npy(tmp_path / "c.npy")
