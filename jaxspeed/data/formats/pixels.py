"""Images as Pillow reads them: size, rotation and 8-bit pixels, one rule for every command.

    with open_image(file) as image:
      header = header_of(image)
      pixels = upright(load(image), header.orientation)

TensorFlow's graph, which decodes JPEG, PNG and GIF in training, makes the same pixels of them; of
the other formats it takes `decode`. Transparency is dropped. Grey of 16 bits keeps its upper 8, as
16-bit colours do in both libraries. A rotation or reflection in the EXIF header is applied.
"""

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import (
  Image,
  ImageOps,
  TiffImagePlugin,  # noqa: F401  registers TIFF without importing all plugins
  UnidentifiedImageError,
  WebPImagePlugin,  # noqa: F401  as above
)

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# The first bytes of the formats that TensorFlow decodes as Pillow does. Of BMP's kinds it decodes
# a palette as grey, and some not at all.
JPEG_SIGNATURE = b"\xff\xd8\xff"
TENSORFLOW_SIGNATURES = (JPEG_SIGNATURE, b"\x89PNG\r\n\x1a\n", b"GIF8")

_ORIENTATION, _WIDTH, _HEIGHT = 0x0112, 0x0100, 0x0101  # tags of TIFF, and so of EXIF
# What EXIF's orientations ask for, in this order: rows and columns swapped, then upside down, then
# left to right.
TURNS = {
  1: (False, False, False),
  2: (False, False, True),
  3: (False, True, True),
  4: (False, True, False),
  5: (True, False, False),
  6: (True, False, True),
  7: (True, True, True),
  8: (True, True, False),
}


class Header(NamedTuple):
  """Size of an image as it is shown, in pixels, and the turn (EXIF's 1 ... 8) that leads there."""

  width: int
  height: int
  orientation: int


def open_image(file: BinaryIO) -> Image.Image:
  """An image of one of FORMATS, its header read.

  Raises:
    Exception: of whatever type Pillow raises; it is no image, or a damaged one.
  """
  return Image.open(file, formats=FORMATS)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
  """Drops Pillow's warnings, of large images and odd headers; for one thread at a time."""
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    yield


@functools.cache
def drop_warnings() -> None:
  """Drops Pillow's warnings from now on, for threads, which share what `without_warnings` sets."""
  warnings.filterwarnings("ignore", module=r"PIL\b")


def header_of(image: Image.Image) -> Header:
  """Size and orientation of an image that was opened and not yet loaded."""
  if image.format == "TIFF":
    tags = image.tag_v2  # type: ignore[attr-defined]
    width, height = int(tags[_WIDTH]), int(tags[_HEIGHT])
    # `load` turns it, as Pillow itself does in newer versions.
    swapped = TURNS.get(tags.get(_ORIENTATION, 1), TURNS[1])[0]
    return Header(*((height, width) if swapped else (width, height)), 1)
  orientation = 1
  # Not `getexif`, which of a PNG decodes all pixels.
  if exif := image.info.get("exif"):
    parsed = Image.Exif()
    with contextlib.suppress(Exception):  # damaged metadata of a sound image
      parsed.load(exif)
      orientation = parsed.get(_ORIENTATION, 1)
  if orientation not in TURNS:
    orientation = 1
  width, height = image.size
  return Header(*((height, width) if TURNS[orientation][0] else (width, height)), orientation)


def load(image: Image.Image) -> Image.Image:
  """The pixels in 8 bits a channel, mode L where they are grey, else RGB; turned only if TIFF.

  Raises:
    ValueError: they have 32 bits, of which nothing tells the range.
    Exception: as `open_image`.
  """
  image.load()
  is_png = image.format == "PNG"
  if image.format == "TIFF":
    image = ImageOps.exif_transpose(image)
  # Before Pillow 11 a PNG of 16 bits has mode I. Pillow's own conversion would clip at 255.
  if image.mode.startswith("I;16") or (image.mode == "I" and is_png):
    return Image.fromarray((np.clip(np.asarray(image), 0, 65_535) >> 8).astype(np.uint8))
  if image.mode in ("I", "F"):
    raise ValueError(f"its pixels have 32 bits (mode {image.mode}), and 8 or 16 are read")
  mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
  return image if image.mode == mode else image.convert(mode)


def upright(image: Image.Image, orientation: int) -> Image.Image:
  """The image turned as its EXIF orientation asks."""
  swap, upside_down, mirror = TURNS[orientation]
  for turn, method in (
    (swap, Image.Transpose.TRANSPOSE),
    (upside_down, Image.Transpose.FLIP_TOP_BOTTOM),
    (mirror, Image.Transpose.FLIP_LEFT_RIGHT),
  ):
    image = image.transpose(method) if turn else image
  return image


def load_upright(file: BinaryIO) -> Image.Image:
  """An image as it is shown, in mode RGB.

  Raises:
    Exception: as `open_image` and `load`.
  """
  with open_image(file) as image:
    orientation = header_of(image).orientation
    return upright(load(image).convert("RGB"), orientation)


def decode(encoded: bytes) -> UInt8[np.ndarray, "h w 3"]:
  """The pixels of an image before the turn that `header_of` gives.

  Raises:
    Exception: as `open_image` and `load`.
  """
  with open_image(io.BytesIO(encoded)) as image:
    return np.asarray(load(image).convert("RGB"))


def reason_of(error: Exception) -> str:
  """Why an image cannot be read, in a few words that are the same in every run."""
  if isinstance(error, UnidentifiedImageError):
    return "it is no image of a known format"  # Pillow's words hold an address
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  first_line = next(iter(str(error).splitlines()), "")
  return first_line or type(error).__name__
