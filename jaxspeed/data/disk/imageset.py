"""Sets of encoded images on the disk, of any size: which images there are, where, of which class.

    images = open_images(name="imagenet2012", path="/data/imagenet", cache="")
    encoded = images.train.read(0)

What lies at `path` is a folder of train/CLASS/*.jpg and val/CLASS/*.jpg, or one that TFDS prepared
(`tfrecord.py`), whose TFRecords hold the encoded images. No image is decoded here, and TensorFlow
is not needed, except by TFDS where it is to download a set.
"""

import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from jaxspeed.data.disk import sizes
from jaxspeed.data.disk.sizes import SUFFIXES, Columns, Show, files_listing, shards_listing
from jaxspeed.data.formats.tfrecord import TfdsInfo, find_tfds, open_tfds, prepare_with_tfds
from jaxspeed.errors import UserError

_EVAL_FOLDERS = ("val", "validation", "test")
_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), or a "
  "folder that TFDS prepared (dataset_info.json)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """The images of one split, by number 0 ... n - 1.

  Attributes:
    files: absolute names; one an image, or shards that hold many.
    file: which of `files` holds the image.
    offset: of the encoded image's first byte in it.
    length: the encoded image's bytes.
    label: from 0.
    width: in pixels, from its header, as stored: a rotation by EXIF is not applied, as TensorFlow
      and torchvision's ImageFolder do not either; 0 where the header cannot be read.
    height: as `width`.
    whole_files: every image is a file of its own, and offset is 0.
    root: what names in messages are relative to.
  """

  files: tuple[str, ...]
  file: Int32[np.ndarray, "n"]
  offset: Int64[np.ndarray, "n"]
  length: Int64[np.ndarray, "n"]
  label: Int32[np.ndarray, "n"]
  width: Int32[np.ndarray, "n"]
  height: Int32[np.ndarray, "n"]
  whole_files: bool
  root: str

  def __len__(self) -> int:
    return len(self.label)

  def take(self, index: Int64[np.ndarray, "m"]) -> "Split":
    """The split of these images alone, in their order."""
    columns = ("file", "offset", "length", "label", "width", "height")
    return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in columns})

  def name(self, index: int) -> str:
    """What to call an image in a message."""
    name = os.path.relpath(self.files[self.file[index]], self.root)
    return name if self.whole_files else f"{name}, byte {self.offset[index]}"

  def read(self, index: int) -> bytes:
    """The encoded image.

    Raises:
      OSError: its file cannot be read.
    """
    with open(self.files[self.file[index]], "rb") as file:
      if self.whole_files:
        return file.read()
      file.seek(self.offset[index])
      return file.read(self.length[index])


@dataclasses.dataclass(frozen=True)
class ImageSet:
  """A set of two splits, and what it is and whence; labels index `class_names`."""

  train: Split
  eval: Split
  class_names: tuple[str, ...]
  source: str


def open_images(*, name: str, path: str, cache: str, show: Show | None = None) -> ImageSet:
  """Opens the set that a config names.

  The first time, the header of each image is read (`sizes.py`).

  Args:
    name: of the set, as TFDS calls it.
    path: a folder; '' lets TFDS download and prepare `name`.
    cache: folder of the index; '' means ~/.cache/jaxspeed/data.
    show: called with the numbers of headers that are read and that are to be read.

  Raises:
    UserError: nothing readable is at `path`, or it is damaged or not complete.
  """
  cache_folder = pathlib.Path(cache or "~/.cache/jaxspeed/data").expanduser()
  try:
    if not path:
      return _open_tfds(_prepare(name), cache_folder, show)
    root = pathlib.Path(path).expanduser().absolute()
    if not root.is_dir():
      state = "is a file" if root.exists() else "does not exist"
      raise UserError(f"config.data.path: {root} {state}; it names {_ACCEPTED}.")
    if any((root / each).is_dir() for each in ("train", *_EVAL_FOLDERS)):
      return _open_folders(root, cache_folder, show)
    if version := find_tfds(root, name):
      return _open_tfds(version, cache_folder, show)
  except OSError as error:
    raise UserError(
      f"{error.filename or path or name} cannot be read ({error.strerror or error}): the data set "
      "is not complete, or not readable for you."
    ) from error
  raise UserError(
    f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
  )


def write_indices(images: ImageSet) -> None:
  """Stores the sizes of all images in the set's own folder, where every machine finds them.

  Raises:
    UserError: the folder cannot be written.
  """
  for split_name, split in (("train", images.train), ("val", images.eval)):
    columns = {"width": split.width, "height": split.height, "length": split.length}
    if split.whole_files:
      source = sizes.files_source(["/".join(file.split(os.sep)[-2:]) for file in split.files])
    else:
      columns |= {"offset": split.offset, "label": split.label, "file": split.file}
      source = sizes.shards_source([pathlib.Path(file) for file in split.files])
    sizes.write_index(pathlib.Path(split.root), split_name, columns, source)


def _prepare(name: str) -> pathlib.Path:
  if importlib.util.find_spec("tensorflow_datasets") is None:
    raise UserError(
      f"config.data.path is not set: name {_ACCEPTED}; or install TFDS, which downloads {name} "
      "(pip install 'jaxspeed[imagenet]')."
    )
  return prepare_with_tfds(name, _ACCEPTED)


# Folders


def list_folders(root: pathlib.Path) -> dict[str, dict[str, list[str]]]:
  """Names of the images of a folder, by split ('train', then the other) and class, all sorted.

  Raises:
    UserError: a split is missing, has no class or one without an image, or train/ lacks a class.
    OSError: a folder cannot be read.
  """
  eval_name = next((each for each in _EVAL_FOLDERS if (root / each).is_dir()), None)
  if eval_name is None:
    raise UserError(f"{root} has train/ but none of val/, validation/ and test/ to evaluate on.")
  if not (root / "train").is_dir():
    raise UserError(f"{root} has {eval_name}/ but no train/ to train on.")
  files = {split: _list_classes(root / split) for split in ("train", eval_name)}
  if unknown := [name for name in files[eval_name] if name not in files["train"]]:
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    raise UserError(
      f"{root / eval_name} has classes that train/ lacks ({', '.join(unknown[:3])}{more}): both "
      "name their classes alike."
    )
  return files


def _open_folders(root: pathlib.Path, cache: pathlib.Path, show: Show | None) -> ImageSet:
  listed = list_folders(root)
  _, eval_name = listed
  folders = {"train": root / "train", "val": root / eval_name}
  files = dict(zip(folders, listed.values(), strict=True))
  class_names = tuple(files["train"])
  names = {
    split: [f"{name}/{file}" for name, found in classes.items() for file in found]
    for split, classes in files.items()
  }
  listings = {split: files_listing(folders[split], names[split]) for split in folders}
  columns = sizes.indices(root, listings, cache, show)
  numbers = {name: number for number, name in enumerate(class_names)}
  splits = {}
  for split, classes in files.items():
    counts = [len(found) for found in classes.values()]
    labels = np.repeat(np.array([numbers[name] for name in classes], np.int32), counts)
    splits[split] = Split(
      files=tuple(f"{folders[split]}{os.sep}{name}" for name in names[split]),
      file=np.arange(len(labels), dtype=np.int32),
      offset=np.zeros(len(labels), np.int64),
      label=labels,
      whole_files=True,
      root=str(root),
      **columns[split],
    )
  source = f"{root.name}: folders train and {eval_name}"
  return _with_images(ImageSet(splits["train"], splits["val"], class_names, source))


def _list_classes(folder: pathlib.Path) -> dict[str, list[str]]:
  """The names of the images of each class, both in the order of plain strings.

  Raises:
    UserError: there is no class, or one without an image.
    OSError: a folder cannot be read.
  """
  folders, files = _list_folder(folder)
  if not folders:
    loose = "images but no class folders" if files else "no class folders"
    raise UserError(f"{folder} holds {loose}: put the images of each class in a folder of its own.")
  classes = {}
  for name in folders:
    inner, classes[name] = _list_folder(folder / name)
    if not classes[name]:
      held = (
        f"only sub-folders ({inner[0]}, ...), which are not searched: move its images up"
        if inner
        else f"no image ({', '.join(SUFFIXES)}): remove it, or complete the set"
      )
      raise UserError(f"the class folder {folder / name} holds {held}.")
  return classes


def _list_folder(folder: pathlib.Path) -> tuple[list[str], list[str]]:
  """Names of sub-folders and of images, sorted; hidden ones and other files are left out.

  A link to a file that is missing is an image, to be found out when it is opened.
  """
  folders, images = [], []
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.name.startswith("."):
        continue
      if entry.is_dir():
        folders.append(entry.name)
      elif entry.name.lower().endswith(SUFFIXES):
        images.append(entry.name)
  return sorted(folders), sorted(images)


# TFDS


def _open_tfds(folder: pathlib.Path, cache: pathlib.Path, show: Show | None) -> ImageSet:
  info = open_tfds(folder)
  shards = {"train": info.train, "val": info.eval}
  listings = {
    split: shards_listing(each, info.image_key, info.label_key) for split, each in shards.items()
  }
  columns = sizes.indices(folder, listings, cache, show)
  train, held_out = (
    Split(
      files=tuple(str(shard.path.absolute()) for shard in shards[split]),
      whole_files=False,
      root=str(folder.absolute()),
      **columns[split],
    )
    for split in ("train", "val")
  )
  return _with_images(
    ImageSet(
      train=train,
      eval=held_out,
      class_names=_class_names(info, columns),
      source=f"TFDS {info.name} {folder.name}, splits train and {info.eval_split}",
    )
  )


def _class_names(info: TfdsInfo, columns: Mapping[str, Columns]) -> tuple[str, ...]:
  """The names of the set, or numbers; checks the labels against them."""
  labels: Sequence[np.ndarray] = [each["label"] for each in columns.values()]
  smallest = min(int(each.min()) for each in labels)
  largest = max(int(each.max()) for each in labels)
  if smallest < 0:
    raise UserError(
      f"a label of {info.folder} is {smallest}: labels count from 0, one for each image."
    )
  named = len(info.class_names)
  if named and largest >= named:
    raise UserError(
      f"labels of {info.folder} go up to {largest}, but it has names for only {named} classes: "
      "mend its labels or its list of class names."
    )
  if largest >= (images := sum(map(len, labels))):
    raise UserError(
      f"labels of {info.folder} go up to {largest}, but it has only {images} images: labels count "
      "classes from 0."
    )
  return info.class_names or tuple(map(str, range(largest + 1)))


def _with_images(images: ImageSet) -> ImageSet:
  """Checks that there is something to train and to evaluate on."""
  for split in (images.train, images.eval):
    if not split.width.any():
      raise UserError(
        f"of none of the {len(split)} images of {images.source} can the header be read (the first "
        f"is {split.name(0)}): they are {', '.join(sizes.FORMATS)} files, and these may be damaged."
      )
  return images
