"""Notes about grey images and 16-bit images in a stream, from a few of its images."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table

# Enough to tell grey data sets from ImageNet, of which 2 % is grey; read at once, as a network disk
# takes 20 ms for one.
_SAMPLES = 16
# 16-bit images are decoded to tell how bright they are: the upper 8 bits of 12 are 0 ... 15.
_DECODED = 4
_DARK = 64
_GREY = ("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I")


def colour_notes(split: Table) -> list[str]:
  """Return notes about images that are grey or dark; the index of sizes does not hold colours.

  Args:
    split: images; 16 of them are opened, and broken ones passed over.
  """
  sound = np.flatnonzero(split.width)
  places = np.linspace(0, len(sound) - 1, min(_SAMPLES, len(sound))).astype(int)
  with ThreadPoolExecutor(_SAMPLES) as pool:
    modes = list(pool.map(lambda number: _mode(split, int(number)), sound[places]))
  found = [mode for mode in modes if mode]
  grey = sum(mode in _GREY for mode in found)
  if 2 * grey <= len(found):
    return []
  which = "all" if grey == len(found) else str(grey)
  notes = [f"images are grey ({which} of {len(found)} looked at): repeated to three channels"]
  deep = [int(n) for n, mode in zip(sound[places], modes, strict=True) if mode.startswith("I")]
  brightest = max(_brightest(split, deep[:_DECODED]), default=255)
  if brightest < _DARK:
    notes.append(
      f"images have 16 bits, of which the upper 8 are used, and are dark: the brightest of "
      f"{min(len(deep), _DECODED)} looked at is {brightest} of 255; store images that are scaled "
      "to the whole range"
    )
  return notes


def _mode(split: Table, number: int) -> str:
  """Return Pillow's mode of an image; '' where it cannot be read."""
  try:
    with pixels.open_image(io.BytesIO(split.read(number))) as image:
      return image.mode
  except Exception:  # Pillow raises almost anything
    return ""


def _brightest(split: Table, numbers: list[int]) -> Iterator[int]:
  """Yield the largest value of each image with 8 bits, of those that can be read."""
  for number in numbers:
    try:
      with Image.open(io.BytesIO(split.read(number))) as image:
        yield int(np.asarray(pixels.load(image)).max())
    except Exception:  # as above
      continue
