"""Streams of decoded images from disk: random crops for training, central ones for evaluation.

    stream = TrainStream(images.train, seed=0, image_size=128, batch_size=1024, min_scale=0.08,
                         flip="random", steps=[(epoch, step), ...])
    for batch in stream:  # Batch of uint8 images, decoded while the one before trains
      ...
    stream.broken  # {number: reason} of the images that were replaced

`crops.py` chooses the images, their crops and their flips from (seed, epoch, step) alone.
TensorFlow's graph (`decoding.py`) decodes, crops and resizes; it draws no random numbers. So a
stream can start at any step without decoding earlier ones, and any number of processes sees the
same global batches.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxspeed.data.batch import AUGMENT, Order, epoch_flips, random_stream
from jaxspeed.data.disk.crops import (
  CROP_NUMBERS,
  by_chunk,
  central_windows,
  crop_boxes,
  epoch_order,
  stored_boxes,
  stored_windows,
)
from jaxspeed.data.disk.decoding import Stream
from jaxspeed.data.disk.reading import chunks_of
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.table import Table


class TrainStream(Stream):
  """Random resized crops in the order of `epoch_order`; decoding starts at once.

  Without antialiasing, if most images are large, crops of JPEGs are decoded to half size where that
  is still at least `image_size`: this saves time, and bilinear interpolation skips fewer pixels.
  For ImageNet's originals at 128 px, it halves half of the crops and takes 0.94 times the CPU time.
  """

  _trains = True

  def __init__(
    self,
    split: Table,
    *,
    seed: int,
    image_size: int,
    batch_size: int,
    min_scale: float,
    flip: str,
    steps: Iterable[tuple[int, int]],
    order: Callable[[int], Order] | None = None,
    **how: Any,
  ) -> None:
    """Start to decode.

    Args:
      split, batch_size, how: as in `Stream`.
      seed: the run's seed.
      image_size: both sides of the crops, in pixels.
      min_scale: smallest crop; see `crop_boxes`.
      flip: kind of flips; see `epoch_flips`.
      steps: (epoch, step in the epoch) of each batch. A short last batch is filled with masked
        images from the epoch's beginning: real ones, for batch norm.
      order: function from an epoch to its order; None: a permutation (`epoch_order`, of shards
        `by_chunk`).
    """
    self._order = order or functools.partial(self._permuted, flip)
    self._seed, self._size, self._global = seed, image_size, batch_size
    self._min_scale = min_scale
    self._numbers = np.array(list(steps), np.int64).reshape(-1, 2)
    self._epoch: tuple[int, Order] | None = None
    # Testing each crop costs 2 to 4 % of an image's time; halving half of the crops saves 8 %.
    short = np.minimum(split.width, split.height)
    self._halve = bool(np.mean(short >= 2 * image_size) > 0.5)
    super().__init__(split, steps=len(self._numbers), batch_size=batch_size, **how)

  def _ask(self, step: int) -> tuple[tuple[int, int], np.ndarray, np.ndarray, np.ndarray]:
    epoch, step_in_epoch = map(int, self._numbers[step])
    # Read and written once: after a restart, an old thread may still be in this function.
    kept = self._epoch
    if kept is None or kept[0] != epoch:
      kept = self._epoch = epoch, self._order(epoch)
    _, order = kept
    images = len(order.index)
    place = step_in_epoch * self._global + np.arange(self._global)[self._rows]
    rows = place % images
    return (epoch, int(place[0])), order.index[rows], place < images, order.flip[rows]

  def _shape(self, step: int) -> tuple[int, int]:
    return self._size, self._size

  def _permuted(self, flip: str, epoch: int) -> Order:
    index = epoch_order(self._seed, epoch, len(self.split))
    if self.split.offset is not None:
      index = by_chunk(index, chunks_of(self.split), self._window, self._seed, epoch)
    return Order(index, epoch_flips(self._seed, epoch, len(index), flip=flip)[index])

  def _windows(self, step: int, used: np.ndarray) -> tuple[np.ndarray, ...]:
    epoch, step_in_epoch = map(int, self._numbers[step])
    random = random_stream(self._seed, epoch, step_in_epoch, AUGMENT)
    uniform = random.random_sample((self._global, CROP_NUMBERS))[self._rows]
    size = self.split.width[used], self.split.height[used]
    box = crop_boxes(uniform, *size, min_scale=self._min_scale)
    orientation = self.split.orientation[used].astype(np.int32)
    box = stored_boxes(box, *size, orientation)
    scale = np.float32(self._size) / box[:, 2:].astype(np.float32)
    shape = np.full((len(box), 2), self._size, np.int32)
    return box, scale, np.zeros_like(scale), shape, orientation


class EvalStream(Stream):
  """Resized images, each cropped at its centre to the shape of its batch.

  Broken images do not count: their mask is false.
  """

  _trains = False

  def __init__(
    self, split: Table, batches: Sequence[EvalBatch], *, resize: float, **how: Any
  ) -> None:
    """Start to decode.

    Args:
      split, how: as in `Stream`.
      batches: global batches of one size.
      resize: short side after resizing, in pixels; a fraction is dropped, as in torchvision.
    """
    self._batches_asked, self._resize = batches, int(resize)
    size = len(batches[0].index) if batches else 1
    super().__init__(split, steps=len(batches), batch_size=size, **how)

  def _ask(self, step: int) -> tuple[tuple[int, int], np.ndarray, np.ndarray, np.ndarray]:
    batch = self._batches_asked[step]
    index, place = batch.index[self._rows], step * len(batch.index) + self._rows.start
    return (0, place), index, batch.mask[self._rows], np.zeros(len(index), bool)

  def _shape(self, step: int) -> tuple[int, int]:
    return self._batches_asked[step].shape

  def _windows(self, step: int, used: np.ndarray) -> tuple[np.ndarray, ...]:
    batch = self._batches_asked[step]
    size = self.split.width[used], self.split.height[used]
    windows = central_windows(*size, shape=batch.shape, resize=self._resize)
    orientation = self.split.orientation[used].astype(np.int32)
    box, *rest = stored_windows(*windows, *size, orientation, shape=batch.shape)
    # One pixel is enough for an image that only fills the batch.
    box[~batch.mask[self._rows]] = (0, 0, 1, 1)
    return box, *rest, orientation
