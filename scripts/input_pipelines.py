"""The pipelines that `bench_input.py` times: each makes batches of random crops of JPEG files."""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec

import numpy as np
import PIL.Image

_RATIOS = (3 / 4, 4 / 3)
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32) * 255


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


def open_jaxspeed(task: Task, *, antialias: bool = True) -> Iterator[np.ndarray]:
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
    antialias=antialias,
  )
  return (batch.image for batch in stream)


def _tf_batches(task: Task, elements, image_of: Callable) -> Iterator[np.ndarray]:
  """Batches of what `image_of` makes of each of `elements`, on one thread."""
  import tensorflow as tf

  options = tf.data.Options()
  options.autotune.enabled = False
  options.threading.private_threadpool_size = 1
  options.threading.max_intra_op_parallelism = 1
  images = tf.data.Dataset.from_tensor_slices(elements).repeat().map(image_of, num_parallel_calls=1)
  batches = images.batch(task.batch, drop_remainder=True).prefetch(1)
  # The buffers themselves: as_numpy_iterator() copies them.
  return (np.asarray(memoryview(batch)) for batch in batches.with_options(options))


def _tf_crop(encoded, min_scale: float):
  """A random part of a JPEG; only the rows and columns that it needs are decoded."""
  import tensorflow as tf

  begin, extent, _ = tf.image.sample_distorted_bounding_box(
    tf.io.extract_jpeg_shape(encoded),
    tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
    min_object_covered=0.0,
    aspect_ratio_range=_RATIOS,
    area_range=(min_scale, 1.0),
    max_attempts=10,
  )
  window = tf.concat([begin[:2], extent[:2]], axis=0)
  return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)


def open_tfdata(task: Task, *, antialias: bool = False) -> Iterator[np.ndarray]:
  import tensorflow as tf

  def image_of(file):
    crop = _tf_crop(tf.io.read_file(file), task.min_scale)
    size = task.size, task.size
    return tf.cast(tf.image.resize(crop, size, "bilinear", antialias=antialias), tf.uint8)

  return _tf_batches(task, task.files(), image_of)


def open_flax(task: Task) -> Iterator[np.ndarray]:
  import tensorflow as tf

  def image_of(file):
    crop = _tf_crop(tf.io.read_file(file), task.min_scale)
    image = tf.image.resize(crop, (task.size, task.size), "bicubic")
    image = tf.image.random_flip_left_right(image)
    return (image - IMAGENET_MEAN) / IMAGENET_STD

  return _tf_batches(task, task.files(), image_of)


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
  """A data set for PyTorch's DataLoader: one uint8 image [size, size, 3] per file."""

  def __init__(self, task: Task):
    self.task, self.files = task, task.files()
    self.rng = np.random.default_rng(task.seed)

  def _crop(self, image: PIL.Image.Image) -> PIL.Image.Image:
    x, y, w, h = random_box(self.rng, *image.size, self.task.min_scale)
    part = image.crop((x, y, x + w, y + h))
    return part.resize((self.task.size, self.task.size), PIL.Image.Resampling.BILINEAR)

  def __len__(self) -> int:
    return len(self.files)

  def __getitem__(self, index: int):
    import torch

    with PIL.Image.open(self.files[index]) as file:
      image = self._crop(file.convert("RGB"))
    if self.rng.random() < 0.5:
      image = image.transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image))


def open_dataloader(task: Task) -> Iterator[np.ndarray]:
  import torch

  torch.set_num_threads(1)
  data = PillowFiles(task)
  indices = itertools.islice(itertools.cycle(range(len(data))), task.images_read)
  loader: Iterable[torch.Tensor] = torch.utils.data.DataLoader(
    data,  # type: ignore[arg-type]
    task.batch,
    sampler=list(indices),
    num_workers=1,
  )
  return (batch.numpy() for batch in loader)


def _make_decoder() -> Callable[[bytes], np.ndarray]:
  """A function from a whole JPEG file to RGB, by simplejpeg if installed, else by OpenCV."""
  if find_spec("simplejpeg"):
    import simplejpeg

    return lambda encoded: simplejpeg.decode_jpeg(encoded, "RGB")
  import cv2

  flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION

  def decode(encoded: bytes) -> np.ndarray:
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    assert image is not None
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

  return decode


def open_libjpeg(task: Task, *, area: bool = False) -> Iterator[np.ndarray]:
  import cv2

  cv2.setNumThreads(1)
  rng, decode = np.random.default_rng(task.seed), _make_decoder()
  files = itertools.cycle(task.files())
  while True:
    batch = np.empty((task.batch, task.size, task.size, 3), np.uint8)
    for i, file in enumerate(itertools.islice(files, task.batch)):
      image = decode(pathlib.Path(file).read_bytes())
      height, width = image.shape[:2]
      x, y, w, h = random_box(rng, width, height, task.min_scale)
      part = image[y : y + h, x : x + w]
      filter = cv2.INTER_AREA if area else cv2.INTER_LINEAR
      batch[i] = cv2.resize(part, (task.size, task.size), interpolation=filter)
    yield batch


_OURS = ("tensorflow", "jaxspeed.data.disk.images", "jaxspeed.data.disk.sources")
# Each pipeline's function that makes its batches, and the modules that it needs.
PIPELINES: dict[str, tuple[Callable[[Task], Iterator[np.ndarray]], tuple[str, ...]]] = {
  "jaxspeed": (open_jaxspeed, _OURS),
  "tfdata_antialias": (functools.partial(open_tfdata, antialias=True), ("tensorflow",)),
  "dataloader": (open_dataloader, ("torch",)),
  "libjpeg_area": (functools.partial(open_libjpeg, area=True), ("cv2",)),
  "jaxspeed_nearest": (functools.partial(open_jaxspeed, antialias=False), _OURS),
  "tfdata": (open_tfdata, ("tensorflow",)),
  "flax": (open_flax, ("tensorflow",)),
  "libjpeg": (open_libjpeg, ("cv2",)),
}


def missing_module(pipeline: str) -> str | None:
  """Returns the first module that a pipeline needs and that is not installed."""
  return next((m for m in PIPELINES[pipeline][1] if not find_spec(m)), None)
