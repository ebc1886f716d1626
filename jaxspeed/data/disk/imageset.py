"""Sets of encoded images on the disk, of any size: which images there are, where, of which class.

    images = open_images(name="imagenet2012", path="/data/imagenet", cache="")
    encoded = images.train.read(0)

What lies at `path` is a folder of train/CLASS/*.jpg and val/CLASS/*.jpg, a folder of CLASS/*.jpg,
a tenth of which is held out, or one that TFDS prepared (`tfrecord.py`), whose TFRecords hold the
encoded images. No image is decoded here, and TensorFlow is not needed, except by TFDS where it is
to download a set.
"""

import collections
import dataclasses
import hashlib
import importlib.util
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int8, Int32, Int64

from jaxspeed.data.disk import copies, headers, shard_records, sizes
from jaxspeed.data.disk.labels import label_names
from jaxspeed.data.disk.sizes import IndexOptions, Show, files_listing, shards_listing
from jaxspeed.data.formats.array_cache import DEFAULT_CACHE
from jaxspeed.data.formats.class_names import read_class_names
from jaxspeed.data.formats.folders import (
  EVAL_FOLDERS,
  has_splits,
  left_out,
  list_classes,
  list_folder,
  list_folders,
)
from jaxspeed.data.formats.pixels import FORMATS
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, open_regular

_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), a folder "
  "with CLASS/*.jpg, of which a tenth is held out, or a folder that TFDS prepared "
  "(dataset_info.json)"
)
_HELD_OUT = {
  "held-out": "images, a tenth, are held out for evaluation",
  "validation": "training images are held out for tuning",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """The images of one split, by number 0 ... n - 1.

  Attributes:
    files: absolute names; one an image, or shards that hold many.
    file: which of `files` holds the image.
    offset: of the encoded image's first byte in it.
    length: the encoded image's bytes.
    label: from 0.
    width: in pixels, from its header, as the image is shown; 0 where that cannot be read.
    height: as `width`.
    orientation: EXIF's number of the turn from the stored to the shown image, 1 for none.
    whole_files: every image is a file of its own, and offset is 0.
    root: what names in messages are relative to.
    digest: `headers.name_digest` of the files that the images of shards were, 0 where the shards
      hold no name; None where every image is a file of its own.
    index_folder: that `width` and the like are stored in; '' where they are not.
  """

  files: tuple[str, ...]
  file: Int32[np.ndarray, "n"]
  offset: Int64[np.ndarray, "n"]
  length: Int64[np.ndarray, "n"]
  label: Int32[np.ndarray, "n"]
  width: Int32[np.ndarray, "n"]
  height: Int32[np.ndarray, "n"]
  orientation: Int8[np.ndarray, "n"]
  whole_files: bool
  root: str
  digest: Int64[np.ndarray, "n"] | None = None
  index_folder: str = ""

  def __len__(self) -> int:
    return len(self.label)

  def take(self, index: Int64[np.ndarray, "m"]) -> "Split":
    """The split of these images alone, in their order."""
    columns = ["file", "offset", "length", "label", "width", "height", "orientation"]
    columns += [] if self.digest is None else ["digest"]
    return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in columns})

  def path(self, index: int) -> str:
    """The file that holds an image, below `root`."""
    return os.path.relpath(self.files[self.file[index]], self.root)

  def name(self, index: int) -> str:
    """What to call an image in a message."""
    name = printable(self.path(index))
    return name if self.whole_files else f"{name}, byte {self.offset[index]}"

  def read(self, index: int) -> bytes:
    """The encoded image.

    Raises:
      OSError: its file cannot be read.
    """
    with open_regular(self.files[self.file[index]]) as file:
      if self.whole_files:
        return file.read()
      file.seek(self.offset[index])
      return file.read(self.length[index])


@dataclasses.dataclass(frozen=True)
class ImageSet:
  """A set of two splits, and what it is and whence; labels index `class_names`.

  Attributes:
    notes: lines on what was left out.
    whole: all images, where the splits were made of them.
    evaluated_on: which images `eval` holds, as in `data.memory.arrays.Arrays`.
  """

  train: Split
  eval: Split
  class_names: tuple[str, ...]
  source: str
  notes: tuple[str, ...] = ()
  whole: Split | None = None
  evaluated_on: str = "test"

  @property
  def is_noise(self) -> bool:
    """Whether there are no files (`noise.noise_set`)."""
    return not self.train.files


