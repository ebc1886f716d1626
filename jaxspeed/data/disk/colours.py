"""A note about dark images of 16 bits, from a few images of a data set."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table

# Read at once, as a network disk takes 20 ms for one.
_SAMPLES = 16
_DARK = 64


def dark_note(split: Table) -> list[str]:
  """Return a note if images have 16 bits but only low values, as scans of 12 bits have.

  Args:
    split: images; 16 of them are opened, and broken ones passed over.
  """
  sound = np.flatnonzero(split.width)
  places = np.linspace(0, len(sound) - 1, min(_SAMPLES, len(sound))).astype(int)
  with ThreadPoolExecutor(_SAMPLES) as pool:
    found = [each for each in pool.map(lambda i: _brightest(split, int(i)), sound[places]) if each]
  if 2 * len(found) <= len(places) or max(found) >= _DARK:
    return []
  return [
    "images have 16 bits, of which the upper 8 are used, and are dark: the brightest of "
    f"{len(found)} looked at is {max(found)} of 255; store them scaled to the whole range"
  ]


def _brightest(split: Table, number: int) -> int:
  """Return the largest value, in 8 bits, of an image of 16; 0 if it has 8 or cannot be read."""
  try:
    with pixels.open_image(io.BytesIO(split.read(number))) as image:
      return int(np.asarray(pixels.load(image)).max()) if image.mode.startswith("I") else 0
  except Exception:  # Pillow raises almost anything
    return 0
