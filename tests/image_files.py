"""Images that are made: in files, folders, shards and tables, and the batches that streams show."""

import dataclasses
import importlib.util
import io
import os
import pathlib
import struct
import zlib

import numpy as np
import pytest
import tiny_sets
from ml_collections import ConfigDict
from PIL import Image

from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.index import scan_files
from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.data.prepare.shards import write_shards
from jaxspeed.data.table import Names, Table

needs_tensorflow = pytest.mark.skipif(
  importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


def ramp(width=48, height=48):
  """A smooth picture, of which JPEG keeps nearly all; no two rows or columns are alike."""
  x, y = np.linspace(0, 255, width), np.linspace(0, 255, height)[:, None]
  return np.stack(np.broadcast_arrays(x, y, (x + y) / 2), -1).astype(np.uint8)


def encode(picture, kind="JPEG", mode="", **options):
  """A picture in the bytes of a file, converted first if a mode is given."""
  buffer = io.BytesIO()
  image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
  (image.convert(mode) if mode else image).save(buffer, kind, **options)
  return buffer.getvalue()


def noise(seed, width=24, height=20, kind="JPEG", **options):
  """A file of random pixels."""
  return encode(tiny_sets.random_images(seed, 1, height=height, width=width)[0], kind, **options)


def encoded(width, height, kind="JPEG", **options):
  return noise(width, width, height, kind, **options)


def decoded(data):
  with Image.open(io.BytesIO(data)) as image:
    return image.format, image.mode, np.asarray(image).astype(int)


def write(root, files):
  """Write {name: bytes} below a folder."""
  for name, content in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  return root


def tree(root):
  """Every file below `root` and its bytes."""
  return {
    str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
  }


def images_in(root):
  return {name: content for name, content in tree(root).items() if ".jaxspeed" not in name}


def small_set(root, train=8, held_out=4, width=50, height=40, **options):
  """Noise in two classes."""
  images = tiny_sets.random_images(0, train + held_out, height=height, width=width)
  return write(
    root,
    {
      f"{'train' if i < train else 'val'}/{'ab'[i % 2]}/{i:03d}.jpg": encode(image, **options)
      for i, image in enumerate(images)
    },
  )


def broken_files():
  whole, png = encode(ramp(60, 40), quality=95), encode(ramp(), "PNG")
  return {
    "train/a/cut.jpg": whole[: len(whole) // 2],
    "train/a/cut_header.jpg": whole[:30],
    "train/a/cut_small.jpg": encode(ramp(10, 10))[:-40],
    "train/b/cut.png": png[: len(png) // 2],
    "train/b/empty.jpg": b"",
    "val/b/text.jpg": b"no image at all",
  }


# Ten images of three classes, as folders, shards or a list


CLASSES = ("ant", "bee", "cat")


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
    columns = (table.file, table.label, table.width, table.height, table.length)
    dtypes = [each.dtype for each in columns]
    assert dtypes == [np.int32] * 5


# The images of `source`, a fixture of the tests that copy and pack them


NAMES = [f"train/{c}/{i}.jpg" for c in "abc" for i in range(4)] + [f"val/{c}/9.jpg" for c in "abc"]


@dataclasses.dataclass
class Phase:
  copies: int
  image_size: int = 8


def notes_of_training(source, copies="", sides=(8,), tune_on="test", **data):
  """The notes on what a training opens, of these sides of copies."""
  config = ConfigDict({"tune_on": tune_on})
  config.data = ConfigDict(
    {"synthetic": False, "name": "set", "path": str(source), "copies": str(copies), "classes": 3}
    | {"cache": str(source.parent / "cache"), "hold_out": 0.1}
    | data
  )
  return open_sets(config, [*map(Phase, sides)]).notes


def edit(path, seed=99):
  """Write another image of the same name, a second later."""
  later = path.stat().st_mtime_ns + 10**9
  path.write_bytes(noise(seed))
  os.utime(path, ns=(later, later))


def pack(source, tmp_path, name="set", **options):
  return write_shards(source, tmp_path / "sets", name=name, **options)


# Tables and streams


def write_split(folder, contents):
  """A split of one file for each of `contents`, {name: bytes}; labels are 100 + number."""
  write(folder, contents)
  rows = scan_files(str(folder), list(contents))
  return Table(
    root=str(folder),
    names=Names.of(contents),
    file=np.arange(len(contents), dtype=np.int32),
    label=np.arange(100, 100 + len(contents), dtype=np.int32),
    **{name: rows[name].copy() for name in rows.dtype.names},
  )


def in_shards(split: Table, folder: pathlib.Path, shards=2) -> Table:
  """The same images, one behind the other in a few files."""
  file = np.arange(len(split)) * shards // len(split)
  contents = [split.read(number) for number in range(len(split))]
  names = [f"{shard}.bin" for shard in range(shards)]
  joined = [b"".join(contents[i] for i in np.flatnonzero(file == shard)) for shard in range(shards)]
  write(folder, dict(zip(names, joined, strict=True)))
  offset = np.cumsum([0, *map(len, contents[:-1])])
  offset -= offset[np.searchsorted(file, file)]
  places = dict(names=Names.of(names), file=file.astype(np.int32), offset=offset)
  return dataclasses.replace(split, root=str(folder), **places)


def steps_of(epochs, steps, first=0):
  return [(epoch, step) for epoch in range(epochs) for step in range(steps)][first:]


def train(split, **options):
  """The batches of a stream, by default of one epoch, and the stream."""
  options = {"seed": 7, "image_size": 16, "batch_size": 8, "min_scale": 0.2} | options
  steps = steps_of(1, -(-len(split) // options["batch_size"]))
  stream = TrainStream(split, **{"flip": "random", "steps": steps} | options)
  return list(stream), stream


def joined(parts):
  """Fields of batches, the parts of the processes put together."""
  return [
    {
      field.name: np.concatenate([getattr(part, field.name) for part in step])
      for field in dataclasses.fields(Batch)
      if getattr(step[0], field.name) is not None
    }
    for step in zip(*parts, strict=True)
  ]


def assert_equal(found, expected):
  """Make sure that what `joined` returns is the same twice."""
  for one, other in zip(found, expected, strict=True):
    for name, value in one.items():
      np.testing.assert_array_equal(value, other[name], err_msg=name)
