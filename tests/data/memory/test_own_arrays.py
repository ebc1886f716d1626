"""A user's own arrays: splits, names of classes, and what is refused."""

import pickle

import numpy as np
import pytest
import tiny_sets
from array_sets import assert_holds, write_npy

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
  assert found.source == f"{tmp_path.name}: train and {split}"
  assert not (tmp_path / "cache").exists()  # they are plain arrays already


def test_a_class_without_training_images_is_refused(tmp_path, opened):
  images = tiny_sets.random_images(0, 9, height=6, width=5)
  write_npy(tmp_path / "train", images[:4], np.array([0, 1, 0, 1]))
  write_npy(tmp_path / "val", images[4:], np.array([0, 2, 2, 3, 2]))
  with pytest.raises(UserError, match=r"no training image has the class of .*: 2 \(3\), 3 \(1\)"):
    opened(tmp_path)
  opened(tmp_path, tune=True)  # which does not read those


@pytest.mark.parametrize("shape", [(20, 4, 5), (20, 4, 5, 1)])
def test_grey_images_are_repeated_to_three_channels(tmp_path, opened, shape):
  grey = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
  write_npy(tmp_path / "train", grey, np.arange(20) % 2)
  write_npy(tmp_path / "val", grey, np.arange(20) % 2)
  found = opened(tmp_path)
  for channel in range(3):
    np.testing.assert_array_equal(found.train_images[..., channel], grey.reshape(20, 4, 5))


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


def pixels(*shape):
  return np.zeros(shape, np.uint8)


@pytest.mark.parametrize(
  ("images", "labels", "message"),
  [
    (pixels(4, 3, 3, 3).astype(np.int32), [0] * 4, "images.npy is int32 of shape"),
    (pixels(4, 27), [0] * 4, r"images.npy is uint8 of shape \(4, 27\)"),
    (pixels(4, 3, 3, 3), [0] * 5, r"labels.npy .*\(5,\).* of shape \(4,\)"),
    (pixels(2, 3, 3, 3), [0, 1], "has one image of each class, so none can be held out"),
    (pixels(4, 3, 3, 3), [0, 1, 2, 2**40], "has the label 1099511627776: labels count"),
    (pixels(4, 3, 3, 3), [0, 0, -(2**40), 2], "has the label -1099511627776"),
  ],
)
def test_own_arrays_of_the_wrong_kind_are_named(tmp_path, opened, images, labels, message):
  write_npy(tmp_path, images, labels)
  with pytest.raises(UserError, match=message):
    opened(tmp_path)


BAD_NAMES = {
  b"cat\n\ndog": "classes.txt, line 2, is empty",
  b"cat\tx\ndog": "classes.txt, line 1, is empty or has a tab",
  b"cat\ndog\ncat\n": "look alike, 0: 'cat' and 2: 'cat'",
  b"cat\nd\xffg\n": "classes.txt, line 2, is not UTF-8",
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


def test_own_arrays_need_one_size_and_two_splits(tmp_path, opened):
  write_npy(tmp_path / "train", tiny_sets.random_images(0, 4, 4, 5), np.arange(4) // 2)
  with pytest.raises(UserError, match="has train/ but none of val/.*tune_on=validation"):
    opened(tmp_path)
  tuned = opened(tmp_path, tune=True)
  assert (len(tuned.train_labels), len(tuned.eval_labels)) == (2, 2)
  write_npy(tmp_path / "val", tiny_sets.random_images(0, 4, 4, 6), np.arange(4) // 2)
  with pytest.raises(UserError, match="have 4 x 5 pixels and those for evaluation 4 x 6"):
    opened(tmp_path)
