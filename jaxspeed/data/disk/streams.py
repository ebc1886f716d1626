"""Streams of decoded images from disk: random crops for training, central ones for evaluation.

    stream = TrainStream(images.train, seed=0, image_size=128, batch_size=1024, min_scale=0.08,
                         flip="random", steps=[(epoch, step), ...])
    for batch in stream:  # Batch of uint8 images, decoded while the one before trains
      ...
    stream.broken  # {number: reason} of the images that were replaced

NumPy chooses the images, their crops and their flips from (seed, epoch, step) alone. TensorFlow's
graph (`decoding.py`) decodes, crops and resizes; it draws no random numbers. So a stream can start
at any step without decoding earlier ones, and any number of processes sees the same global batches.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32, Int64

from jaxspeed.data.batch import AUGMENT, CHUNKS, ORDER, Order, epoch_flips, random_stream
from jaxspeed.data.disk.decoding import Request, Stream
from jaxspeed.data.disk.reading import chunks_of
from jaxspeed.data.disk.rectangles import EvalBatch
from jaxspeed.data.table import Table

# From torchvision's RandomResizedCrop: two numbers for each attempt, and two for the position.
_ATTEMPTS = 10
_RATIOS = (3 / 4, 4 / 3)
CROP_NUMBERS = 2 * _ATTEMPTS + 2


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
    self._order = functools.lru_cache(1)(order or functools.partial(self._permuted, flip))
    self._seed, self._size, self._global = seed, image_size, batch_size
    self._min_scale = min_scale
    self._numbers = np.array(list(steps), np.int64).reshape(-1, 2)
    super().__init__(split, steps=len(self._numbers), batch_size=batch_size, **how)

  def _request(self, step: int) -> Request:
    epoch, step_in_epoch = map(int, self._numbers[step])
    order = self._order(epoch)
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


def epoch_order(seed: int, epoch: int, images: int) -> Int64[np.ndarray, "n"]:
  """Return the order of the images in an epoch; step s takes its s-th batch."""
  return random_stream(seed, epoch, ORDER).permutation(images).astype(np.int64, copy=False)


def by_chunk(
  order: Int64[np.ndarray, "n"],
  chunk_of: Int[np.ndarray, "n"],
  window: int,
  seed: int,
  epoch: int,
) -> Int64[np.ndarray, "n"]:
  """Sort an order so that each window of it holds the images of few chunks.

  Chunks follow each other in a random order of their own; every `window` images in that sequence
  keep the order among them. A set of one window keeps its order.

  Args:
    order: permutation of the images.
    chunk_of: the chunk of each image, from 0, ascending.
    window: number of images in a window.
    seed: the run's seed.
    epoch: number from 0.
  """
  places = random_stream(seed, epoch, CHUNKS).permutation(int(chunk_of[-1]) + 1)
  sequence = np.argsort(places[chunk_of], kind="stable")
  window_of = np.empty(len(order), np.int64)
  window_of[sequence] = np.arange(len(order)) // window
  return order[np.argsort(window_of[order], kind="stable")]


def crop_boxes(
  uniform: Float[np.ndarray, "n 22"],
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  *,
  min_scale: float,
) -> Int32[np.ndarray, "n 4"]:
  """Return a random crop of each image, as torchvision's RandomResizedCrop chooses it.

  Each of ten attempts draws an area, uniform from `min_scale` of the image to all of it, and a
  ratio, log-uniform from 3/4 to 4/3. The first crop that fits is taken, at a uniform place; if none
  fits, the central crop with the nearest ratio.

  Args:
    uniform: numbers in [0, 1): areas and ratios of the attempts, then the place, vertical first.
    width, height: size of each image.
    min_scale: smallest share of an image's area.

  Returns:
    y, x, height and width of each crop, in pixels.
  """
  width, height = width.astype(np.int64), height.astype(np.int64)
  area = (width * height)[:, None] * (min_scale + (1 - min_scale) * uniform[:, :_ATTEMPTS])
  low, high = np.log(_RATIOS)
  ratio = np.exp(low + (high - low) * uniform[:, _ATTEMPTS : 2 * _ATTEMPTS])
  widths, heights = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
  fits = (widths > 0) & (widths <= width[:, None]) & (heights > 0) & (heights <= height[:, None])
  first, any_fits = (np.arange(len(fits)), fits.argmax(1)), fits.any(1)
  w = np.where(any_fits, widths[first], np.minimum(width, np.rint(height * _RATIOS[1])))
  h = np.where(any_fits, heights[first], np.minimum(height, np.rint(width / _RATIOS[0])))
  place = np.where(any_fits[:, None], uniform[:, 2 * _ATTEMPTS :], 0.5)
  # A central crop adds no 1: the floor of (free + 1) / 2 would be half a pixel off centre.
  free = np.stack([height - h, width - w], 1) + any_fits[:, None]
  y, x = np.floor(place * free).T
  return np.stack([y, x, h, w], 1).astype(np.int32)


def central_windows(
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  *,
  shape: tuple[int, int],
  resize: int,
) -> tuple[Int32[np.ndarray, "n 4"], Float[np.ndarray, "n 2"], Float[np.ndarray, "n 2"]]:
  """Return the part of each image that torchvision's Resize and CenterCrop(shape) use.

  Args:
    width, height: size of each image.
    shape: (height, width) of the crop; it may be larger than the resized image.
    resize: the short side after resizing.

  Returns:
    The box to decode (y, x, height, width), with a margin as wide as the filter; and the (vertical,
    horizontal) scale and translation to the shape: output = scale * input + translation.
  """
  size = np.stack([height, width], 1).astype(np.int64)
  resized = resize * size // size.min(1, keepdims=True)
  room = resized - np.array(shape)
  # As torchvision rounds: half to even where it cuts, down where it pads.
  first = np.where(room >= 0, np.rint(room / 2), -(-room // 2)).astype(np.int64)
  scale = resized / size
  margin = np.maximum(1 / scale, 1) + 1
  start = np.clip(np.floor(first / scale - margin), 0, size - 1).astype(np.int64)
  stop = np.clip(np.ceil((first + np.array(shape)) / scale + margin), start + 1, size)
  box = np.concatenate([start, stop - start], 1).astype(np.int32)
  return box, scale.astype(np.float32), (start * scale - first).astype(np.float32)
