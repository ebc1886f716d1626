"""The index of image sizes in a data set's own folder, and the images without a size."""

import dataclasses
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable

import numpy as np

from jaxspeed.data.disk import sizes
from jaxspeed.data.disk.imageset import ImageSet, open_images
from jaxspeed.data.prepare.writing import waiting_for, writing
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY, expanded


@dataclasses.dataclass(frozen=True)
class Broken:
  """An image that cannot be read: its name below the source's folder, and why."""

  name: str
  reason: str


def write_index(
  folder: str | os.PathLike[str], *, show: Callable[[int, int], None] | None = None
) -> ImageSet:
  """Read the headers of a data set's images and store their sizes in FOLDER/.jaxspeed.

  An older index is ignored, because files may have changed without changing their names.

  Args:
    folder: a folder with train/CLASS/NAME and val/CLASS/NAME, or one of shards.
    show: called with the number of headers read and the total.

  Raises:
    UserError: the data set is incomplete, or the folder cannot be written.
  """
  root = expanded(folder, "FOLDER")
  with writing(folder), tempfile.TemporaryDirectory() as cache:
    images = open_images(name="", path=str(folder), cache=cache, show=show, anew=True)
    with waiting_for(root):
      remove_indices(root)
      write_indices(images)
  return images


def remove_indices(root: pathlib.Path) -> None:
  """Remove the index in a data set's own folder, and parts of indices that a kill left.

  Raises:
    UserError: an index's folder holds other files.
    OSError: the index cannot be removed.
  """
  own = root / ".jaxspeed"
  for stale in (".train.*", "train", ".val.*", "val"):  # those with a dot were left by a kill
    for each in own.glob(stale):
      _refuse_strangers(each)
      shutil.rmtree(each)
  for each in own.glob(f"{TEMPORARY}*"):
    if each.is_dir():  # files belong to marks or settings
      _refuse_strangers(each)
      shutil.rmtree(each)


def _refuse_strangers(index: pathlib.Path) -> None:
  """Raise a UserError where a folder to remove holds files that no index has."""
  for path in index.iterdir():
    if path.suffix not in (".npy", ".json") or path.is_dir():
      raise UserError(f"{path} is not part of an index: move {index} away and run again.")


def broken_headers(images: ImageSet) -> tuple[Broken, ...]:
  """Return the images without a readable header."""
  return tuple(
    Broken(split.name(int(number)), "it has no header of an image")
    for split in (images.train, images.eval)
    for number in np.flatnonzero(split.width == 0)
  )


def write_indices(images: ImageSet) -> None:
  """Store the sizes of all images in the data set's own folder, where every machine finds them.

  Raises:
    UserError: the folder cannot be written.
  """
  splits = {"train": images.whole} if images.whole else {"train": images.train, "val": images.eval}
  for split_name, split in splits.items():
    columns = {
      "width": split.width,
      "height": split.height,
      "orientation": split.orientation,
      "length": split.length,
    }
    if split.whole_files:
      source = sizes.files_source(["/".join(file.split(os.sep)[-2:]) for file in split.files])
    else:
      assert split.digest is not None
      columns |= {"offset": split.offset, "label": split.label, "digest": split.digest}
      columns["file"] = split.file
      source = sizes.shards_source([pathlib.Path(file) for file in split.files])
    sizes.write_index(pathlib.Path(split.root), split_name, columns, source)
