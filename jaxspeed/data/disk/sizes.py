"""Where each image of a set lies and how large it is, read from headers once and then kept.

    listings = {"train": files_listing(root / "train", ["cat/1.jpg", ...]), "val": ...}
    columns = indices(root, listings, cache)  # {"train": {"width": int32 [n], ...}, "val": ...}

An index is an entry of `array_cache.py`. The one in the set's own folder, ROOT/.jaxspeed/train and
ROOT/.jaxspeed/val, which `write_index` makes, goes before the one in the cache. An index whose
fingerprint is not that of the files is never used.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from jaxspeed.data.disk import headers
from jaxspeed.data.formats import array_cache
from jaxspeed.data.formats.tfrecord import Shard
from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")

_NAMES_A_JOB = 500

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
class Listing:
  """The images of a split before any of them is opened."""

  jobs: Sequence[headers.Job]
  images: int
  columns: Mapping[str, type[np.signedinteger]]  # of the index, with their dtypes
  source: Mapping[str, Any]  # the fingerprint


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
  )


def shards_listing(shards: Sequence[Shard], image_key: str, label_key: str) -> Listing:
  """Images inside TFRecords of tf.train.Examples, whose features have the names given."""
  return Listing(
    jobs=[("shard", str(each.path), image_key, label_key, each.records) for each in shards],
    images=sum(each.records for each in shards),
    columns=_HEADER_COLUMNS
    | {"offset": np.int64, "label": np.int32, "digest": np.int64, "file": np.int32},
    source=shards_source([each.path for each in shards]),
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
  cache: pathlib.Path,
  show: Show | None = None,
) -> dict[str, Columns]:
  """The columns of each split: stored ones, or read from the images' headers and then stored.

  Args:
    root: the set's own folder.
    listings: by the name of the split.
    cache: the folder of indices that are not beside their images.
    show: called with the images that are done and their number in all, of all splits.

  Raises:
    UserError: a file cannot be opened, or a shard is damaged.
  """
  found = {name: _find_index(root, name, listing, cache) for name, listing in listings.items()}
  missing = {name: listings[name] for name, columns in found.items() if columns is None}
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
        if show:
          show(done, images)
      columns = _to_columns(listing, rows)
      array_cache.store(_cached_index(root, name, cache), columns, {}, listing.source)
      found[name] = columns
  return {name: columns for name, columns in found.items() if columns is not None}


def _own_index(root: pathlib.Path, split_name: str) -> pathlib.Path:
  return root / ".jaxspeed" / split_name


def _cached_index(root: pathlib.Path, split_name: str, cache: pathlib.Path) -> pathlib.Path:
  return array_cache.entry_of(cache, f"index-{split_name}", root)


def _find_index(
  root: pathlib.Path, split_name: str, listing: Listing, cache: pathlib.Path
) -> Columns | None:
  own = _own_index(root, split_name)
  if own.is_dir():
    try:
      columns, _ = array_cache.read(own, listing.source)
      if not _fits(columns, listing):
        raise ValueError("its columns are others than this version reads")
      return columns
    except ValueError as error:
      _log.warning(
        "the index %s is passed over, and one in the cache takes its place (%s): "
        "remove it or write it anew.",
        own,
        error,
      )
  stored = array_cache.load(_cached_index(root, split_name, cache), listing.source)
  return stored[0] if stored and _fits(stored[0], listing) else None


def _fits(columns: Columns, listing: Listing) -> bool:
  """Whether an index has the columns, dtypes and rows that this version reads."""
  found = {name: (column.dtype, column.shape) for name, column in columns.items()}
  return found == {
    name: (np.dtype(dtype), (listing.images,)) for name, dtype in listing.columns.items()
  }


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
