"""Class weights against scikit-learn's, and the balanced order of an epoch."""

import numpy as np
import pytest

from jaxspeed.data.batch import balanced_order, class_weights

COUNTS = (3, 0, 20, 70)  # no image of class 1
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), COUNTS)).astype(np.int32)


def epochs(number, *, images=93, seed=0, flip="none", labels=LABELS):
  """The orders of the first epochs, one after the other."""
  orders = [
    balanced_order(labels, seed, epoch, images=images, flip=flip) for epoch in range(number)
  ]
  return [np.concatenate(parts) for parts in zip(*((o.index, o.flip) for o in orders), strict=True)]


@pytest.mark.equivalence
def test_the_weights_are_scikit_learns():
  utils = pytest.importorskip("sklearn.utils.class_weight")
  expected = utils.compute_class_weight("balanced", classes=np.unique(LABELS), y=LABELS)
  weights = class_weights(np.array(COUNTS))
  np.testing.assert_allclose(weights[[0, 2, 3]], expected, rtol=1e-15)
  assert weights[1] == 0
  assert weights[LABELS].mean() == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("images", [93, 92, 64, 2])
def test_every_class_comes_equally_often(images):
  # Three classes have images: 92 and 64 places do not divide, 2 are fewer than the classes.
  index, _ = epochs(7, images=images)
  for begin in range(0, len(index), images):
    found = np.bincount(LABELS[index[begin : begin + images]], minlength=4)[[0, 2, 3]]
    assert found.max() - found.min() <= 1
  found = np.bincount(LABELS[index], minlength=4)
  assert found[1] == 0 and np.ptp(found[[0, 2, 3]]) <= 1


def test_images_of_a_class_come_evenly_in_an_epoch_and_others_in_the_next():
  index, _ = epochs(2)
  for epoch in (index[:93], index[93:]):
    for label in (0, 2, 3):
      came = np.bincount(epoch[LABELS[epoch] == label], minlength=len(LABELS))[label == LABELS]
      assert np.ptp(came) <= 1, label
  # 31 places of 70 images.
  first, second = (set(epoch[LABELS[epoch] == 3]) for epoch in (index[:93], index[93:]))
  assert len(first) == len(second) == 31 and 5 < len(first & second) < 25


def test_orders_are_the_same_on_every_machine():
  # Stated here, so that no version of NumPy and no change of the code resumes a run differently.
  labels = np.array([0] * 2 + [1] * 5 + [2] * 30)
  found = balanced_order(labels, 3, 1, images=12, flip="random")
  assert found.index.tolist() == [4, 0, 5, 1, 1, 2, 8, 0, 17, 19, 3, 35]
  assert found.flip.astype(int).tolist() == [1, 0, 0, 1, 1, 0, 1, 1, 0, 1, 0, 0]


def test_flips_are_drawn_for_each_place():
  _, none = epochs(1)
  assert not none.any()
  index, flip = epochs(40, flip="random")
  rare = flip[LABELS[index] == 0]
  # 1,240 flips: half of them within five standard deviations.
  assert abs(rare.mean() - 0.5) < 5 * 0.5 / len(rare) ** 0.5
