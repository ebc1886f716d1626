"""Broken images of a table: why they are broken, and which images take their places."""

import numpy as np
from jaxtyping import Bool, Int64
from PIL import UnidentifiedImageError

from jaxspeed.data import remote
from jaxspeed.data.formats import pixels
from jaxspeed.data.table import Table
from jaxspeed.errors import UserError


def why_broken(split: Table, number: int) -> str:
  """Read an image and return why it is broken.

  Raises:
    UserError: its size in bytes has changed since it was indexed.
  """
  try:
    encoded = split.read(number)
  except OSError as error:
    return f"it cannot be read: {error.strerror or error}"
  require_length(split, number, len(encoded))
  try:
    pixels.decode(encoded)
  except (UnidentifiedImageError, ValueError) as error:  # Pillow names what it cannot read
    return pixels.reason_of(error) if encoded else "it is empty"
  except Exception:
    pass  # TensorFlow refuses what Pillow shows in part
  return "its data are damaged or cut off"


def require_length(split: Table, number: int, length: int) -> None:
  """Check that an image has as many bytes as when it was indexed.

  Raises:
    UserError: it has not.
  """
  if length == split.length[number]:
    return
  advice = "upload the set again with python -m jaxspeed.prepare shards"
  if not remote.is_remote(split.root):
    advice = f"remove its index {split.index}, and the same command makes it again"
  raise UserError(
    f"{split.name(number)} in {split.root} has changed since the images were indexed "
    f"({split.length[number]:,} bytes then, {length:,} now): {advice}."
  )


def next_sound(
  split: Table, index: Int64[np.ndarray, "b"], sound: Bool[np.ndarray, "b"]
) -> Int64[np.ndarray, "b"]:
  """Return for each row of a batch the next one that is sound, from it on and then from the first.

  Args:
    split: the images.
    index: the number of the image in each row.
    sound: whether it can be decoded.

  Raises:
    UserError: none can.
  """
  rows = np.flatnonzero(sound)
  if not len(rows):
    number = int(index[0])
    raise UserError(
      f"none of {len(index)} images in a row can be decoded, the first of them "
      f"{split.name(number)} in {split.root} ({why_broken(split, number)}): repair the data set, "
      "or name another."
    )
  return rows[np.searchsorted(rows, np.arange(len(index))) % len(rows)]
