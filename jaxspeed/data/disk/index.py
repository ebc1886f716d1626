"""The index of a data set: where its images lie and how large they are, in one .npz file.

Headers are read once, in many processes. The index is in the cache, or beside the images:
ROOT/.jaxspeed/images.npz, which takes precedence. It is never used if it does not hold the names
that are listed now, if shards have another size or time, or images of a sample another size.
"""

import contextlib
import dataclasses
import functools
import io
import logging
import os
import pathlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64

from jaxspeed.data import remote
from jaxspeed.data.formats import npz, pixels
from jaxspeed.data.formats.folders import readable
from jaxspeed.data.formats.tfrecord import read_examples
from jaxspeed.data.table import Table, name_digest
from jaxspeed.data.workers import in_processes
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import locked_folder, open_regular

_log = logging.getLogger("jaxspeed")

_NAMES_PER_JOB = 500
# A header takes 75 us, and processes 0.7 s to start: they break even at 10,000 on 16 cores.
_IMAGES_FOR_PROCESSES = 10_000
_NO_HEADER = 0, 0, pixels.JPEG
# Columns of the index: what a header gives and the image's size in bytes, and then those of shards,
# whose labels are checked later.
_HEADER = np.dtype([("width", "i4"), ("height", "i4"), ("decoder", "i1"), ("length", "i4")])
_MOST_BYTES = np.iinfo(np.int32).max
_IN_SHARD = np.dtype([*_HEADER.descr, ("offset", "i8"), ("label", "i4"), ("digest", "i8")])
# Files whose times or sizes are compared at the start, in threads: a network disk is slow, but
# answers many.
_SAMPLE, _STAT_THREADS = 1_000, 32
Show = Callable[[int, int], None]
Columns = dict[str, Any]  # of arrays


def open_table(
  table: Table, cache: pathlib.Path, show: Show | None = None, *, anew: bool = False
) -> Table:
  """Return the table of a source with its other columns, from an index or from the headers.

  Args:
    table: the images.
    cache: the folder of indices that are not beside their images.
    show: called with the number of headers read and the total.
    anew: whether to read the headers, whatever is in an index, and to store none.

  Raises:
    UserError: a file cannot be opened, or a shard is damaged.
  """
  if anew:
    return dataclasses.replace(table, **_read(table, show)[0])
  entry = npz.entry_of(cache, "images", table.place)
  # The processes of a host wait for the first, which reads the headers.
  with locked_folder(cache):
    for path in (_own(table), entry):
      try:
        if path.is_file():
          return dataclasses.replace(table, index=str(path), **_stored(table, path))
      except ValueError as error:
        _log.warning(
          "the index %s is not used (%s): headers are read again; python -m jaxspeed.prepare index "
          "renews one that is beside its images",
          *(path, error),
        )
    columns, stored = _read(table, show)
    npz.store(entry, stored, {})
  return dataclasses.replace(table, index=str(entry), **columns)


def write_index(table: Table, show: Show | None = None) -> Table:
  """Read all headers, and write the index beside the images.

  Raises:
    UserError: as in `open_table`, or the index cannot be written.
  """
  path = _own(table)
  columns, stored = _read(table, show)
  try:
    npz.make_folder(path.parent)
    npz.write(path, stored, {})
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): make its folder writable, or train "
      "without an index there."
    ) from error
  return dataclasses.replace(table, index=str(path), **columns)


def _own(table: Table) -> pathlib.Path:
  return table.place / ".jaxspeed" / "images.npz"


def _stored(table: Table, path: pathlib.Path) -> Columns:
  """Return the columns of an index of these files, and perhaps of others after them.

  Raises:
    ValueError: the index must not be used; the message says why.
  """
  arrays, _ = npz.read(path)
  found = {name: each.ravel() for name, each in arrays.items()}
  stats = _stats_of(table).ravel()
  names, before = (found.get(key, np.zeros(0)) for key in ("names", "stats"))
  is_same = before.dtype == stats.dtype and np.array_equal(before[: len(stats)], stats)
  if not is_same or _names_of(table, len(table)) not in names.tolist():
    raise ValueError("it was made from other files, or an older state of these")
  dtype, columns = _IN_SHARD if table.keys else _HEADER, Columns()
  for name in dtype.names or ():
    column = columns[name] = found.get(name, np.zeros(0))[: len(table)]
    if column.dtype != dtype[name] or len(column) != len(table):
      raise ValueError(f"its column {name} is not one that this version reads")
  if columns["width"].min() < 0 or columns["height"].min() < 0:
    raise ValueError("it has sizes below 0")
  if not table.keys:
    sample, length = stat_sample(table), columns["length"]
    if changed := sum(min(each.st_size, _MOST_BYTES) != length[i] for i, each in sample.items()):
      raise ValueError(f"{changed:,} of {len(sample):,} sampled images have changed")
  return columns


def stat_sample(table: Table) -> dict[int, os.stat_result]:
  """Return `stat` of a seeded sample of the files that are images, by number.

  Those that are missing are not in it; they count as broken when they are read.
  """
  numbers = random.Random(0).sample(range(len(table)), min(len(table), _SAMPLE))
  found = zip(numbers, _stat(map(table.full_path, numbers)), strict=True)
  return {number: each for number, each in found if each}


