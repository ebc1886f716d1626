"""The tenth of a data set that is held out, for evaluation or for tuning."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64


def held_out_count(images: int) -> int:
  """Return how many of `images` are held out: a tenth, and at least one."""
  return images // 10 or 1


def split_by_digest(
  digests: Iterable[bytes],
) -> tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]:
  """Return the numbers of images to keep and to hold out, both ascending.

  Args:
    digests: eight random-looking bytes for each image; the images with the smallest are held out.
  """
  order = np.argsort(np.frombuffer(b"".join(digests), "<u8"), kind="stable")
  held_out = held_out_count(len(order))
  return np.sort(order[held_out:]), np.sort(order[:held_out])
