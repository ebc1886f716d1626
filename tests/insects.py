"""A data set of ten images of three classes, as folders, shards or a list."""

import io
import struct
import zlib

import numpy as np
import tiny_sets
from image_files import encode
from PIL import Image

CLASSES = ("ant", "bee", "cat")


def encoded(width, height, image_format="JPEG", **options):
  image = tiny_sets.random_images(width, 1, height=height, width=width)[0]
  return encode(image, image_format, **options)


def png_header(width, height):
  """A PNG that ends after its header."""
  header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
  length, checksum = struct.pack(">I", 13), struct.pack(">I", zlib.crc32(header))
  return b"\x89PNG\r\n\x1a\n" + length + header + checksum + struct.pack(">I", 0) + b"IDAT"


def small_files(held_out="val"):
  """Seven images for training and three for evaluation, none of the size of another."""
  names = [
    f"train/{name}/{i}.jpg" for name, n in zip(CLASSES, (3, 1, 3), strict=True) for i in range(n)
  ]
  names += [f"{held_out}/{name}/9.jpg" for name in CLASSES]
  return {name: encoded(8 + i, 30 - i) for i, name in enumerate(names)}


def many_files(count=40, prefix=""):
  return {f"{prefix}{CLASSES[i % 3]}/{i}.jpg": encoded(8 + i, 9) for i in range(count)}


def as_shards(folder, files, split, *, named=True, **options):
  """The files of a folder as a set of TFDS: two shards for training, one for evaluation."""

  def record(name, content):
    features = {
      b"file_name": tiny_sets.field(1, tiny_sets.field(1, name.encode())),
      b"image": tiny_sets.field(1, tiny_sets.field(1, content)),
      b"label": tiny_sets.field(
        3, tiny_sets.field(1, tiny_sets.varint(CLASSES.index(name.split("/")[1])))
      ),
    }
    if not named:
      del features[b"file_name"]
    # Protocol buffers do not promise an order of a map.
    keys = sorted(features, reverse=len(content) % 2 == 0)
    entries = [tiny_sets.field(1, key) + tiny_sets.field(2, features[key]) for key in keys]
    return tiny_sets.field(1, b"".join(tiny_sets.field(1, entry) for entry in entries))

  train = [record(*each) for each in files.items() if each[0].startswith("train/")]
  held_out = [record(*each) for each in files.items() if not each[0].startswith("train/")]
  splits = {"train": [train[:4], train[4:]], split: [held_out]}
  return tiny_sets.write_tfds(folder, splits, name="insects", **{"class_names": CLASSES} | options)


def names_of(table):
  return {table.path(i) for i in range(len(table))}


def assert_holds(images, files):
  """Bytes, labels and sizes of both splits, in the order of `files`."""
  for table, is_train in ((images.train, True), (images.eval, False)):
    names = [name for name in files if name.startswith("train/") == is_train]
    assert len(table) == len(names)
    assert [table.read(i) for i in range(len(table))] == [files[name] for name in names]
    assert table.length.tolist() == [len(files[name]) for name in names]
    assert table.label.tolist() == [table.class_names.index(n.split("/")[1]) for n in names]
    found = [Image.open(io.BytesIO(files[name])).size for name in names]
    assert list(zip(table.width.tolist(), table.height.tolist(), strict=True)) == found
    dtypes = [each.dtype for each in (table.file, table.label, table.width, table.height)]
    assert dtypes == [np.int32] * 4 and table.length.dtype == np.int64
