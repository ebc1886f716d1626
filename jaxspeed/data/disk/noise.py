"""Noise instead of images from disk, to measure a machine without its disk (data.synthetic)."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxspeed.data.disk.batches import HostBatch
from jaxspeed.data.disk.imageset import ImageSet, Split
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.planning.plan import Phase


def noise_set(train_images: int, eval_images: int, classes: int) -> ImageSet:
  """Return a data set without files, with sizes distributed as in ImageNet."""
  train, evaluation = (_noise_split(n, classes) for n in (train_images, eval_images))
  names = tuple(f"class {i}" for i in range(classes))
  return ImageSet(train, evaluation, names, "noise, data.synthetic")


def _noise_split(n: int, classes: int) -> Split:
  rng = np.random.RandomState(n % 2**32)
  # Ratios at the percentiles 1, 5, 25, 50, 75, 95 and 99 of 1,000 images of ImageNet.
  ratio = np.interp(
    rng.random_sample(n),
    [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99],
    [0.592, 0.666, 0.962, 1.333, 1.471, 1.511, 2.0],
  )
  return Split(
    files=(),
    file=np.zeros(n, np.int32),
    offset=np.zeros(n, np.int64),
    length=np.zeros(n, np.int64),
    label=rng.randint(classes, size=n).astype(np.int32),
    width=np.round(400 * np.sqrt(ratio)).astype(np.int32),
    height=np.round(400 / np.sqrt(ratio)).astype(np.int32),
    orientation=np.ones(n, np.int8),
    whole_files=True,
    root="",
  )


class NoiseStream:
  """The same batch of noise for each step, with the masks of real batches."""

  def __init__(
    self,
    split: Split,
    phase: Phase,
    steps: Iterator[tuple[int, int]],
    *,
    process: int,
    processes: int,
  ) -> None:
    self.split, self.broken = split, dict[int, str]()
    self._steps, self._phase = steps, phase
    size = phase.image_size
    self._size = phase.batch_size // processes
    self._first = self._size * process
    rng = np.random.RandomState(self._first)
    self._image = rng.randint(0, 256, (self._size, size, size, 3)).astype(np.uint8)
    self._flip = rng.random_sample(self._size) < 0.5

  def __iter__(self) -> "NoiseStream":
    return self

  def __next__(self) -> HostBatch:
    _, number = next(self._steps)
    place = number * self._phase.batch_size + self._first + np.arange(self._size)
    index = place % len(self.split)
    return HostBatch(
      image=self._image,
      label=self.split.label[index],
      mask=place < self._phase.images,
      flip=self._flip,
      index=index,
    )

  def close(self) -> None:
    """Do nothing: no threads run."""


class NoiseEvaluation:
  """Batches of noise, with the shapes and masks of an evaluation's batches."""

  def __init__(
    self, split: Split, batches: Sequence[EvalBatch], *, process: int, processes: int
  ) -> None:
    self._split, self._batches, self.broken = split, batches, dict[int, str]()
    self._process, self._processes = process, processes

  def __iter__(self) -> Iterator[HostBatch]:
    for batch in self._batches:
      part = len(batch.index) // self._processes
      own = slice(part * self._process, part * (self._process + 1))
      rng = np.random.RandomState(batch.shape)
      yield HostBatch(
        image=rng.randint(0, 256, (part, *batch.shape, 3)).astype(np.uint8),
        label=self._split.label[batch.index[own]],
        mask=batch.mask[own],
        flip=np.zeros(part, bool),
        index=batch.index[own],
      )
