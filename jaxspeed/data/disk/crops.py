"""The order of an epoch and the crop of each image, computed in NumPy.

All of them depend on (seed, epoch, step) alone, so a stream can start at any step, and any number
of processes sees the same global batches.
"""

import numpy as np
from jaxtyping import Float, Int, Int32, Int64

from jaxspeed.data.batch import CHUNKS, ORDER, random_stream

# From torchvision's RandomResizedCrop: two numbers for each attempt, and two for the position.
_ATTEMPTS = 10
_RATIOS = (3 / 4, 4 / 3)
CROP_NUMBERS = 2 * _ATTEMPTS + 2


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
