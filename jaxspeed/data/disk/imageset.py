"""Data sets of encoded images on disk, of any size: the place and class of each image.

    images = open_images(name="imagenet2012", path="/data/imagenet", cache="")
    encoded = images.train.read(0)

`path` is a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, a folder with CLASS/*.jpg (a share
is held out), a CSV file of names and labels (`label_csv.py`), or a folder of TFRecords that TFDS
prepared (`tfrecord.py`). This module decodes no image, and needs TensorFlow only where TFDS
downloads a data set.
"""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int8, Int32, Int64

from jaxspeed.data.disk import prepared, sizes
from jaxspeed.data.disk.labels import label_names
from jaxspeed.data.disk.members import member_digests, path_digests
from jaxspeed.data.disk.sizes import IndexOptions, Show, files_listing, shards_listing
from jaxspeed.data.formats.array_cache import DEFAULT_CACHE
from jaxspeed.data.formats.folders import (
  folder_notes,
  has_splits,
  list_classes,
  list_folder,
  list_folders,
)
from jaxspeed.data.formats.label_csv import is_csv, read_csv, require_files
from jaxspeed.data.formats.pixels import FORMATS
from jaxspeed.data.formats.tfds_download import prepare_with_tfds
from jaxspeed.data.formats.tfrecord import find_tfds, only_tfds, open_tfds
from jaxspeed.data.hold_out import TENTH, hold_out_line, single_image_note, split_by_digest
from jaxspeed.errors import UserError, printable
from jaxspeed.files import expanded, open_regular

