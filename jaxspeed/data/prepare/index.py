"""The index of a set's sizes that lies beside its images, and the images that have no size."""

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
  """Reads the headers of a set's images and stores their sizes beside them, in FOLDER/.jaxspeed.

  What an index of before says is not believed: files may have changed under their names.

  Args:
    folder: of train/CLASS/NAME and val/CLASS/NAME, or of shards.
    show: called with the numbers of headers that are read and that are to be read.

  Raises:
    UserError: there is no complete set of images, or the folder cannot be written.
  """
  root = expanded(folder, "FOLDER")
  with writing(folder), tempfile.TemporaryDirectory() as cache:
    images = open_images(name="", path=str(folder), cache=cache, show=show, anew=True)
    with waiting_for(root):
      remove_indices(root)
      write_indices(images)
  return images


def remove_indices(root: pathlib.Path) -> None:
  """Removes the index that lies in a set's own folder, and what a kill left of others.

  Raises:
    UserError: there is more than indices hold.
    OSError: it cannot be removed.
  """
  own = root / ".jaxspeed"
  for stale in (".train.*", "train", ".val.*", "val"):  # with a dot: what a kill left
    for each in own.glob(stale):
      _refuse_strangers(each)
      shutil.rmtree(each)
  for each in own.glob(f"{TEMPORARY}*"):
    if each.is_dir():  # a file is that of a mark or of settings
      _refuse_strangers(each)
      shutil.rmtree(each)


def _refuse_strangers(index: pathlib.Path) -> None:
  """Raises a UserError where a folder that is to be removed holds more than an index has."""
  for path in index.iterdir():
    if path.suffix not in (".npy", ".json") or path.is_dir():
      raise UserError(f"{path} is no part of an index: move {index} away and run again.")


def broken_headers(images: ImageSet) -> tuple[Broken, ...]:
  """The images whose sizes are not known."""
  return tuple(
    Broken(split.name(int(number)), "it has no header of an image")
    for split in (images.train, images.eval)
    for number in np.flatnonzero(split.width == 0)
  )


def write_indices(images: ImageSet) -> None:
  """Stores the sizes of all images in the set's own folder, where every machine finds them.

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
