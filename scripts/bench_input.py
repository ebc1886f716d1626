"""Images per second that one core decodes and crops, here and in bare tf.data, in turns.

    python scripts/bench_input.py --data=imagenet --data=imagenet-sz/160 --image_size=128

Both read the same JPEG files from the page cache and make uint8 batches of random crops of
`image_size`, antialiased as Pillow does:

  jaxspeed    this package's TrainStream: crops of torchvision's distribution, bilinear
  tfdata      bare tf.data, the yardstick: sample_distorted_bounding_box, decode_and_crop_jpeg,
              tf.image.resize(antialias=True)

Every round starts each pipeline in a process of its own on one core, one after the other, and times
it after a few batches. CPU time decides, because wall time on a shared machine includes its
neighbours' work.
"""

import dataclasses
import importlib.util
import itertools
import math
import os
import pathlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
import numpy as np
import PIL.Image
from absl import flags
from side_by_side import SideFailed, ask, process

from jaxspeed.errors import UserError
from jaxspeed.records import provenance

_WARM = 3  # batches before the clock starts
_MIN_SCALE = 0.08  # least area of a crop, of an image's
# Set before the pipelines import their libraries, which start as many threads as these say.
_ENVIRONMENT = {
  "JAX_PLATFORMS": "cpu",
  "OMP_NUM_THREADS": "1",
  "OPENBLAS_NUM_THREADS": "1",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  "TF_ENABLE_ONEDNN_OPTS": "0",  # as jaxspeed sets it
}


@dataclasses.dataclass(frozen=True)
class Task:
  """One timing of one pipeline: `_WARM` untimed batches, then `batches` timed ones."""

  pipeline: str
  root: str  # holds train/CLASS/FILE and val/CLASS/FILE
  size: int
  batch: int
  batches: int
  seed: int
  core: int

  def files(self) -> list[str]:
    """All training files, in an order that `seed` decides."""
    names = sorted(map(str, pathlib.Path(self.root, "train").glob("*/*")))
    return np.random.RandomState(self.seed).permutation(names).tolist()


def open_jaxspeed(task: Task) -> Iterator[np.ndarray]:
  from jaxspeed.data.disk.sources import open_images
  from jaxspeed.data.disk.streams import TrainStream

  images = open_images(name="bench", path=task.root, cache=f"{task.root}/cache")
  # More than are timed, because batches are made ahead at the end too.
  steps, an_epoch = _WARM + task.batches + 4, math.ceil(len(images.train) / task.batch)
  stream = TrainStream(
    images.train,
    seed=task.seed,
    image_size=task.size,
    batch_size=task.batch,
    min_scale=_MIN_SCALE,
    flip="random",
    steps=[divmod(step, an_epoch) for step in range(steps)],
    antialias=True,
  )
  return (batch.image for batch in stream)


def open_tfdata(task: Task) -> Iterator[np.ndarray]:
  """On one thread; only the rows and columns that a crop needs are decoded."""
  import tensorflow as tf

  def image_of(file: Any) -> Any:
    encoded = tf.io.read_file(file)
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
      tf.io.extract_jpeg_shape(encoded),
      tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
      min_object_covered=0.0,
      aspect_ratio_range=(3 / 4, 4 / 3),
      area_range=(_MIN_SCALE, 1.0),
      max_attempts=10,
    )
    window = tf.concat([begin[:2], extent[:2]], axis=0)
    crop = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    size = task.size, task.size
    return tf.cast(tf.image.resize(crop, size, "bilinear", antialias=True), tf.uint8)

  options = tf.data.Options()
  options.autotune.enabled = False
  options.threading.private_threadpool_size = 1
  options.threading.max_intra_op_parallelism = 1
  files = tf.data.Dataset.from_tensor_slices(task.files()).repeat()
  images = files.map(image_of, num_parallel_calls=1)
  batches = images.batch(task.batch, drop_remainder=True).prefetch(1)
  # The buffers themselves: as_numpy_iterator() copies them.
  return (np.asarray(memoryview(batch)) for batch in batches.with_options(options))


# What makes the batches of each pipeline; the second one is the yardstick.
PIPELINES: dict[str, Callable[[Task], Iterator[np.ndarray]]] = {
  "jaxspeed": open_jaxspeed,
  "tfdata": open_tfdata,
}


def measure(task: Task) -> tuple[float, float]:
  """Images per second of CPU time in this process, which must be a fresh one; and the mean pixel.

  That is of the last untimed batch, 0 ... 255: all pipelines should have about the same.
  """
  # Set before the pipeline's imports: thread pools are as large as the number of allowed cores.
  os.sched_setaffinity(0, {task.core})
  batches = PIPELINES[task.pipeline](task)
  for _ in range(_WARM):
    batch = next(batches)
  if (batch.shape, batch.dtype) != ((task.batch, task.size, task.size, 3), np.uint8):
    raise ValueError(f"{task.pipeline} makes batches of {batch.dtype} of shape {batch.shape}")
  start = time.process_time()
  for _ in range(task.batches):
    next(batches)
  return task.batches * task.batch / (time.process_time() - start), float(batch.mean())


