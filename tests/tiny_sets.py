"""Writers of small data sets in the formats that jaxspeed.data reads, for its tests."""

import dataclasses
import io
import json
import struct

import numpy as np
from PIL import Image

from jaxspeed.data.memory import cifar
from jaxspeed.data.memory.arrays import Arrays


def random_images(seed, n, height=32, width=32):
  """uint8 [n, height, width, 3]."""
  return np.random.default_rng(seed).integers(256, size=(n, height, width, 3), dtype=np.uint8)


def shrink_cifar(monkeypatch, records):
  """Lets the reader expect `records` records in every file, where the real ones have 10,000."""
  small = {
    layout.name: dataclasses.replace(layout, records=dict.fromkeys(layout.records, records))
    for layout in cifar.LAYOUTS
  }
  monkeypatch.setattr(cifar, "LAYOUTS", tuple(small.values()))
  return small


def cifar_bytes(images, *labels):
  """Records of the binary version: label bytes, then the red, green and blue planes of 1,024."""
  records = []
  for i, image in enumerate(images):
    planes = [image[:, :, channel].tobytes() for channel in range(3)]
    records.append(bytes([int(values[i]) for values in labels]) + b"".join(planes))
  return b"".join(records)


def write_cifar10(folder, records):
  """Six small files; returns (train images, train labels, test images, test labels)."""
  folder.mkdir(parents=True)
  images, labels = random_images(1, 6 * records), np.arange(6 * records) % 10
  files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
  for i, file in enumerate(files):
    part = slice(i * records, (i + 1) * records)
    (folder / file).write_bytes(cifar_bytes(images[part], labels[part]))
  train = 5 * records
  return images[:train], labels[:train], images[train:], labels[train:]


def crc32c(data):
  """The checksum bit by bit, as in RFC 3720, B.4."""
  register = 0xFFFFFFFF
  for byte in data:
    register ^= byte
    for _ in range(8):
      register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
  return register ^ 0xFFFFFFFF


def frame(data):
  """One TFRecord."""

  def masked(part):
    checksum = crc32c(part)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)

  length = struct.pack("<Q", len(data))
  return length + masked(length) + data + masked(data)


def varint(value):
  value &= (1 << 64) - 1  # two's complement
  groups = []
  while value > 0x7F:
    groups.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*groups, value])


def field(number, data):
  """A length-delimited field of a protocol buffer."""
  return varint(number << 3 | 2) + varint(len(data)) + data


def example(image, label, *, packed=True, image_format="PNG"):
  """A tf.train.Example with an encoded image, its label and a feature that no reader wants."""
  buffer = io.BytesIO()
  Image.fromarray(image).save(buffer, image_format)
  integer = field(1, varint(label)) if packed else varint(1 << 3) + varint(label)
  features = {
    b"id": field(1, field(1, b"train_00001")),
    b"image": field(1, field(1, buffer.getvalue())),
    b"label": field(3, integer),
    b"weight": field(2, field(1, struct.pack("<f", 1.5))),
  }
  entries = [field(1, field(1, key) + field(2, value)) for key, value in features.items()]
  return field(1, b"".join(entries))


def write_tfds(folder, splits, *, name="cifar10", class_names=(), **info):
  """A version's folder with `splits`: name -> a list of shards, each a list of Examples."""
  folder.mkdir(parents=True)
  entries = []
  for split, shards in splits.items():
    for i, examples in enumerate(shards):
      path = folder / f"{name}-{split}.tfrecord-{i:05d}-of-{len(shards):05d}"
      path.write_bytes(b"".join(frame(each) for each in examples))
    entries.append(
      {
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "name": split,
        "shardLengths": [str(len(examples)) for examples in shards],
      }
    )
  content = {"fileFormat": "tfrecord", "name": name, "splits": entries, "version": "3.0.2"} | info
  (folder / "dataset_info.json").write_text(json.dumps(content))
  if class_names:
    (folder / "label.labels.txt").write_text("\n".join(class_names) + "\n")
  return folder


# Small data sets in memory, and those that write them


CIFAR_NAMES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())


def assert_holds(found, expected):
  names = ("train_images", "train_labels", "eval_images", "eval_labels")
  for name, array in zip(names, expected, strict=True):
    np.testing.assert_array_equal(getattr(found, name), array)
  assert found.train_images.dtype == np.uint8 and found.train_labels.dtype == np.int32
  assert found.eval_images.dtype == np.uint8 and found.eval_labels.dtype == np.int32


def write_arrays(folder, labels=(2, 0, 1, 2), class_names=CIFAR_NAMES, **info):
  """Three images for training and the rest for evaluation; returns what they hold."""
  images = random_images(5, len(labels), height=4, width=4)
  examples = [example(*pair) for pair in zip(images, labels, strict=True)]
  splits = {"train": [examples[:2], examples[2:3]], "test": [examples[3:]]}
  write_tfds(folder, splits, class_names=class_names, **info)
  return images[:3], labels[:3], images[3:], labels[3:]


def write_npy(folder, images, labels):
  folder.mkdir(parents=True, exist_ok=True)
  np.save(folder / "images.npy", images)
  np.save(folder / "labels.npy", labels)
  return folder


def numbered(labels, seed=0):
  """A set whose images are random, with four evaluation images of another kind: all of them 7."""
  return Arrays(
    train_images=random_images(seed, len(labels), height=4, width=4),
    train_labels=np.array(labels, np.int32),
    eval_images=np.full((4, 4, 4, 3), 7, np.uint8),
    eval_labels=np.full(4, 9, np.int32),
    class_names=CIFAR_NAMES,
    source="a set",
  )


def rows(images, labels):
  """The examples, without their order."""
  return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))
