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
)
from jaxspeed.data.disk.decoding import Request, Stream
from jaxspeed.data.disk.reading import chunks_of
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.table import Table


class TrainStream(Stream):
  """Random resized crops in the order of `epoch_order`; decoding starts at once."""

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
    super().__init__(split, steps=len(self._numbers), batch_size=batch_size, **how)

  def _request(self, step: int) -> Request:
    epoch, step_in_epoch = map(int, self._numbers[step])
    # Read and written once: after a restart, an old thread may still be in this function.
    kept = self._epoch
    if kept is None or kept[0] != epoch:
      kept = self._epoch = epoch, self._order(epoch)
    _, order = kept
    images = len(order.index)
    place = step_in_epoch * self._global + np.arange(self._global)[self._rows]
    rows = place % images
    used, *size, decoder = self._with_headers(order.index[rows])
    random = random_stream(self._seed, epoch, step_in_epoch, AUGMENT)
    uniform = random.random_sample((self._global, CROP_NUMBERS))[self._rows]
    box = crop_boxes(uniform, *size, min_scale=self._min_scale)
    scale = np.float32(self._size) / box[:, 2:].astype(np.float32)
    shape = np.full((len(box), 2), self._size, np.int32)
    windows = box, scale, np.zeros_like(scale), shape, decoder
    mask, flip = place < images, order.flip[rows]
    return Request((epoch, int(place[0])), order.index[rows], used, mask, flip, windows)

  def _permuted(self, flip: str, epoch: int) -> Order:
    index = epoch_order(self._seed, epoch, len(self.split))
    if self.split.offset is not None:
      index = by_chunk(index, chunks_of(self.split), self._window, self._seed, epoch)
    return Order(index, epoch_flips(self._seed, epoch, len(index), flip=flip)[index])


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

  def _request(self, step: int) -> Request:
    batch = self._batches_asked[step]
    index, mask = batch.index[self._rows], batch.mask[self._rows]
    used, *size, decoder = self._with_headers(index)
    box, *rest = central_windows(*size, shape=batch.shape, resize=self._resize)
    # One pixel is enough for an image that only fills the batch.
    box[~mask] = (0, 0, 1, 1)
    shape = np.tile(np.array(batch.shape, np.int32), (len(box), 1))
    place, flip = (0, step * len(batch.index) + self._rows.start), np.zeros(len(index), bool)
    return Request(place, index, used, mask, flip, (box, *rest, shape, decoder))