def _stat(paths: Iterable[str]) -> list[os.stat_result | None]:
  """Return what the system knows of files; None of those that are missing.

  Raises:
    OSError: the file system failed.
  """

  def stat(path: str) -> os.stat_result | None:
    try:
      return os.stat(path)
    except FileNotFoundError:
      return None

  with ThreadPoolExecutor(_STAT_THREADS) as pool:
    return [*pool.map(stat, paths)]


def _names_of(table: Table, images: int) -> str:
  """Return a digest of the names of the files of the first images, with the number of these."""
  files = int(table.file[images - 1]) + 1
  return f"{images} {sha256(table.names.first(files).data).hexdigest()}"


def _stats_of(table: Table) -> Int64[np.ndarray, "shards 2"]:
  """Return sizes and times of shards on this machine, in whole seconds, as in tar."""
  is_local = table.keys and not remote.is_remote(table.root)
  names = table.names.decoded() if is_local else ()
  stats = _stat(os.path.join(table.root, name) for name in names)
  rows = [(each.st_size, int(each.st_mtime)) if each else (0, 0) for each in stats]
  return np.array(rows, np.int64).reshape(-1, 2)


def _read(table: Table, show: Show | None) -> tuple[Columns, Mapping[str, np.ndarray]]:
  """Read the headers of all images; return their columns, and what an index holds."""
  _log.info("reading the headers of %s images of %s", f"{len(table):,}", table.place)
  # Before the headers: what changes meanwhile is then another state.
  names = [_names_of(table, images) for images in sorted({table.counts[0], len(table)})]
  stats = _stats_of(table)
  jobs: Iterable[Callable[[], np.ndarray]]
  if table.keys:
    paths = [os.path.join(table.root, name) for name in table.names.decoded()]
    records = np.bincount(table.file).tolist()
    jobs = (
      functools.partial(scan_shard, path, table.keys, count)
      for path, count in zip(paths, records, strict=True)
    )
  else:
    parts = table.names.lists(_NAMES_PER_JOB)
    jobs = (functools.partial(scan_files, table.root, part) for part in parts)
  dtype, done = _IN_SHARD if table.keys else _HEADER, 0
  columns = {name: np.zeros(len(table), dtype[name]) for name in dtype.names or ()}
  workers = usable_cpus() if len(table) >= _IMAGES_FOR_PROCESSES else 1
  with contextlib.closing(in_processes(_run, jobs, workers=workers)) as answers:
    for answer in answers:
      for name, column in columns.items():
        column[done : done + len(answer)] = answer[name]
      done += len(answer)
      if show:
        show(done, len(table))
  return columns, columns | {"names": np.array(names), "stats": stats}


def _run(job: Callable[[], np.ndarray]) -> np.ndarray:
  pixels.drop_warnings()
  return job()


def scan_files(folder: str, names: Sequence[str]) -> np.ndarray:
  """Return a row of `_HEADER` for each file; width and height are 0 without a header.

  A link to a missing file counts as a broken image of 0 bytes.

  Raises:
    UserError: a file cannot be opened or read, or is not a regular file.
  """
  rows = []
  for name in names:
    path = os.path.join(folder, name)
    with readable(path):
      try:
        with open_regular(path) as file:
          size = min(os.fstat(file.fileno()).st_size, _MOST_BYTES)
          rows.append((*_header(file), size))
      except FileNotFoundError:
        if not os.path.islink(path):
          raise
        rows.append((*_NO_HEADER, 0))
  return np.array(rows, _HEADER)


def scan_shard(path: str, keys: Sequence[str], records: int) -> np.ndarray:
  """Return a row of `_IN_SHARD` for each image; all checksums are verified.

  A shard on this machine is memory-mapped, so no record is copied; one at an address is read whole.
  The kernel's read-ahead stays on: from a cold disk a core scanned 3,600 records/s with it and
  2,200 without (MADV_RANDOM, a fifth of the bytes), before it verified the data's checksums. The
  first epoch then finds the shard in memory (results/input_decisions.json).

  Raises:
    UserError: the shard is cut off or damaged, or does not hold `records` images with labels.
  """
  if remote.is_remote(path):
    content = np.frombuffer(remote.read(path), np.uint8)
  else:
    with readable(path), open_regular(path) as file:
      is_empty = not os.fstat(file.fileno()).st_size  # which cannot be mapped
      content = np.empty(0, np.uint8) if is_empty else np.memmap(file, np.uint8, "r")
  rows = []
  for image, offset, label, name in read_examples(content, path, keys, records):
    rows.append((*_header(io.BytesIO(image)), len(image), offset, label, name_digest(name)))
  return np.array(rows, _IN_SHARD)


def _header(file: BinaryIO) -> tuple[int, int, int]:
  """Return an image's width, height and decoder; size 0 where Pillow finds no header.

  Raises:
    OSError: the file system failed; the error has an errno.
  """
  try:
    with pixels.open_image(file) as image:
      width, height, orientation = pixels.header_of(image)
      return width, height, pixels.decoder_of(image, orientation)
  # Parsers raise almost anything on a damaged header; a decompression bomb counts as one.
  except Exception as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise
    return _NO_HEADER
