"""Small data sets in memory, and those that write them."""

import numpy as np
import tiny_sets

from jaxspeed.data.memory.arrays import Arrays

CIFAR_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())


def assert_holds(found, expected):
  names = ("train_images", "train_labels", "eval_images", "eval_labels")
  for name, array in zip(names, expected, strict=True):
    np.testing.assert_array_equal(getattr(found, name), array)
  assert found.train_images.dtype == np.uint8 and found.train_labels.dtype == np.int32
  assert found.eval_images.dtype == np.uint8 and found.eval_labels.dtype == np.int32


def write_tfds(folder, labels=(2, 0, 1, 2), class_names=CIFAR_NAMES, **info):
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
