"""A small folder of images, and what edits, packs, trains and compares it."""

import os

import tiny_sets
from made_images import encoded
from ml_collections import ConfigDict

from jaxspeed.data.disk.sets import open_sets
from jaxspeed.data.prepare.shards import write_shards


def jpeg(seed, width=24, height=20):
  return encoded(tiny_sets.random_images(seed, 1, height=height, width=width)[0])


NAMES = [f"train/{c}/{i}.jpg" for c in "abc" for i in range(4)] + [f"val/{c}/9.jpg" for c in "abc"]


class Phase:
  def __init__(self, copies):
    self.copies, self.image_size = copies, 8


def train(source, copies="", sides=(8,), tune_on="test", **data):
  """What a training opens, of these sides of copies; its notes."""
  config = ConfigDict({"tune_on": tune_on})
  config.data = ConfigDict(
    {"synthetic": False, "name": "set", "path": str(source), "copies": str(copies), "classes": 3}
    | {"cache": str(source.parent / "cache"), "hold_out": 0.1}
    | data
  )
  return open_sets(config, [Phase(side) for side in sides]).notes


def edit(path, seed=99, **options):
  """Another image of the same name, with the same time if asked for."""
  before = path.stat().st_mtime_ns
  path.write_bytes(jpeg(seed, **options))
  os.utime(path, ns=(before + 10**9, before + 10**9))


def pack(source, tmp_path, name="set", **options):
  return write_shards(source, tmp_path / "sets", name=name, **options)
