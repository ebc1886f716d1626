"""The share of a data set in memory that is held out."""

import hashlib

import numpy as np
import pytest
import tiny_sets
from tiny_sets import CIFAR_NAMES, numbered, rows, write_npy

from jaxspeed.data.memory.arrays import hold_out
from jaxspeed.errors import UserError


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


def test_images_that_cannot_be_held_out_and_trained_on_are_told():
  assert len(hold_out(numbered([3, 3])).eval_labels) == 1
  for labels in ([], [3], [3, 4]):
    with pytest.raises(UserError, match="a set has no two images of a class, so none"):
      hold_out(numbered(labels))


def test_of_flat_arrays_a_share_is_held_out(tmp_path, opened):
  labels = np.arange(43) % 3  # 15, 14 and 14 images
  path = write_npy(tmp_path / "flat", tiny_sets.random_images(0, 43, 4, 4), labels)
  found = opened(path, classes=3, hold_out=0.2)
  assert np.bincount(found.eval_labels).tolist() == [3, 3, 3]  # 2.8 is 3
  line = "9 of 43 images, 20 % of each class, are held out for evaluation"
  assert found.source == f"flat: arrays; {line}"
  whole = opened(path, classes=3, hold_out=1)
  assert whole.counts == (43, 43)
  assert whole.source.endswith("; all 43 images are evaluated (data.hold_out=1)")
