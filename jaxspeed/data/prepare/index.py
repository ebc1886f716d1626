"""The index of image sizes beside the images, and the images without a size."""

import os
from collections.abc import Callable

import numpy as np

from jaxspeed.data.disk.sources import ImageSet, open_images
from jaxspeed.data.prepare.writing import Broken


def write_index(
  folder: str | os.PathLike[str], *, show: Callable[[int, int], None] | None = None
) -> ImageSet:
  """Read the headers of a data set's images and store their sizes in FOLDER/.jaxspeed.

  An older index is ignored, because files may have changed without changing their names.

  Args:
    folder: a folder with train/CLASS/NAME and val/CLASS/NAME, or one of shards.
    show: called with the number of headers read and the total.

  Raises:
    UserError: the data set is incomplete, a shard is damaged, or the folder cannot be written.
  """
  return open_images(name="", path=str(folder), cache="", show=show, beside=True)


def broken_headers(images: ImageSet) -> tuple[Broken, ...]:
  """Return the images without a readable header."""
  return tuple(
    Broken(images.table.name(number), "it has no header of an image")
    for number in np.flatnonzero(images.table.width == 0).tolist()
  )
