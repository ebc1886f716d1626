"""Grey images as images of three equal channels, which is what models take."""

import numpy as np
from jaxtyping import UInt8


def repeat_grey(images: np.ndarray) -> UInt8[np.ndarray, "n h w 3"]:
  """Return images [n, h, w] or [n, h, w, 1] with their values in three channels."""
  return np.repeat(images.reshape(*images.shape[:3], 1), 3, axis=-1)


def grey_note(grey: int, images: int) -> tuple[str, ...]:
  """Return a note about grey images, if there are any.

  Args:
    grey: number of grey images.
    images: number of images.
  """
  if not grey:
    return ()
  which = f"all {images:,}" if grey == images else f"{grey:,} of {images:,}"
  return (f"{which} images are grey: repeated to three channels",)
