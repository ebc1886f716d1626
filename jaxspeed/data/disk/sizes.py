"""Where each image of a set lies and how large it is, read from headers once and then kept.

    listings = {"train": files_listing(root / "train", ["cat/1.jpg", ...]), "val": ...}
    found = indices(root, listings, IndexOptions(cache))  # {"train": Index, "val": Index}
    found["train"].columns  # {"width": int32 [n], ...}

An index is an entry of `array_cache.py`. The one in the set's own folder, ROOT/.jaxspeed/train and
ROOT/.jaxspeed/val, which `write_index` makes, goes before the one in the cache. An index whose
fingerprint is not that of the files is never used.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import os
import pathlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxspeed.data.disk import headers
from jaxspeed.data.formats import array_cache
from jaxspeed.data.formats.folders import list_folder
from jaxspeed.data.formats.tfrecord import Shard
from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")

_NAMES_A_JOB = 500
# The folder of indices beside their images.
_OWN = ".jaxspeed"

Columns = dict[str, np.ndarray]
# What the header of an image says, and its bytes.
_HEADER_COLUMNS: dict[str, type[np.signedinteger]] = {
  "width": np.int32,
  "height": np.int32,
  "orientation": np.int8,
  "length": np.int64,
}
Show = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class IndexOptions:
  """Where indices are kept.

  Attributes:
    cache: the folder of those that are not beside their images.
    show: called with the images that are done and their number in all, of all splits.
    anew: what is stored is not believed, and the headers are read.
  """

  cache: pathlib.Path
  show: Show | None = None
  anew: bool = False


@dataclasses.dataclass(frozen=True)
class Index:
  """The columns of a split, and the folder that they are stored in."""

  columns: Columns
  folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Listing:
  """The images of a split before any of them is opened."""

  jobs: Sequence[headers.Job]
  images: int
  columns: Mapping[str, type[np.signedinteger]]  # of the index, with their dtypes
  source: Mapping[str, Any]  # the fingerprint
  folder: str  # what the names of the files are relative to
  files: Sequence[str]  # their names, where every image is a file of its own


def files_listing(folder: pathlib.Path, names: Sequence[str]) -> Listing:
  """Images that are files of their own.

  Args:
    folder: of the split.
    names: "CLASS/FILE" of each image, in the order of its number.
  """
  chunks = [names[first : first + _NAMES_A_JOB] for first in range(0, len(names), _NAMES_A_JOB)]
  return Listing(
    jobs=[("files", str(folder), list(chunk)) for chunk in chunks],
    images=len(names),
    columns=dict(_HEADER_COLUMNS),
    source=files_source(names),
    folder=str(folder),
    files=names,
  )


def shards_listing(shards: Sequence[Shard], image_key: str, label_key: str) -> Listing:
  """Images inside TFRecords of tf.train.Examples, whose features have the names given."""
  return Listing(
    jobs=[("shard", str(each.path), image_key, label_key, each.records) for each in shards],
    images=sum(each.records for each in shards),
    columns=_HEADER_COLUMNS
    | {"offset": np.int64, "label": np.int32, "digest": np.int64, "file": np.int32},
    source=shards_source([each.path for each in shards]),
    folder=str(shards[0].path.parent),
    files=(),
  )


def files_source(names: Sequence[str]) -> dict[str, Any]:
  """The fingerprint of files: their names, because a stat of a million files takes minutes."""
  joined = "\0".join(names).encode("utf-8", "surrogateescape")
  return {"files": len(names), "sha256": hashlib.sha256(joined).hexdigest()}


def shards_source(paths: Sequence[pathlib.Path]) -> dict[str, Any]:
  """The fingerprint of shards: names, sizes and times, in the whole seconds that tar keeps."""
  stats = [(path.name, path.stat()) for path in paths]
  return {"shards": [[name, stat.st_size, int(stat.st_mtime)] for name, stat in stats]}


def write_index(
  root: pathlib.Path, split_name: str, columns: Columns, source: Mapping[str, Any]
) -> None:
  """Writes ROOT/.jaxspeed/SPLIT in the place of one that is there.

  Args:
    root: the set's own folder.
    split_name: 'train' or 'val'.
    columns: each of shape [n]; those of `files_listing`, or of `shards_listing`.
    source: of `files_source` or `shards_source`.

  Raises:
    UserError: the folder cannot be written.
  """
  folder = _own_index(root, split_name)
  array_cache.remove(folder)
  try:
    array_cache.write(folder, columns, {}, source)
  except OSError as error:
    raise UserError(
      f"{folder} cannot be written ({error.strerror or error}): make its folder writable, or do "
      "without an index there."
    ) from error


def indices(
  root: pathlib.Path,
  listings: Mapping[str, Listing],
  options: IndexOptions,
) -> dict[str, Index]:
  """The index of each split: a stored one, or read from the images' headers and then stored.

  Args:
    root: the set's own folder.
    listings: by the name of the split.
    options: where indices are kept.

  Raises:
    UserError: a file cannot be opened, or a shard is damaged.
  """
  found = {name: _find_index(root, name, listing, options) for name, listing in listings.items()}
  missing = {name: listings[name] for name, index in found.items() if index is None}
  images = sum(listing.images for listing in missing.values())
  if images:
    _log.info("reading the headers of %s images of %s", f"{images:,}", root)
  done = 0
  jobs = [job for listing in missing.values() for job in listing.jobs]
  with contextlib.closing(headers.scan(jobs, images)) as answers:
    for name, listing in missing.items():
      rows = []
      for answer in itertools.islice(answers, len(listing.jobs)):
        rows.append(answer)
        done += len(answer)
        if options.show:
          options.show(done, images)
      columns = _to_columns(listing, rows)
      folder = _cached_index(root, name, options.cache)
      if options.anew:
        array_cache.remove(folder)
      about = {"root": str(root.resolve()), "folder": os.path.realpath(listing.folder)}
      array_cache.store(folder, columns, about, listing.source)
      found[name] = Index(columns, folder)
  return {name: index for name, index in found.items() if index is not None}


def drop_index(folder: str, root: str) -> str:
  """Removes an index that does not fit its images, if it is in the cache; what is to be done then.

  That of the set's other split goes too: who edits images edits both.

  Args:
    folder: of the index; '' where none is stored.
    root: the set's own folder, where a user's index may lie, which stays.
  """
  index = pathlib.Path(folder)
  if index.parent == pathlib.Path(root, _OWN):
    command = f"python -m jaxspeed.prepare index {shlex.quote(root)}"
    return f"write the index {index} anew with {command}"
  if folder:
    others = (_cached_index(pathlib.Path(root), each, index.parent) for each in ("train", "val"))
    for each in {index, *others}:
      array_cache.remove(each)
  return "the index was removed from the cache, and the same command makes it anew"


def _own_index(root: pathlib.Path, split_name: str) -> pathlib.Path:
  return root / _OWN / split_name


def _cached_index(root: pathlib.Path, split_name: str, cache: pathlib.Path) -> pathlib.Path:
  return array_cache.entry_of(cache, f"index-{split_name}", root)


def _find_index(
  root: pathlib.Path, split_name: str, listing: Listing, options: IndexOptions
) -> Index | None:
  if options.anew:
    return None
  own = _own_index(root, split_name)
  if own.is_dir():
    try:
      columns, _ = array_cache.read(own, listing.source)
      if not _fits(columns, listing):
        raise ValueError("its columns are others than this version reads")
      if mended := _mended(columns, listing):
        raise ValueError(f"{mended} had no header then, and is another file now")
      return Index(columns, own)
    except ValueError as error:
      _log.warning(
        "the index %s is not used (%s): write it anew with python -m jaxspeed.prepare index %s",
        own,
        error,
        shlex.quote(str(root)),
      )
  cached = _cached_index(root, split_name, options.cache)
  stored = array_cache.load(cached, listing.source)
  if not stored or not _fits(stored[0], listing):
    return None
  if mended := _mended(stored[0], listing):
    _log.warning("the cache %s will be made again: %s is another file now", cached, mended)
    array_cache.remove(cached)
    return None
  return Index(stored[0], cached)


def _fits(columns: Columns, listing: Listing) -> bool:
  """Whether an index has the columns, dtypes and rows that this version reads."""
  found = {name: (column.dtype, column.shape) for name, column in columns.items()}
  return found == {
    name: (np.dtype(dtype), (listing.images,)) for name, dtype in listing.columns.items()
  }


def _mended(columns: Columns, listing: Listing) -> str:
  """The first image that had no header and has another length now; '' where there is none."""
  if not listing.files:
    return ""
  for number in np.flatnonzero(columns["width"] == 0):
    name = listing.files[int(number)]
    with contextlib.suppress(OSError):
      if os.stat(os.path.join(listing.folder, name)).st_size != columns["length"][number]:
        return name
  return ""


def is_current(about: Mapping[str, Any], source: Mapping[str, Any]) -> bool:
  """Whether a stored index is that of the files that there are.

  Args:
    about: what was stored with it.
    source: its fingerprint.

  Raises:
    OSError: the files cannot be looked at.
    UserError: among them is no image set any more.
    KeyError: an older version has stored it.
  """
  folder = pathlib.Path(about["folder"])
  if "shards" in source:
    return shards_source([folder / each[0] for each in source["shards"]]) == source
  classes = list_folder(folder).folders
  return (
    files_source([f"{c}/{file}" for c in classes for file in list_folder(folder / c).images])
    == source
  )


def _to_columns(listing: Listing, rows: Sequence[Int64[np.ndarray, "n columns"]]) -> Columns:
  """One array a column; which of the shards an image lies in follows from their row counts."""
  table = np.concatenate(rows)
  shard = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
  table = np.concatenate([table, shard[:, None]], axis=1)
  columns = {}
  for number, (name, dtype) in enumerate(listing.columns.items()):
    # Clipped, not wrapped: a label that no int32 holds must stay one that no class has.
    info = np.iinfo(dtype)
    columns[name] = np.clip(table[:, number], info.min, info.max).astype(dtype)
  return columns