_ACCEPTED = (
  "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg (validation/ and test/ serve too), a folder "
  "with CLASS/*.jpg, of which a share is held out, a .csv file with the columns file and label, or "
  "a folder that TFDS prepared (dataset_info.json)"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """The images of one split, numbered 0 ... n - 1.

  Attributes:
    files: absolute paths, one for each image, or those of shards.
    file: index in `files` of the file that holds the image.
    offset: place of the encoded image's first byte in the file.
    length: size of the encoded image, in bytes.
    label: class number from 0.
    width: width in pixels as the image is shown, from its header; 0 without a readable header.
    height: as `width`.
    orientation: EXIF's number of the turn from the stored to the shown image, 1 for none.
    whole_files: whether every image is a file of its own, with offset 0.
    root: folder that names in messages are relative to.
    digest: `headers.name_digest` of each image's file name in its shard, 0 without a name, or
      `path_digests` of the names in a CSV file; None in folders of classes.
    index_folder: folder that stores the sizes; '' where they are not stored.
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
    """Return a split of these images only, in this order."""
    columns = ["file", "offset", "length", "label", "width", "height", "orientation"]
    columns += [] if self.digest is None else ["digest"]
    return dataclasses.replace(self, **{name: getattr(self, name)[index] for name in columns})

  def path(self, index: int) -> str:
    """Return the path below `root` of the file that holds an image."""
    return os.path.relpath(self.files[self.file[index]], self.root)

  def paths(self) -> list[str]:
    """Return each image's path below `root`, in a shard with its first byte; [] without files."""
    files = [os.path.relpath(file, self.root) for file in self.files]
    if self.whole_files:
      return [files[file] for file in self.file.tolist()] if files else []
    places = zip(self.file.tolist(), self.offset.tolist(), strict=True)
    return [f"{files[file]}, byte {offset}" for file, offset in places]

  def name(self, index: int) -> str:
    """Return an image's name for messages."""
    name = printable(self.path(index))
    return name if self.whole_files else f"{name}, byte {self.offset[index]}"

  def read(self, index: int) -> bytes:
    """Read an encoded image.

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
  """A data set of two splits; labels index `class_names`.

  Attributes:
    source: what the data set is and where it was found.
    notes: lines about files that were left out.
    whole: all images, where the splits were cut out of one folder.
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
    """Whether the data set has no files (`noise.noise_set`)."""
    return not self.train.files


def open_images(
  *,
  name: str,
  path: str,
  cache: str,
  show: Show | None = None,
  tune: bool = False,
  anew: bool = False,
  share: float = TENTH,
) -> ImageSet:
  """Open the data set that a config names; the first time, this reads all headers (`sizes.py`).

  Args:
    name: TFDS's name of the data set.
    path: folder or CSV file of the data set; '' lets TFDS download and prepare `name`.
    cache: folder of indices; '' means ~/.cache/jaxspeed/data.
    show: called with the number of headers read and the total.
    tune: whether to evaluate on a share of the training images; no evaluation split is needed.
    anew: whether to read all headers despite an index, because files may have changed.
    share: share of each class to hold out, where images are.

  Raises:
    UserError: `path` holds no readable data set, or a damaged or incomplete one.
  """
  options = IndexOptions(expanded(cache or DEFAULT_CACHE, "config.data.cache"), show, anew)
  images = _open(name, path, options, tune)
  if images.whole is not None:  # one split
    images = hold_out(images, "held-out", share)
  return hold_out(images, "validation", share) if tune else images


def _open(name: str, path: str, options: IndexOptions, tune: bool) -> ImageSet:
  try:
    if not path:
      return _open_tfds(prepare_with_tfds(name, _ACCEPTED), options, tune)
    root = expanded(path, "config.data.path").absolute()
    if is_csv(root) and root.exists():
      return _open_csv(root, options, tune)
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
    prepared.refuse_shards_below(root)
    return _open_flat_folder(root, options)
  except OSError as error:
    raise UserError(
      f"{error.filename or path or name} cannot be read ({error.strerror or error}): the data set "
      "is not complete, or not readable for you."
    ) from error


# Folders


def _open_folders(root: pathlib.Path, options: IndexOptions, tune: bool) -> ImageSet:
  others: collections.Counter[str] = collections.Counter()
  made = prepared.require_complete(root)
  listed = list_folders(root, others, tune=tune)
  if made is not None:
    counts = {split: sum(map(len, classes.values())) for split, classes in listed.items()}
    prepared.check_counts(root, made, counts)
  # The evaluation split's index is called val, whatever its folder's name.
  folders = {"val" if name != "train" else name: root / name for name in listed}
  files = dict(zip(folders, listed.values(), strict=True))
  splits = _read_folders(root, folders, files, options)
  source = f"{_title(root)}: folders {' and '.join(listed)}"
  images = ImageSet(
    train=splits["train"],
    eval=splits["train" if tune else "val"],
    class_names=tuple(files["train"]),
    source=source,
    notes=folder_notes(others, listed),
  )
  return _with_images(images)


def _title(root: pathlib.Path) -> str:
  """Return a folder's name, after its parent's if it is a number, as in folders of copies."""
  return printable(f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name)


def _open_flat_folder(root: pathlib.Path, options: IndexOptions) -> ImageSet:
  """Open a folder with CLASS/*.jpg as one split."""
  others: collections.Counter[str] = collections.Counter()
  if not list_folder(root).folders:
    raise UserError(
      f"config.data.path: {root} has no train/ and no dataset_info.json; it names {_ACCEPTED}."
    )
  files = {"train": list_classes(root, others)}
  whole = _read_folders(root, {"train": root}, files, options)["train"]
  source = f"{_title(root)}: class folders"
  images = ImageSet(whole, whole, tuple(files["train"]), source, folder_notes(others, files), whole)
  return _with_images(images)


def _read_folders(
  root: pathlib.Path,
  folders: Mapping[str, pathlib.Path],
  files: Mapping[str, Mapping[str, Sequence[str]]],
  options: IndexOptions,
) -> dict[str, Split]:
  """Return the splits of folders of classes.

  Args:
    root: the data set's folder.
    folders: each split's folder, by the split's name.
    files: file names of each split's images, by class.
    options: where the index is kept.
  """
  names = {
    split: [f"{name}/{file}" for name, found in classes.items() for file in found]
    for split, classes in files.items()
  }
  numbers = {name: number for number, name in enumerate(files["train"])}
  labels = {
    split: np.repeat([numbers[name] for name in classes], list(map(len, classes.values())))
    for split, classes in files.items()
  }
  return _read_splits(root, folders, names, labels, options)


def _open_csv(path: pathlib.Path, options: IndexOptions, tune: bool) -> ImageSet:
  """Open a CSV file of names and labels; without a column of splits, as one split."""
  listed = read_csv(path, tune=tune)
  require_files(path, listed.names)
  folders = dict.fromkeys(listed.names, path.parent)
  splits = _read_splits(path, folders, listed.names, listed.labels, options)
  for split, names in listed.names.items():
    splits[split] = dataclasses.replace(splits[split], digest=path_digests(names))
  train = splits["train"]
  source = printable(path.name)
  if listed.has_splits:
    source += ": split train" if tune else f": splits train and {listed.eval_name}"
  whole = None if listed.has_splits else train
  images = ImageSet(train, splits.get("val", train), listed.classes, source, listed.notes, whole)
  return _with_images(images)


def _read_splits(
  root: pathlib.Path,
  folders: Mapping[str, pathlib.Path],
  names: Mapping[str, Sequence[str]],
  labels: Mapping[str, Sequence[int] | np.ndarray],
  options: IndexOptions,
) -> dict[str, Split]:
  """Return splits of image files, with the sizes from their index.

  Args:
    root: the data set's folder or CSV file, which names the index.
    folders: the folder that names are relative to, by the split's name.
    names: file names of each split's images.
    labels: their class numbers.
    options: where the index is kept.
  """
  listings = {split: files_listing(folders[split], names[split]) for split in names}
  indices = sizes.indices(root, listings, options)
  return {
    split: Split(
      files=tuple(os.path.join(folders[split], name) for name in names[split]),
      file=np.arange(len(names[split]), dtype=np.int32),
      offset=np.zeros(len(names[split]), np.int64),
      label=np.asarray(labels[split], np.int32),
      whole_files=True,
      root=str(root.parent if is_csv(root) else root),
      index_folder=str(indices[split].folder),
      **indices[split].columns,
    )
    for split in names
  }


def hold_out(images: ImageSet, evaluated_on: str, share: float) -> ImageSet:
  """Replace the evaluation images by a share of each class of the training images.

  The share has the smallest BLAKE2b digests of class and file name, so that a resized copy, as a
  file or in a shard, is in the same part as its original.

  Args:
    images: the data set.
    evaluated_on: "held-out" or "validation", as in `data.memory.arrays.Arrays`.
    share: share of each class.

  Raises:
    UserError: there are too few training images, or shards do not name them.
  """
  train = images.train
  digests = member_digests(train.files, train.file, train.digest, train.label, images.class_names)
  kept, held_out = split_by_digest(digests, train.label, share, images.source.split(":")[0])
  return dataclasses.replace(
    images,
    train=train.take(kept),
    eval=train.take(held_out),
    source=f"{images.source}; {hold_out_line(len(held_out), len(train), share, evaluated_on)}",
    notes=images.notes + single_image_note(train.label, images.class_names),
    evaluated_on=evaluated_on,
  )


# TFDS


def _open_tfds(folder: pathlib.Path, options: IndexOptions, tune: bool) -> ImageSet:
  prepared.require_complete(folder)
  info = open_tfds(folder, tune=tune)
  shards = {"train": info.train} if tune else {"train": info.train, "val": info.eval}
  keys = info.image_key, info.label_key
  listings = {split: shards_listing(each, *keys) for split, each in shards.items()}
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
  """Check that there are images to train and to evaluate on."""
  for split in (images.train, images.eval):
    if not split.width.any():
      raise UserError(
        f"none of the {len(split)} images of {split.root} has a header that can be read (the first "
        f"is {split.name(0)}): images are {', '.join(FORMATS)} files, and these may be damaged."
      )
  return images