def open_images(
  *,
  name: str,
  path: str,
  cache: str,
  show: Show | None = None,
  tune: bool = False,
  anew: bool = False,
) -> ImageSet:
  """Opens the set that a config names.

  The first time, the header of each image is read (`sizes.py`).

  Args:
    name: of the set, as TFDS calls it.
    path: a folder; '' lets TFDS download and prepare `name`.
    cache: folder of the index; '' means ~/.cache/jaxspeed/data.
    show: called with the numbers of headers that are read and that are to be read.
    tune: a tenth of the training images takes the place of the others, which need not be there.
    anew: reads the headers, whatever index is there: files may have changed under their names.

  Raises:
    UserError: nothing readable is at `path`, or it is damaged or not complete.
  """
  options = IndexOptions(expanded(cache or DEFAULT_CACHE, "config.data.cache"), show, anew)
  images = _open(name, path, options, tune)
  return hold_out(images, "validation") if tune else images


def _open(name: str, path: str, options: IndexOptions, tune: bool) -> ImageSet:
  try:
    if not path:
      return _open_tfds(_prepare(name), options, tune)
    root = expanded(path, "config.data.path").absolute()
    if not root.is_dir():
      state = "is a file" if root.exists() else "does not exist"
      raise UserError(f"config.data.path: {root} {state}; it names {_ACCEPTED}.")
    if any((folder / "images.npy").exists() for folder in (root, root / "train")):
      raise UserError(
        f"config.data.path: {root} holds arrays, and this recipe reads encoded images from the "
        "disk: choose one that trains from memory, such as --config=configs/quickstart.py."
      )
    if has_splits(root):
      return _open_folders(root, options, tune)
    if version := find_tfds(root, name) or only_tfds(root):
      return _open_tfds(version, options, tune)
    shard_records.require_complete(root)
    return _open_flat_folder(root, options)
  except OSError as error:
    raise UserError(
      f"{error.filename or path or name} cannot be read ({error.strerror or error}): the data set "
      "is not complete, or not readable for you."
    ) from error


def class_names_of(*, name: str, path: str) -> tuple[str, ...]:
  """The names of the classes of the set at `path`, of which no image is opened; () if it has none.

  Raises:
    UserError: as `open_images`.
  """
  root = expanded(path, "config.data.path").absolute()
  try:
    if names := read_class_names(root / "classes.txt"):
      return names
    if has_splits(root):
      split = next(each for each in ("train", *EVAL_FOLDERS) if (root / each).is_dir())
      return tuple(list_folder(root / split).folders)
    if version := find_tfds(root, name) or only_tfds(root):
      return open_tfds(version, tune=True).class_names
    return tuple(list_folder(root).folders)
  except OSError as error:
    raise UserError(f"{root} cannot be read ({error.strerror or error}).") from error


def _prepare(name: str) -> pathlib.Path:
  if importlib.util.find_spec("tensorflow_datasets") is None:
    raise UserError(
      f"config.data.path is not set: name {_ACCEPTED}; or install TFDS, which downloads {name} "
      "(pip install 'jaxspeed[imagenet]')."
    )
  return prepare_with_tfds(name, _ACCEPTED)


# Folders


def _open_folders(root: pathlib.Path, options: IndexOptions, tune: bool) -> ImageSet:
  others: collections.Counter[str] = collections.Counter()
  marked = copies.require_mark(root)
  listed = list_folders(root, others, tune=tune)
  if marked is not None:
    counts = {split: sum(map(len, classes.values())) for split, classes in listed.items()}
    copies.check_counts(root, marked, counts)
  # The index is called val whatever the folder is.
  folders = {"val" if name != "train" else name: root / name for name in listed}
  files = dict(zip(folders, listed.values(), strict=True))
  splits = _read_splits(root, folders, files, options)
  source = f"{_title(root)}: folders {' and '.join(listed)}"
  images = ImageSet(
    train=splits["train"],
    eval=splits["train" if tune else "val"],
    class_names=tuple(files["train"]),
    source=source,
    notes=left_out(others),
  )
  return _with_images(images)


def _title(root: pathlib.Path) -> str:
  """A folder's name, with its parent's where it is a number, as those of resized copies are."""
  return printable(f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name)


def _open_flat_folder(root: pathlib.Path, options: IndexOptions) -> ImageSet:
  """A folder of CLASS/*.jpg, of which a tenth is held out for evaluation."""
  others: collections.Counter[str] = collections.Counter()
  if not list_folder(root).folders:
    raise UserError(
      f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
    )
  files = {"train": list_classes(root, others)}
  whole = _read_splits(root, {"train": root}, files, options)["train"]
  source = f"{_title(root)}: class folders"
  images = ImageSet(whole, whole, tuple(files["train"]), source, left_out(others), whole)
  return hold_out(_with_images(images), "held-out")


