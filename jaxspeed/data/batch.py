"""Batches of images and labels, the order in which an epoch takes them, and weights of classes.

The order of an epoch depends on (seed, epoch) alone, so a run can resume at any step and sees the
same global batches on any number of devices.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, UInt8, UInt32

# The purposes of random numbers: a key is folded with one of them, then with the epoch or step.
ORDER, AUGMENT, INIT, WARMUP, FLIP, CUTMIX, PROXY, DROPOUT = range(8)
COLOR, ERASING, MIX, RANDAUGMENT, CHUNKS, OWN = range(8, 14)


def random_stream(seed: int, *numbers: int) -> np.random.RandomState:
  """Return a stream that NumPy has frozen (NEP 19): equal on all machines and versions."""
  return np.random.RandomState([seed % 2**32, *numbers])


def epoch_flips(seed: int, epoch: int, images: int, *, flip: str) -> Bool[np.ndarray, "n"]:
  """Return which images of a stream an epoch flips left to right, by number.

  Args:
    seed: the run's seed.
    epoch: number from 0.
    images: size of the data set.
    flip: "none", "random" or "alternating", as in `epoch_order`.
  """
  if flip == "none":
    return np.zeros(images, bool)
  bits = random_stream(seed, epoch if flip == "random" else 0, FLIP).random_sample(images) < 0.5
  return bits ^ (flip == "alternating" and epoch % 2 == 1)


class Batch(flax.struct.PyTreeNode):
  """Images and labels of one device.

  Attributes:
    image: pixels as stored.
    label: class numbers from 0.
    mask: false for examples that do not count.
    flip: true for images that training flips left to right; None flips none.
    index: numbers of the images in their split; in training for a loss or an augmentation of the
      user's own only (`TrainSpec.uses_index`).
    learned: the labels to train on, where the user's own augmentation changed them; None: `label`,
      which accuracies always count.
    partner: labels of what augmentation mixed into the images; None before it.
    partner_weight: their weight in the loss, 0 for an image that is not mixed.
  """

  image: UInt8[Any, "n h w 3"]
  label: Int[Any, "n"]
  mask: Bool[Any, "n"]
  flip: Bool[Any, "n"] | None = None
  index: Int[Any, "n"] | None = None
  learned: Int[Any, "n"] | None = None
  partner: Int[Any, "n"] | None = None
  partner_weight: Float[Any, "n"] | None = None


def seed_key(seed: int) -> UInt32[np.ndarray, "2"]:
  """Return the data of `jax.random.key(seed)` without compiling anything."""
  return np.array([0, seed], np.uint32)


def purpose_key(
  key: UInt32[Any, "2"], purpose: int, number: Int[Array, ""] | int
) -> UInt32[Array, "2"]:
  """Return the key for one purpose (ORDER, AUGMENT, ...) and one epoch or step."""
  folded = jax.random.fold_in(jax.random.wrap_key_data(key), purpose)
  return jax.random.key_data(jax.random.fold_in(folded, number))


class Order(flax.struct.PyTreeNode):
  """The order of an epoch: the image at each position, and whether it is flipped."""

  index: Int[Any, "n"]
  flip: Bool[Any, "n"]


def epoch_order(
  key: UInt32[Array, "2"], epoch: Int[Array, ""] | int, images: int, *, flip: str
) -> Order:
  """Return a permutation of the images with their flips.

  Args:
    key: the run's key.
    epoch: number from 0.
    images: size of the data set.
    flip: "none"; "random" flips each image with probability 1/2; "alternating" does so in the
      first epoch, then swaps the flips every epoch (KellerJordan/cifar10-airbench).
  """
  # Explicit dtypes: with JAX's 64-bit mode on, the default ones would draw other numbers.
  index = jax.random.permutation(
    jax.random.wrap_key_data(purpose_key(key, ORDER, epoch)), jnp.arange(images, dtype=jnp.int32)
  )
  if flip == "none":
    return Order(index, jnp.zeros((images,), bool))
  drawn_in = epoch if flip == "random" else 0
  bits = jax.random.bernoulli(
    jax.random.wrap_key_data(purpose_key(key, FLIP, drawn_in)), jnp.float32(0.5), (images,)
  )
  if flip == "alternating":
    bits = bits ^ (epoch % 2 == 1)
  return Order(index, bits[index])


def carried_order(
  key: UInt32[Array, "2"],
  epoch: Int[Array, ""] | int,
  images: int,
  *,
  flip: str,
  used: int,
  epochs: int,
) -> Order:
  """Return an epoch of `used` images, cut from one endless sequence of permutations.

  The next epoch begins with the images that this one leaves over, and keeps the flips of their
  permutation (KellerJordan/cifar10-airbench, airbench96_faster.py).

  Args:
    key, epoch, images, flip: as in `epoch_order`, where a permutation counts as an epoch.
    used: images of an epoch, at most `images`; they are the first of the order returned.
    epochs: number of epochs of the run.
  """
  # In NumPy's int64: in long runs the product does not fit an int32.
  begins = np.divmod(np.arange(epochs, dtype=np.int64) * used, images)
  turn, offset = (jnp.asarray(x.astype(np.int32))[epoch] for x in begins)
  pair = [epoch_order(key, turn + i, images, flip=flip) for i in range(2)]
  row = jax.tree.map(lambda *parts: jnp.concatenate(parts), *pair)
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, offset, images), row)


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
    flip: as in `epoch_flips`, of the places: an image's flips do not alternate.

  Returns:
    NumPy arrays of length `images`.
  """
  random = random_stream(seed, epoch, ORDER)
  shuffled = random.permutation(len(labels))
  by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
  _, first, count = np.unique(labels[by_class], return_index=True, return_counts=True)
  place = random.permutation(images)
  number = (epoch * images + place) % len(count)
  index = by_class[first[number] + place // len(count) % count[number]]
  return Order(index.astype(np.int32), epoch_flips(seed, epoch, images, flip=flip))


def take_batch(
  images: UInt8[Array, "n h w 3"],
  labels: Int[Array, "n"],
  order: Order,
  first: Int[Array, ""] | int,
  size: int,
) -> Batch:
  """Return the `size` examples that begin at position `first` of the order."""
  part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, size), order)
  return Batch(
    image=images.at[part.index].get(mode="promise_in_bounds"),
    label=labels.at[part.index].get(mode="promise_in_bounds"),
    mask=jnp.ones((size,), bool),
    flip=part.flip,
    index=part.index,
  )


def pad_batches(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int[np.ndarray, "n"], size: int
) -> Batch:
  """Pad a data set with masked examples to whole global batches of `size`.

  Returns:
    Host arrays of m >= n examples, where m is a multiple of the size. `index` counts them.
  """
  padding = -len(images) % size
  return Batch(
    image=np.concatenate([images, np.zeros((padding, *images.shape[1:]), np.uint8)]),
    label=np.concatenate([labels, np.zeros((padding,), np.int32)]).astype(np.int32),
    mask=np.arange(len(images) + padding) < len(images),
    index=np.arange(len(images) + padding, dtype=np.int32),
  )


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
