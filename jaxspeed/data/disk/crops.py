"""The order of an epoch, the part of each image, and which are flipped: all of it in NumPy.

All of it is a function of (seed, epoch, step), so that a stream starts at any step without what
comes before it, and any number of processes sees the same global batches.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Int64

from jaxspeed.data.batch import FLIP, ORDER
from jaxspeed.data.formats.pixels import TURNS

# Of torchvision's RandomResizedCrop: two numbers an attempt, and two for the position.
_ATTEMPTS = 10
_RATIOS = (3 / 4, 4 / 3)
CROP_NUMBERS = 2 * _ATTEMPTS + 2


def random_stream(seed: int, *numbers: int) -> np.random.RandomState:
  """A stream that NumPy has frozen (NEP 19): equal on all machines and in all versions."""
  return np.random.RandomState([seed % 2**32, *numbers])


def epoch_order(seed: int, epoch: int, images: int) -> Int64[np.ndarray, "n"]:
  """The order in which an epoch visits the images; its step s takes the s-th batch of it."""
  return random_stream(seed, epoch, ORDER).permutation(images).astype(np.int64, copy=False)


def epoch_flips(seed: int, epoch: int, images: int, *, flip: str) -> Bool[np.ndarray, "n"]:
  """Which images an epoch flips left to right, by number.

  Args:
    seed: of the run.
    epoch: from 0.
    images: in the set.
    flip: "none"; "random", each image with probability 1/2; "alternating", each image with
      probability 1/2 in the first epoch and then in every other one (see `batch.epoch_order`).
  """
  if flip == "none":
    return np.zeros(images, bool)
  bits = random_stream(seed, epoch if flip == "random" else 0, FLIP).random_sample(images) < 0.5
  return bits ^ (flip == "alternating" and epoch % 2 == 1)


def crop_boxes(
  uniform: Float[np.ndarray, "n 22"],
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  *,
  min_scale: float,
) -> Int32[np.ndarray, "n 4"]:
  """The random part of each image that torchvision's RandomResizedCrop takes.

  Ten attempts draw an area, uniform from `min_scale` of the image to all of it, and a ratio, whose
  logarithm is uniform between those of 3/4 and 4/3; the first that fits is taken, at a uniform
  place. Where none fits it is the central part with the nearest ratio.

  Args:
    uniform: numbers in [0, 1): areas and ratios of the attempts, then the place, vertical first.
    width: of each image.
    height: of each image.
    min_scale: least part of an image's area.

  Returns:
    y, x, height and width, in pixels.
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
  # With a place of 1/2 the floor of (free + 1) / 2 would lean to the far side by half a pixel.
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
  """What torchvision's Resize(resize) and CenterCrop(shape) need of each image.

  Args:
    width: of each image.
    height: of each image.
    shape: (height, width) of what is cut out; it may be larger than the resized image.
    resize: the short side after resizing.

  Returns:
    The part of each image to be decoded (y, x, height, width), and the (vertical, horizontal)
    scale and translation that take it to the shape, as `tf.raw_ops.ScaleAndTranslate` counts:
    output = scale * input + translation. The part has a margin as wide as the filter.
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


# By EXIF's number: rows and columns swapped, upside down, left to right.
_TURNS = np.array([TURNS.get(number, TURNS[1]) for number in range(9)])


def stored_boxes(
  box: Int32[np.ndarray, "n 4"],
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  orientation: Int[np.ndarray, "n"],
) -> Int32[np.ndarray, "n 4"]:
  """Where boxes of images as they are shown lie in the images as they are stored.

  Args:
    box: y, x, height and width, in pixels.
    width: of each image as it is shown.
    height: of each image as it is shown.
    orientation: EXIF's number, 1 where both are the same.
  """
  swap, upside_down, mirror = _TURNS[orientation].T
  y, x, h, w = box.T
  y = np.where(upside_down, height - y - h, y)
  x = np.where(mirror, width - x - w, x)
  return np.where(swap, [x, y, w, h], [y, x, h, w]).T.astype(np.int32)


def stored_windows(
  box: Int32[np.ndarray, "n 4"],
  scale: Float[np.ndarray, "n 2"],
  translation: Float[np.ndarray, "n 2"],
  width: Int[np.ndarray, "n"],
  height: Int[np.ndarray, "n"],
  orientation: Int[np.ndarray, "n"],
  *,
  shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Int32[np.ndarray, "n 2"]]:
  """`central_windows` of images as they are stored, and the shape that each has before its turn.

  An axis that the turn reverses is counted from its other end: output = scale * input +
  translation becomes shape - output = scale * (box - input) + translation.
  """
  swap, *reverse = _TURNS[orientation].T
  shapes = np.tile(np.array(shape, np.int32), (len(box), 1))
  reversed_ = (shapes - scale * box[:, 2:] - translation).astype(np.float32)
  translation = np.where(np.stack(reverse, 1), reversed_, translation)
  scale, translation, shapes = (
    np.where(swap[:, None], pair[:, ::-1], pair) for pair in (scale, translation, shapes)
  )
  return stored_boxes(box, width, height, orientation), scale, translation, shapes
