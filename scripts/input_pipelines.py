"""The pipelines that `bench_input.py` times: each makes batches of random crops of JPEG files."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import PIL.Image

_RATIOS = (3 / 4, 4 / 3)


@dataclasses.dataclass(frozen=True)
class Task:
  """One timing of one pipeline: `warm_batches` untimed batches, then `batches` timed ones."""

  pipeline: str
  root: str  # holds train/CLASS/FILE and val/CLASS/FILE
  size: int
  batch: int
  warm_batches: int
  batches: int
  min_scale: float
  seed: int
  core: int

  @property
  def images_read(self) -> int:
    """More images than are timed, because batches are made ahead at the end too."""
    return (self.warm_batches + self.batches + 4) * self.batch

  def files(self) -> list[str]:
    """All training files, in an order that `seed` decides."""
    names = sorted(map(str, pathlib.Path(self.root, "train").glob("*/*")))
    return np.random.RandomState(self.seed).permutation(names).tolist()


def open_jaxspeed(task: Task) -> Iterator[np.ndarray]:
  from jaxspeed.data.disk.sources import open_images
  from jaxspeed.data.disk.streams import TrainStream

  images = open_images(name="bench", path=task.root, cache=f"{task.root}/cache")
  steps, an_epoch = task.images_read // task.batch, math.ceil(len(images.train) / task.batch)
  stream = TrainStream(
    images.train,
    seed=task.seed,
    image_size=task.size,
    batch_size=task.batch,
    min_scale=task.min_scale,
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
      aspect_ratio_range=_RATIOS,
      area_range=(task.min_scale, 1.0),
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


def random_box(
  rng: np.random.Generator, width: int, height: int, min_scale: float
) -> tuple[int, int, int, int]:
  """x, y, width and height of torchvision's RandomResizedCrop."""
  for _ in range(10):
    area = width * height * rng.uniform(min_scale, 1)
    ratio = math.exp(rng.uniform(math.log(_RATIOS[0]), math.log(_RATIOS[1])))
    w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    if 0 < w <= width and 0 < h <= height:
      return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
  w, h = min(width, round(height * _RATIOS[1])), min(height, round(width / _RATIOS[0]))
  return (width - w) // 2, (height - h) // 2, w, h


class PillowFiles:
  """A data set of PyTorch: crops of the files by Pillow."""

  def __init__(self, task: Task) -> None:
    self._task, self._files = task, task.files()
    self._rng = np.random.default_rng(task.seed)

  def __len__(self) -> int:
    return len(self._files)

  def __getitem__(self, index: int) -> Any:
    import torch

    with PIL.Image.open(self._files[index]) as file:
      image = file.convert("RGB")
    x, y, w, h = random_box(self._rng, *image.size, self._task.min_scale)
    size = self._task.size, self._task.size
    image = image.crop((x, y, x + w, y + h)).resize(size, PIL.Image.Resampling.BILINEAR)
    if self._rng.random() < 0.5:
      image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image))


def open_dataloader(task: Task) -> Iterator[np.ndarray]:
  """In this process, so that its CPU time is measured; a worker's would be transported too."""
  import torch

  torch.set_num_threads(1)
  data: Any = PillowFiles(task)
  indices = itertools.islice(itertools.cycle(range(len(data))), task.images_read)
  loader = torch.utils.data.DataLoader(data, task.batch, sampler=list(indices))
  return (batch.numpy() for batch in loader)


# What makes the batches, and the modules that it needs.
Open = Callable[[Task], Iterator[np.ndarray]]
PIPELINES: dict[str, tuple[Open, tuple[str, ...]]] = {
  "jaxspeed": (open_jaxspeed, ("tensorflow",)),
  "tfdata": (open_tfdata, ("tensorflow",)),
  "dataloader": (open_dataloader, ("torch",)),
}


def missing_module(pipeline: str) -> str | None:
  """The first module that a pipeline needs and that is not installed."""
  return next((module for module in PIPELINES[pipeline][1] if not find_spec(module)), None)
