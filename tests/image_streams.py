"""Images in files and shards, and the batches that streams make of them."""

import dataclasses
import importlib.util
import io

import numpy as np
import pytest
from PIL import Image

from jaxspeed.data.batch import Batch
from jaxspeed.data.disk.streams import TrainStream
from jaxspeed.data.table import Names

needs_tensorflow = pytest.mark.skipif(
  importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


def ramp(width=48, height=48):
  """A smooth picture, of which JPEG keeps nearly all; no two rows or columns are alike."""
  x, y = np.linspace(0, 255, width), np.linspace(0, 255, height)[:, None]
  return np.stack(np.broadcast_arrays(x, y, (x + y) / 2), -1).astype(np.uint8)


def encode(picture, kind="JPEG", mode="RGB", **options):
  buffer = io.BytesIO()
  image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
  image.convert(mode).save(buffer, kind, **options)
  return buffer.getvalue()


def in_shards(split, folder, shards=2):
  """The same images, one behind the other in a few files."""
  folder.mkdir()
  files, file, offset = [], [], []
  for shard, numbers in enumerate(np.array_split(np.arange(len(split)), shards)):
    path = folder / f"{shard}.bin"
    contents = [split.read(number) for number in numbers]
    path.write_bytes(b"".join(contents))
    files.append(path.name)
    file += [shard] * len(numbers)
    offset += np.cumsum([0, *map(len, contents[:-1])]).tolist()
  return dataclasses.replace(
    split,
    root=str(folder),
    names=Names.of(files),
    file=np.array(file, np.int32),
    offset=np.array(offset, np.int64),
  )


def steps_of(epochs, steps, first=0):
  return [(epoch, step) for epoch in range(epochs) for step in range(steps)][first:]


def train(split, **options):
  options = {
    "seed": 7,
    "image_size": 16,
    "batch_size": 8,
    "min_scale": 0.2,
    "flip": "random",
    "steps": steps_of(1, -(-len(split) // options.get("batch_size", 8))),
  } | options
  stream = TrainStream(split, **options)
  batches = list(stream)
  return batches, stream


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
  assert len(found) == len(expected)
  for one, other in zip(found, expected, strict=True):
    for name, value in one.items():
      np.testing.assert_array_equal(value, other[name], err_msg=name)