def _is_plain(file: pathlib.Path) -> bool:
  """Whether a file is a JPEG that both pipelines read."""
  try:
    with PIL.Image.open(file) as image:
      return image.format == "JPEG" and image.mode in ("RGB", "L")
  except OSError:
    return False


def link_source(data: str, limit: int, root: pathlib.Path) -> dict[str, Any]:
  """Links at most `limit` files of `data`, drawn at random, to root/train/CLASS; reads them once.

  The first file of a class is also its validation set, because jaxspeed requires one. Returns what
  there is.

  Raises:
    UserError: there is no JPEG.
  """
  found = sorted(pathlib.Path(data).expanduser().resolve().glob("train/*/*"))
  random.Random(0).shuffle(found)
  files = [*itertools.islice(filter(_is_plain, found), limit)]
  if not files:
    raise UserError(f"--data={data} holds no JPEG, RGB or grey, as train/CLASS/*.jpg.")
  for file in files:
    train, val = (root / split / file.parent.name for split in ("train", "val"))
    if not train.is_dir():
      train.mkdir(parents=True)
      val.mkdir(parents=True)
      (val / file.name).symlink_to(file)
    (train / file.name).symlink_to(file)
  mean_bytes = statistics.mean(len(file.read_bytes()) for file in files)
  return {"data": data, "files": len(files), "mean_bytes": mean_bytes}


def time_in_turns(tasks: list[Task], rounds: int) -> list[dict[str, Any]]:
  """The rows of the tasks' pipelines, each timed in a fresh process in every round.

  That of jaxspeed has the ratios of its rates to those of tf.data in the same round.
  """
  rates: dict[str, list[float]] = {task.pipeline: [] for task in tasks}
  pixels = {}
  for number, task in benchmarking.turns(tasks, rounds):
    with process() as side:
      try:
        rate, mean = ask(side, measure, dataclasses.replace(task, seed=number))
      except SideFailed as error:
        raise UserError(f"{task.pipeline} fails: {error}.") from None
    rates[task.pipeline].append(rate)
    pixels[task.pipeline] = mean
  rows = [
    {"pipeline": name, "images_per_core_s": benchmarking.interval(each), "mean_pixel": pixels[name]}
    for name, each in rates.items()
  ]
  rows[0]["ratio"] = benchmarking.ratio_of_rounds(*rates.values())
  return rows


def bench(scratch: pathlib.Path) -> None:
  """Times the pipelines on each source at each size.

  Raises:
    UserError: TensorFlow is missing, or a source has no JPEG.
  """
  given: Any = flags.FLAGS
  os.environ.update(_ENVIRONMENT)
  if not importlib.util.find_spec("tensorflow"):
    raise UserError("TensorFlow is not installed: pip install 'jaxspeed[images]'.")
  roots = [scratch / str(i) for i in range(len(given.data))]
  named = zip(given.data, roots, strict=True)
  sources = [link_source(data, given.files, root) for data, root in named]
  report: dict[str, Any] = {
    "device": provenance.describe_device(),
    **benchmarking.environment(),
    **{n: given[n].value for n in ("batch", "images", "rounds")},
    "sources": sources,
    "rows": [],
  }
  for (source, root), size in itertools.product(zip(sources, roots, strict=True), given.image_size):
    same = {"root": str(root), "size": size, "batch": given.batch, "core": given.core}
    batches = -(-given.images // given.batch)
    tasks = [Task(pipeline=name, batches=batches, seed=0, **same) for name in PIPELINES]
    for row in time_in_turns(tasks, given.rounds):
      report["rows"].append({"data": source["data"], "image_size": size, **row})
      what = f"{source['data']} to {size} px, {row['pipeline']}"
      figure = f"{benchmarking.show(row['images_per_core_s'], '.0f')} images/s a core"
      if "ratio" in row:
        figure += f", {benchmarking.show(row['ratio'], '.2f')} of tf.data's"
      benchmarking.say(report, what, figure)
    benchmarking.write_report(given.out, report)


def main() -> None:
  flags.DEFINE_multi_string("data", None, "A folder with train/CLASS/*.jpg; repeatable.")
  flags.mark_flag_as_required("data")
  flags.DEFINE_multi_integer("image_size", [224], "Of the crops; repeatable.", lower_bound=1)
  flags.DEFINE_integer("files", 1000, "At most so many of each --data.", lower_bound=1)
  flags.DEFINE_integer("images", 2000, "Timed in a round.", lower_bound=1)
  flags.DEFINE_integer("rounds", 5, "Of each pipeline.", lower_bound=1)
  flags.DEFINE_integer("batch", 64, "Images of a batch.", lower_bound=1)
  flags.DEFINE_integer("core", max(os.sched_getaffinity(0)), "Which one is used.")
  benchmarking.define_out()
  benchmarking.run(bench)


if __name__ == "__main__":
  main()
