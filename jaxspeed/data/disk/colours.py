"""Notes about grey images and 16-bit images in a stream, from a few of its images."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table

# Enough to tell grey data sets from ImageNet, of which 2 % is grey; read at once, as a network disk
# takes 20 ms for one.
_SAMPLES = 16
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
    found = [each for each in pool.map(lambda i: _look_at(split, int(i)), sound[places]) if each]
  grey = sum(mode in _GREY for mode, _ in found)
  if 2 * grey <= len(found):
    return []
  which = "all" if grey == len(found) else str(grey)
  notes = [f"images are grey ({which} of {len(found)} looked at): repeated to three channels"]
  deep = [brightest for mode, brightest in found if mode.startswith("I")]
  if max(deep, default=255) < _DARK:
    notes.append(
      f"images have 16 bits, of which the upper 8 are used, and are dark: the brightest of "
      f"{len(deep)} looked at is {max(deep)} of 255; store images that are scaled to the whole "
      "range"
    )
  return notes


def _look_at(split: Table, number: int) -> tuple[str, int] | None:
  """Return an image's mode and, of 16 bits, its largest value in 8; None if it cannot be read."""
  try:
    with pixels.open_image(io.BytesIO(split.read(number))) as image:
      mode = image.mode
      return mode, int(np.asarray(pixels.load(image)).max()) if mode.startswith("I") else 255
  except Exception:  # Pillow raises almost anything
    return None