def _read_splits(
  root: pathlib.Path,
  folders: Mapping[str, pathlib.Path],
  files: Mapping[str, Mapping[str, Sequence[str]]],
  options: IndexOptions,
) -> dict[str, Split]:
  """The splits of a folder, their headers read.

  Args:
    root: of the set.
    folders: by the name of the split.
    files: names of each split's images, by class.
    options: where the index is kept.
  """
  class_names = tuple(files["train"])
  names = {
    split: [f"{name}/{file}" for name, found in classes.items() for file in found]
    for split, classes in files.items()
  }
  listings = {split: files_listing(folders[split], names[split]) for split in folders}
  indices = sizes.indices(root, listings, options)
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
      index_folder=str(indices[split].folder),
      **indices[split].columns,
    )
  return splits


def hold_out(images: ImageSet, evaluated_on: str) -> ImageSet:
  """The set with a tenth of its training images in the place of its evaluation images.

  The tenth is that of the smallest BLAKE2b digests of class and file name, so that a resized copy
  goes where its original goes, as a file or in a shard.

  Args:
    images: whose evaluation images are dropped.
    evaluated_on: what for, one of `_HELD_OUT`.

  Raises:
    UserError: there are fewer than two training images, or shards do not name them.
  """
  train = images.train
  if len(train) < 2:
    raise UserError(f"{train.root} has {len(train)} image, of which none can be held out.")
  digests = b"".join(_member_digests(train, images.class_names))
  order = np.argsort(np.frombuffer(digests, "<u8"), kind="stable")
  held_out = len(train) // 10 or 1
  return dataclasses.replace(
    images,
    train=train.take(np.sort(order[held_out:])),
    eval=train.take(np.sort(order[:held_out])),
    source=f"{images.source}; {held_out:,} {_HELD_OUT[evaluated_on]}",
    evaluated_on=evaluated_on,
  )


def _member_digests(split: Split, class_names: Sequence[str]) -> Iterator[bytes]:
  """Eight bytes for each image that its copies share, in every folder and every shard."""
  names = split.digest
  if names is None:
    names = np.array(
      [headers.name_digest(os.fsencode(os.path.basename(split.files[file]))) for file in split.file]
    )
  elif nameless := int((names == 0).sum()):
    raise UserError(
      f"{nameless:,} of {len(names):,} images in the shards of {split.root} have no file_name, by "
      "which images are held out: evaluate on the set's own split (--config.tune_on=test), or make "
      "shards that have it (python -m jaxspeed.prepare shards)."
    )
  prefixes = [hashlib.blake2b(os.fsencode(name), digest_size=8) for name in class_names]
  for label, name in zip(split.label.tolist(), names.astype("<i8"), strict=True):
    digest = prefixes[label].copy()
    digest.update(name.tobytes())
    yield digest.digest()


# TFDS


def _open_tfds(folder: pathlib.Path, options: IndexOptions, tune: bool) -> ImageSet:
  info = open_tfds(folder, tune=tune)
  shards = {"train": info.train} if tune else {"train": info.train, "val": info.eval}
  listings = {
    split: shards_listing(each, info.image_key, info.label_key) for split, each in shards.items()
  }
  indices = sizes.indices(folder, listings, options)
  splits = {
    split: Split(
      files=tuple(str(shard.path.absolute()) for shard in each),
      whole_files=False,
      root=str(folder.absolute()),
      index_folder=str(indices[split].folder),
      **indices[split].columns,
    )
    for split, each in shards.items()
  }
  named = "split train" if tune else f"splits train and {info.eval_split}"
  return _with_images(
    ImageSet(
      train=splits["train"],
      eval=splits["train" if tune else "val"],
      class_names=label_names(info, [each.columns["label"] for each in indices.values()]),
      source=printable(f"TFDS {info.name} {folder.name}, {named}"),
    )
  )


def _with_images(images: ImageSet) -> ImageSet:
  """Checks that there is something to train and to evaluate on."""
  for split in (images.train, images.eval):
    if not split.width.any():
      raise UserError(
        f"none of the {len(split)} images of {split.root} has a header that can be read (the first "
        f"is {split.name(0)}): images are {', '.join(FORMATS)} files, and these may be damaged."
      )
  return images
