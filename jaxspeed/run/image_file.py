"""An image file, or an image of Pillow, as a model sees it."""

import os

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.pixels import reason_of
from jaxspeed.errors import UserError
from jaxspeed.files import open_regular


class BrokenImage(UserError):
  """A file that cannot be read as an image.

  Its `reason` has a few words, without the name.
  """

  def __init__(self, sentence: str, reason: str) -> None:
    super().__init__(sentence)
    self.reason = reason


def read_image(
  path: str | os.PathLike[str] | Image.Image, size: int, resize: int, *, antialias: bool = True
) -> UInt8[np.ndarray, "size size 3"]:
  """An image as the model sees it: RGB, short side resized to `resize`, center crop.

  The pixels are those of `streams.EvalStream`, which uses TensorFlow, to a grey level or two.

  Args:
    path: the path of a file in one of `pixels.FORMATS`, or an image of Pillow.
    size: both sides of the result, in pixels; black beyond the edges of the resized image.
    resize: the short side before the crop, in pixels.
    antialias: as in `streams.TrainStream`.

  Raises:
    BrokenImage: the file is missing or no image.
  """
  try:
    if isinstance(path, Image.Image):
      return _cropped(pixels.as_shown(path), size, resize, antialias)
    path = os.fspath(path)
    with open_regular(path) as file:
      return _cropped(pixels.load_upright(file), size, resize, antialias)
  except FileNotFoundError:
    raise BrokenImage(f"{path}: there is no such file.", "there is no such file") from None
  except Exception as error:  # Pillow raises almost anything
    if isinstance(path, str) and os.path.isdir(path):
      files = f"{path.rstrip('/')}/*"
      sentence = f"{path} is a folder: name its files, as in {files}, or add --csv to `predict`."
      raise BrokenImage(sentence, "it is a folder") from None
    reason = reason_of(error)
    raise BrokenImage(f"{path} cannot be read as an image: {reason}.", reason) from None


def _cropped(
  image: Image.Image, size: int, resize: int, antialias: bool
) -> UInt8[np.ndarray, "size size 3"]:
  short = min(image.size)
  # Only the crop is resized: a strip of 1 x 50,000 pixels would not fit in memory.
  (left, right, x, width), (top, bottom, y, height) = (
    _shown(side, resize * side // short, size) for side in image.size
  )
  box = (left, top, right, bottom)
  if antialias:
    shown = image.resize((width, height), Image.Resampling.BILINEAR, box)
  else:
    shown = _interpolate(image, (width, height), box)
  square = Image.new("RGB", (size, size))
  square.paste(shown, (x, y))
  return np.asarray(square)


def _shown(side: int, resized: int, size: int) -> tuple[float, float, int, int]:
  """The part of a side that a center crop shows, rounded as in `crops.central_windows`.

  Returns:
    The part's begin and end in the image, and its first pixel and length in the result.
  """
  room = resized - size
  first = round(room / 2) if room >= 0 else -(-room // 2)
  begin, end = max(first, 0), min(first + size, resized)
  return begin * side / resized, end * side / resized, begin - first, end - begin


def _interpolate(
  image: Image.Image, size: tuple[int, int], box: tuple[float, float, float, float]
) -> Image.Image:
  """Interpolates between the nearest pixels; in float32, as Pillow would drop the fractions."""
  how = (Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
  planes = [plane.convert("F").transform(size, *how) for plane in image.split()]
  values = np.stack([np.asarray(plane) for plane in planes], -1)
  return Image.fromarray(np.rint(values).astype(np.uint8))
