"""Size, rotation and 8-bit pixels of images as Pillow reads them, for every command.

    with open_image(file) as image:
      header = header_of(image)
      pixels = upright(load(image), header.orientation)

In training, TensorFlow's graph decodes JPEG, PNG and GIF to the same pixels, and calls `decode` for
other formats. Transparency is dropped. 16-bit grey keeps its upper 8 bits, as 16-bit colours do in
both libraries. A rotation or reflection in the EXIF header is applied.
"""

import contextlib
import io
import warnings
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
# The first bytes of the formats that TensorFlow decodes as Pillow does. It decodes a BMP's palette
# as grey, and some BMPs not at all.
JPEG_SIGNATURE = b"\xff\xd8\xff"
TENSORFLOW_SIGNATURES = (JPEG_SIGNATURE, b"\x89PNG\r\n\x1a\n", b"GIF8")

_ORIENTATION, _WIDTH, _HEIGHT = 0x0112, 0x0100, 0x0101  # tags of TIFF, and so of EXIF
# The turn of each EXIF orientation: whether rows and columns are swapped, then the image is flipped
# upside down, then left to right.
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
  """An image's size as shown, in pixels, and EXIF's number (1 ... 8) of the turn it still needs."""

  width: int
  height: int
  orientation: int


def open_image(file: BinaryIO) -> Image.Image:
  """Open an image of one of FORMATS and read its header.

  Raises:
    Exception: any type that Pillow raises; it is not an image, or is damaged.
  """
  return Image.open(file, formats=FORMATS)


def drop_warnings() -> None:
  """Drop Pillow's warnings about large images and odd headers from now on, in all threads."""
  warnings.filterwarnings("ignore", module=r"PIL\b")


def header_of(image: Image.Image) -> Header:
  """Return the size and orientation of an image that was opened but not loaded."""
  if image.format == "TIFF":
    tags = image.tag_v2  # type: ignore[attr-defined]
    width, height = int(tags[_WIDTH]), int(tags[_HEIGHT])
    # `load` turns it, as newer versions of Pillow do themselves.
    swapped = TURNS.get(tags.get(_ORIENTATION, 1), TURNS[1])[0]
    return Header(*((height, width) if swapped else (width, height)), 1)
  orientation = 1
  # Not `getexif`, which decodes all pixels of a PNG.
  if exif := image.info.get("exif"):
    parsed = Image.Exif()
    with contextlib.suppress(Exception):  # the metadata may be damaged in a sound image
      parsed.load(exif)
      orientation = parsed.get(_ORIENTATION, 1)
  if orientation not in TURNS:
    orientation = 1
  width, height = image.size
  return Header(*((height, width) if TURNS[orientation][0] else (width, height)), orientation)


def load(image: Image.Image) -> Image.Image:
  """Return the pixels with 8 bits a channel, in mode L if grey, else RGB; only a TIFF is turned.

  Raises:
    ValueError: the pixels have 32 bits, with an unknown range.
    Exception: as in `open_image`.
  """
  image.load()
  is_png = image.format == "PNG"
  if image.format == "TIFF":
    image = ImageOps.exif_transpose(image)
  # Before Pillow 11 a PNG of 16 bits has mode I. Pillow's own conversion would clip at 255.
  if image.mode.startswith("I;16") or (image.mode == "I" and is_png):
    return Image.fromarray((np.clip(np.asarray(image), 0, 65_535) >> 8).astype(np.uint8))
  if image.mode in ("I", "F"):
    raise ValueError(f"its pixels have 32 bits (mode {image.mode}), not 8 or 16")
  mode = "L" if image.mode in ("1", "L", "LA", "La") else "RGB"
  return image if image.mode == mode else image.convert(mode)


def upright(image: Image.Image, orientation: int) -> Image.Image:
  """Turn an image by its EXIF orientation."""
  swap, upside_down, flip = TURNS[orientation]
  for turn, method in (
    (swap, Image.Transpose.TRANSPOSE),
    (upside_down, Image.Transpose.FLIP_TOP_BOTTOM),
    (flip, Image.Transpose.FLIP_LEFT_RIGHT),
  ):
    image = image.transpose(method) if turn else image
  return image


def as_shown(image: Image.Image) -> Image.Image:
  """Return an image as it is shown, in mode RGB.

  Raises:
    Exception: as in `load`.
  """
  orientation = header_of(image).orientation
  return upright(load(image).convert("RGB"), orientation)


def decode(encoded: bytes | memoryview) -> UInt8[np.ndarray, "h w 3"]:
  """Return the pixels of an image as it is shown.

  Raises:
    Exception: as in `open_image` and `load`.
  """
  with open_image(io.BytesIO(encoded)) as image:
    return np.asarray(as_shown(image))


def reason_of(error: Exception) -> str:
  """Return why an image cannot be read, in a few words that are the same in every run."""
  if isinstance(error, UnidentifiedImageError):
    return "it is not an image of a known format"  # Pillow's message holds an address
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  first_line = next(iter(str(error).splitlines()), "")
  return first_line or type(error).__name__
