"""How fast this host decodes images of a data path, and how many GPUs that feeds.

It is measured in a process of its own, in which TensorFlow's import and threads, and images that
crash it, stay.
"""

import itertools
import os
import pathlib
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.data.formats.tfrecord import (
  find_tfds,
  list_tfds,
  parse_example,
  read_records,
)
from jaxspeed.doctor import child
from jaxspeed.doctor.findings import Finding, figure, hint, mend
from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json
from jaxspeed.scaling.hardware import DEVICES, cluster_of
from jaxspeed.scaling.predict import compute_s

_IMAGES, _BATCH = 256, 32
# Batches before the clock starts: the first ones wait for TensorFlow's threads.
_WARM = 3
_SECONDS = 1.0
# Seconds for all of it: TensorFlow's import takes 3 to 8.
_LIMIT = 30.0
# The side in pixels of the decoded crops.
_SIDE = 224


def check(root: pathlib.Path) -> Iterator[Finding]:
  """Decodes a sample of a data path as a run does, for a second; facts: `images_per_s`, ..."""
  path, quoted = printable(str(root)), shlex.quote(str(root))
  quiet = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
  ended = child.run("jaxspeed.doctor.decode", str(root.absolute()), seconds=_LIMIT, **quiet)
  if ended.code is None:
    what = f"{path}: decoding did not end within {_LIMIT:.0f} s, as on a busy machine."
    yield hint(what, f"python -m jaxspeed.doctor --data={quoted}")
    return
  index = f"python -m jaxspeed.prepare index {quoted}"
  if ended.code:
    what = f"{path}: decoding failed: {ended.reason}"
    yield mend(what, "pip install 'jaxspeed[images]'" if "TensorFlow" in what else index)
    return
  row = ended.lines[-1]
  kind = max(DEVICES, key=lambda each: DEVICES[each].images_per_s)
  batch = DEVICES[kind].batch
  feeds = row["images_per_s"] * compute_s(batch, _SIDE, cluster_of(DEVICES[kind])) / batch
  yield Finding(
    f"{path}: {figure(row['images_per_s'])} images/s of {_SIDE} px decoded, which feeds "
    f"{feeds:.2g} {kind.upper()} with ResNet-50",
    facts=row | {"gpu": kind, "gpus_fed": feeds},
  )
  if row["broken"]:
    yield mend(f"{row['broken']} of {row['images']} sampled images cannot be decoded.", index)


def sample(root: pathlib.Path) -> Iterator[bytes]:
  """The encoded images of a data path, in the order in which they are found first."""
  if shards := find_tfds(root, root.name):
    table = list_tfds(shards, evaluation=False)
    path = table.full_path(0)
    for record in read_records(np.memmap(path, np.uint8, "r"), path):
      yield parse_example(bytes(record), table.keys, path).image
    return
  for folder, folders, files in os.walk(root):
    folders[:] = sorted(name for name in folders if not name.startswith("."))
    for name in files:
      if name.lower().endswith(SUFFIXES):
        yield pathlib.Path(folder, name).read_bytes()


def rate(root: pathlib.Path, side: int) -> dict[str, Any]:
  """The images per second of a training stream over a sample, with its number of broken images."""
  from jaxspeed.data.disk.sources import open_images
  from jaxspeed.data.disk.streams import TrainStream

  with tempfile.TemporaryDirectory(prefix="jaxspeed-") as folder:
    one_class = pathlib.Path(folder, "images/a")
    one_class.mkdir(parents=True)
    number = 0
    for number, encoded in enumerate(itertools.islice(sample(root), _IMAGES), 1):
      (one_class / f"{number}.jpg").write_bytes(encoded)
    if not number:
      raise UserError(f"{root} holds no image ({', '.join(SUFFIXES)})")
    split = open_images(name="", path=str(one_class.parent), cache=f"{folder}/cache", share=1).train
    batch = min(_BATCH, number)
    an_epoch = -(-number // batch)
    stream = TrainStream(
      split,
      seed=0,
      image_size=side,
      batch_size=batch,
      min_scale=0.08,
      flip="random",
      steps=(divmod(step, an_epoch) for step in range(100_000)),
    )
    try:
      for _ in range(_WARM):
        next(stream)
      start, done = time.perf_counter(), 0
      while time.perf_counter() < start + _SECONDS:
        done += len(next(stream).label)
      took = time.perf_counter() - start
    finally:
      stream.close()
    broken = len({*stream.broken, *np.flatnonzero(split.width == 0)})
    return {"images_per_s": done / took, "images": number, "broken": broken, "side": side}


if __name__ == "__main__":
  print(dump_json(rate(pathlib.Path(sys.argv[1]), _SIDE)), flush=True)
