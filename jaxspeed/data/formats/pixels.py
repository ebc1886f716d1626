"""Size, rotation and 8-bit pixels of images as Pillow reads them, for every command.

    with open_image(file) as image:
      width, height, orientation = header_of(image)
      pixels = upright(load(image), orientation)

In training, TensorFlow's graph decodes JPEG, PNG and GIF to the same pixels, and calls `decode` for
other formats. Transparency is dropped. 16-bit grey keeps its upper 8 bits, as 16-bit colours do in
both libraries. A rotation or reflection in the EXIF header is applied.
"""

import contextlib
import io
import warnings
from typing import BinaryIO

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
# What decodes an image's pixels in training. TensorFlow decodes a BMP's palette as grey, and some
# BMPs not at all.
JPEG, TENSORFLOW, PILLOW = range(3)
_DECODERS = {"JPEG": JPEG, "MPO": JPEG, "PNG": TENSORFLOW, "GIF": TENSORFLOW}  # by Pillow's format

_ORIENTATION, _WIDTH, _HEIGHT = 0x0112, 0x0100, 0x0101  # tags of TIFF, and so of EXIF
# The turns by EXIF orientation, from 2 on; those from 5 on swap rows and columns.
_TURNS = (
  Image.Transpose.FLIP_LEFT_RIGHT,
  Image.Transpose.ROTATE_180,
  Image.Transpose.FLIP_TOP_BOTTOM,
  Image.Transpose.TRANSPOSE,
  Image.Transpose.ROTATE_270,
  Image.Transpose.TRANSVERSE,
  Image.Transpose.ROTATE_90,
)


def open_image(file: BinaryIO) -> Image.Image:
  """Open an image of one of FORMATS and read its header.

  Raises:
    Exception: any type that Pillow raises; it is not an image, or is damaged.
  """
  return Image.open(file, formats=FORMATS)


def drop_warnings() -> None:
  """Drop Pillow's warnings about large images and odd headers from now on, in all threads."""
  warnings.filterwarnings("ignore", module=r"PIL\b")


def header_of(image: Image.Image) -> tuple[int, int, int]:
  """Return the width and height of an image as shown, and EXIF's number of the turn it still needs.

  The number is 1 ... 8. The image was opened but not loaded.
  """
  if image.format == "TIFF":
    tags = image.tag_v2  # type: ignore[attr-defined]
    width, height = int(tags[_WIDTH]), int(tags[_HEIGHT])
    # `load` turns it, as newer versions of Pillow do themselves.
    return *swapped(width, height, tags.get(_ORIENTATION, 1)), 1
  orientation = 1
  # Not `getexif`, which decodes all pixels of a PNG.
  if exif := image.info.get("exif"):
    parsed = Image.Exif()
    with contextlib.suppress(Exception):  # the metadata may be damaged in a sound image
      parsed.load(exif)
      orientation = int(parsed.get(_ORIENTATION, 1))
  if orientation not in range(1, 9):
    orientation = 1
  return *swapped(*image.size, orientation), orientation


def swapped(width: int, height: int, orientation: int) -> tuple[int, int]:
  """Return the size after the turn of an EXIF orientation."""
  return (height, width) if orientation in range(5, 9) else (width, height)


def decoder_of(image: Image.Image, orientation: int) -> int:
  """Return which decoder reads an image as it is shown."""
  return _DECODERS.get(image.format or "", PILLOW) if orientation == 1 else PILLOW


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
  return image.transpose(_TURNS[orientation - 2]) if orientation > 1 else image


def as_shown(image: Image.Image) -> Image.Image:
  """Return an image as it is shown, in mode RGB.

  Raises:
    Exception: as in `load`.
  """
  *_, orientation = header_of(image)
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
