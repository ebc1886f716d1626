"""Training on classes of uneven sizes: class weights, and an order that balances the classes."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from jaxspeed.data.batch import ORDER, Order, epoch_flips, random_stream

# Classes that differ more than this in their numbers of training images are reported.
_UNEVEN = 10


def class_weights(counts: Int[np.ndarray, "classes"]) -> Float64[np.ndarray, "classes"]:
  """Return images / (classes * images of the class), and 0 for a class without images.

  These are scikit-learn's `compute_class_weight("balanced", ...)`, which counts only the classes
  that have images. Their mean over the images is 1.

  Args:
    counts: the number of training images of each class.
  """
  counts = np.asarray(counts, np.int64)
  even = int(counts.sum()) / int(np.count_nonzero(counts))
  return np.where(counts > 0, even / np.maximum(counts, 1), 0.0)


def balanced_order(
  labels: Int[np.ndarray, "n"], seed: int, epoch: int, *, images: int, flip: str
) -> Order:
  """Return the order of an epoch in which every class comes equally often.

  PyTorch's WeightedRandomSampler draws each image on its own, so that a class comes equally often
  only in expectation. Here the run deals its places to the classes in turn, so that their numbers
  differ by at most 1, in an epoch and in the whole run. In an epoch a class fills its places from
  one permutation of its images, again and again. This takes 0.2 s for ImageNet.

  Args:
    labels: the class of each training image.
    seed: the run's seed.
    epoch: number from 0.
    images: the number of places in every epoch.
    flip: "none"; "random" flips each place with probability 1/2; "alternating" flips an image every
      other time that it comes in an epoch, and begins the other way in the next.

  Returns:
    NumPy arrays of length `images`.
  """
  random = random_stream(seed, epoch, ORDER)
  shuffled = random.permutation(len(labels))
  by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
  _, first, count = np.unique(labels[by_class], return_index=True, return_counts=True)
  place = random.permutation(images)
  number = (epoch * images + place) % len(count)
  times, row = np.divmod(place // len(count), count[number])
  index = by_class[first[number] + row]
  if flip != "alternating":
    return Order(index.astype(np.int32), epoch_flips(seed, epoch, images, flip=flip))
  flips = epoch_flips(seed, epoch, len(labels), flip=flip)[index] ^ (times % 2 == 1)
  return Order(index.astype(np.int32), flips)


def uneven_line(counts: Int[np.ndarray, "classes"], names: Sequence[str]) -> list[str]:
  """Return a line that names the field for uneven classes; none where sizes are alike.

  Args:
    counts: the number of training images of each class.
    names: the names of the classes.
  """
  present = np.flatnonzero(counts)
  few, many = (int(present[pick(counts[present])]) for pick in (np.argmin, np.argmax))
  if counts[many] <= _UNEVEN * counts[few]:
    return []
  return [
    f"uneven classes: {names[many]} has {counts[many]:,} training images and {names[few]} "
    f"{counts[few]:,}; --config.data.balance=sampling shows every class equally often, "
    "--config.data.balance=weights weights the loss"
  ]
