"""Indices of the place and size of each image, read from the headers once and then stored.

    listings = {"train": files_listing(root / "train", ["cat/1.jpg", ...]), "val": ...}
    found = indices(root, listings, IndexOptions(cache))  # {"train": Index, "val": Index}
    found["train"].columns  # {"width": int32 [n], ...}

An index is an entry of `array_cache.py`, in the cache or, written by `write_index`, in the data
set's folder: ROOT/.jaxspeed/train and ROOT/.jaxspeed/val. The latter takes precedence. An index is
never used if its fingerprint is not that of the files.
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
from jaxspeed.data.formats.tfrecord import Shard
from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")

_NAMES_PER_JOB = 500
# The folder of indices beside their images.
_OWN = ".jaxspeed"

Columns = dict[str, np.ndarray]
# The columns that a header gives, and the image's size in bytes.
_HEADER_COLUMNS: dict[str, type[np.signedinteger]] = {
  "width": np.int32,
  "height": np.int32,
  "orientation": np.int8,
  "length": np.int64,
}
Show = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class IndexOptions:
  """Where indices are stored, and whether to use them.

  Attributes:
    cache: folder of the indices that are not beside their images.
    show: called with the number of images done and the total, over all splits.
    anew: whether to ignore stored indices and read the headers.
  """

  cache: pathlib.Path
  show: Show | None = None
  anew: bool = False


@dataclasses.dataclass(frozen=True)
class Index:
  """The columns of a split, and the folder that stores them."""

  columns: Columns
  folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Listing:
  """The images of a split, before any is opened."""

  jobs: Sequence[headers.Job]
  images: int
  columns: Mapping[str, type[np.signedinteger]]  # dtypes of the index's columns, by name
  source: Mapping[str, Any]  # the fingerprint
  folder: str  # the folder that file names are relative to
  files: Sequence[str]  # file names, where every image is a file of its own


def files_listing(folder: pathlib.Path, names: Sequence[str]) -> Listing:
  """List images that are files of their own.

  Args:
    folder: the split's folder.
    names: "CLASS/FILE" of each image, by number.
  """
  chunks = [names[first : first + _NAMES_PER_JOB] for first in range(0, len(names), _NAMES_PER_JOB)]
  return Listing(
    jobs=[("files", str(folder), list(chunk)) for chunk in chunks],
    images=len(names),
    columns=dict(_HEADER_COLUMNS),
    source=files_source(names),
    folder=str(folder),
    files=names,
  )


def shards_listing(shards: Sequence[Shard], image_key: str, label_key: str) -> Listing:
  """List images inside TFRecords of tf.train.Examples with features of these names."""
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
  """Return the fingerprint of files: their names only, as a million stats take minutes."""
  joined = "\0".join(names).encode("utf-8", "surrogateescape")
  return {"files": len(names), "sha256": hashlib.sha256(joined).hexdigest()}


def shards_source(paths: Sequence[pathlib.Path]) -> dict[str, Any]:
  """Return the fingerprint of shards: names, sizes, and times in whole seconds, as in tar."""
  stats = [(path.name, path.stat()) for path in paths]
  return {"shards": [[name, stat.st_size, int(stat.st_mtime)] for name, stat in stats]}


def write_index(
  root: pathlib.Path, split_name: str, columns: Columns, source: Mapping[str, Any]
) -> None:
  """Write the index ROOT/.jaxspeed/SPLIT, replacing an older one.

  Args:
    root: the data set's folder.
    split_name: 'train' or 'val'.
    columns: arrays of shape [n], named as in `files_listing` or `shards_listing`.
    source: fingerprint from `files_source` or `shards_source`.

  Raises:
    UserError: the folder cannot be written.
  """
  folder = _own_index(root, split_name)
  array_cache.remove(folder)
  try:
    array_cache.write(folder, columns, {}, source)
  except OSError as error:
    raise UserError(
      f"{folder} cannot be written ({error.strerror or error}): make its folder writable, or train "
      "without an index there."
    ) from error


def indices(
  root: pathlib.Path,
  listings: Mapping[str, Listing],
  options: IndexOptions,
) -> dict[str, Index]:
  """Return the index of each split, stored before or read from the headers and then stored.

  Args:
    root: the data set's folder.
    listings: the images of each split, by the split's name.
    options: where indices are stored.

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
      about = {"root": str(root.resolve())}
      array_cache.store(folder, columns, about, listing.source)
      found[name] = Index(columns, folder)
  return {name: index for name, index in found.items() if index is not None}


def drop_index(folder: str, root: str) -> str:
  """Remove an outdated index from the cache, and return advice for the user.

  The index of the other split is removed too: a user who edits images edits both. An index in the
  data set's folder is the user's and stays.

  Args:
    folder: the index's folder; '' where none is stored.
    root: the data set's folder.
  """
  index = pathlib.Path(folder)
  if index.parent == pathlib.Path(root, _OWN):
    command = f"python -m jaxspeed.prepare index {shlex.quote(root)}"
    return f"write the index {index} again with {command}"
  if folder:
    source = index.name.rpartition("-")[2]
    for each in ("train", "val"):
      array_cache.remove(index.with_name(f"index-{each}-{source}"))
  return "the index was removed from the cache, and the same command makes it again"


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
  if own.is_dir() and (index := _read_own(own, root, listing)):
    return index
  cached = _cached_index(root, split_name, options.cache)
  stored = array_cache.load(cached, listing.source)
  if not stored or not _fits(stored[0], listing):
    return None
  if mended := _mended(stored[0], listing):
    _log.warning("the cache %s will be made again: %s is another file now", cached, mended)
    array_cache.remove(cached)
    return None
  return Index(stored[0], cached)


def _read_own(folder: pathlib.Path, root: pathlib.Path, listing: Listing) -> Index | None:
  """Return the index in a data set's folder, or warn and return None where it is not usable."""
  try:
    columns, _ = array_cache.read(folder, listing.source)
    if not _fits(columns, listing):
      raise ValueError("its columns are not those that this version reads")
    if mended := _mended(columns, listing):
      raise ValueError(f"{mended} had no header then, and is another file now")
    return Index(columns, folder)
  except ValueError as error:
    _log.warning(
      "the index %s is not used (%s): write it again with python -m jaxspeed.prepare index %s",
      folder,
      error,
      shlex.quote(str(root)),
    )
    return None


def _fits(columns: Columns, listing: Listing) -> bool:
  """Return whether an index has the columns, dtypes and rows that this version reads."""
  found = {name: (column.dtype, column.shape) for name, column in columns.items()}
  return found == {
    name: (np.dtype(dtype), (listing.images,)) for name, dtype in listing.columns.items()
  }


def _mended(columns: Columns, listing: Listing) -> str:
  """Return the first image that had no header and has changed in length, or ''."""
  if not listing.files:
    return ""
  for number in np.flatnonzero(columns["width"] == 0):
    name = listing.files[int(number)]
    with contextlib.suppress(OSError):
      if os.stat(os.path.join(listing.folder, name)).st_size != columns["length"][number]:
        return name
  return ""


def _to_columns(listing: Listing, rows: Sequence[Int64[np.ndarray, "n columns"]]) -> Columns:
  """Return one array for each column; the column `file` follows from each shard's row count."""
  table = np.concatenate(rows)
  shard = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
  table = np.concatenate([table, shard[:, None]], axis=1)
  columns = {}
  for number, (name, dtype) in enumerate(listing.columns.items()):
    # Clipped, not wrapped: a label too large for int32 must not become a valid one.
    info = np.iinfo(dtype)
    columns[name] = np.clip(table[:, number], info.min, info.max).astype(dtype)
  return columns
