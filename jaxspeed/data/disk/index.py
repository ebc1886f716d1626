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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
_NO_HEADER = pixels.Header(0, 0, 1)
# Columns of the index, with their least and largest values: what a header gives and the image's
# size in bytes, then those of shards, whose labels are checked later.
_HEADER: dict[str, tuple[type[np.signedinteger], int, int]] = {
  "width": (np.int32, 0, 1 << 30),
  "height": (np.int32, 0, 1 << 30),
  "orientation": (np.int8, 1, 8),
  "length": (np.int64, 0, 1 << 40),
}
_IN_SHARD = _HEADER | {
  "offset": (np.int64, 0, 1 << 60),
  "label": (np.int32, -(1 << 31), 1 << 31),
  "digest": (np.int64, -(1 << 63), 1 << 63),
}
# Files whose times or sizes are compared at the start, in threads: a network disk is slow, but
# answers many.
_SAMPLE, _STAT_THREADS = 1_000, 32
# Bytes of names that are compared at once: of 14 million images all have 0.6 GB.
_PART = 1 << 24
Show = Callable[[int, int], None]
Columns = dict[str, Any]  # of arrays


def open_table(table: Table, cache: pathlib.Path, show: Show | None = None) -> Table:
  """Return the table of a source with its other columns, from an index or from the headers.

  Args:
    table: the images.
    cache: the folder of indices that are not beside their images.
    show: called with the number of headers read and the total.

  Raises:
    UserError: as in `read_headers`.
  """
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
    state = _state(table)  # before the headers: what changes meanwhile is then another state
    columns = _scan(table, show)
    npz.store(entry, columns | state, {})
  return dataclasses.replace(table, index=str(entry), **columns)


def read_headers(table: Table, show: Show | None = None, *, store: bool = False) -> Table:
  """Do as `open_table`, but from the headers: an index may be out of date.

  With `store`, write the index beside the images, and verify the checksums of shards.

  Raises:
    UserError: a file cannot be opened, a shard is damaged, or the index cannot be written.
  """
  path, state = _own(table), _state(table)
  columns = _scan(table, show, verify=store)
  try:
    if store:
      npz.make_folder(path.parent)
      npz.write(path, columns | state, {})
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
  (found, _), state = npz.read(path), _state(table)
  for name, now in state.items():
    before, now = found.pop(name, np.zeros(0)).ravel()[: now.size], now.ravel()
    parts = [slice(at, at + _PART) for at in range(0, now.size, _PART)]
    fits = before.dtype == now.dtype and before.size == now.size
    if not fits or not all(np.array_equal(before[part], now[part]) for part in parts):
      raise ValueError("it was made from other files, or an older state of these")
  columns: Columns = {}
  for name, (dtype, least, most) in (_IN_SHARD if table.keys else _HEADER).items():
    column = columns[name] = found.get(name, np.zeros(0)).ravel()[: len(table)]
    fits = column.dtype == dtype and len(column) == len(table)
    if not fits or column.min() < least or column.max() > most:
      raise ValueError(f"its column {name} is not one that this version reads")
  sound = np.array_equal(columns["width"] > 0, columns["height"] > 0)
  if len(state["stats"]):
    ends = columns["offset"] + columns["length"]
    sound &= bool((ends <= state["stats"][table.file, 0]).all())
  if not sound:
    raise ValueError("its columns do not fit each other")
  if not table.keys:
    sample = stat_sample(table)  # those that are missing count as broken when they are read
    changed = [i for i, each in sample.items() if each and each.st_size != columns["length"][i]]
    if changed:
      raise ValueError(f"{len(changed):,} of {len(sample):,} sampled images have changed")
  return columns


def stat_sample(table: Table) -> dict[int, os.stat_result | None]:
  """Return `stat` of a seeded sample of the files that are images, by number."""
  numbers = random.Random(0).sample(range(len(table)), min(len(table), _SAMPLE))
  return dict(zip(numbers, _stat(map(table.full_path, numbers)), strict=True))


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


def _state(table: Table) -> dict[str, np.ndarray]:
  """Return names, and of shards on this machine sizes and times, in whole seconds, as in tar."""
  local = table.keys and not remote.is_remote(table.root)
  names = table.names.decoded() if local else []
  stats = _stat(os.path.join(table.root, name) for name in names)
  rows = [(each.st_size, int(each.st_mtime)) if each else (0, 0) for each in stats]
  return {"names": table.names.text, "stats": np.array(rows, np.int64).reshape(-1, 2)}


def _scan(table: Table, show: Show | None, *, verify: bool = False) -> Columns:
  """Read the headers of all images, in processes where there are many."""
  _log.info("reading the headers of %s images of %s", f"{len(table):,}", table.place)
  names = table.names.decoded()
  jobs: list[Callable[[], Int64[np.ndarray, "n columns"]]]
  if table.keys:
    paths = [os.path.join(table.root, name) for name in names]
    records = np.bincount(table.file).tolist()
    jobs = [
      functools.partial(scan_shard, path, table.keys, count, verify)
      for path, count in zip(paths, records, strict=True)
    ]
  else:
    jobs = [
      functools.partial(scan_files, table.root, names[i : i + _NAMES_PER_JOB])
      for i in range(0, len(names), _NAMES_PER_JOB)
    ]
  rows, done = [], 0
  workers = usable_cpus() if len(table) >= _IMAGES_FOR_PROCESSES else 1
  with contextlib.closing(in_processes(_run, jobs, workers=workers)) as answers:
    for answer in answers:
      rows.append(answer)
      done += len(answer)
      if show:
        show(done, len(table))
  columns: Columns = {}
  for number, (name, (dtype, *_)) in enumerate((_IN_SHARD if table.keys else _HEADER).items()):
    # Clipped, not wrapped: a label too large for int32 must not become a valid one.
    info = np.iinfo(dtype)
    column = np.concatenate([row[:, number] for row in rows])
    columns[name] = np.clip(column, info.min, info.max).astype(dtype)
  return columns


def _run(job: Callable[[], Int64[np.ndarray, "n columns"]]) -> Int64[np.ndarray, "n columns"]:
  pixels.drop_warnings()
  return job()


def scan_files(folder: str, names: Sequence[str]) -> Int64[np.ndarray, "n 4"]:
  """Return each file's width, height (0 without a header), orientation and size in bytes.

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
          rows.append((*_header(file), os.fstat(file.fileno()).st_size))
      except FileNotFoundError:
        if not os.path.islink(path):
          raise
        rows.append((*_NO_HEADER, 0))
  return np.array(rows, np.int64)


def scan_shard(
  path: str, keys: Sequence[str], records: int, verify: bool
) -> Int64[np.ndarray, "n 7"]:
  """Return each image's width, height, orientation, bytes, offset, label and `name_digest`.

  A shard on this machine is memory-mapped, so no record is copied; one at an address is read whole.
  A core scans 7,500 records/s, and headers take half of the time. The kernel's read-ahead stays on
  although it reads the whole shard: from a cold disk a core scanned 3,600 records/s with it and
  2,200 without (MADV_RANDOM, a fifth of the bytes). The first epoch then finds the shard in memory
  (results/input_decisions.json). The checksum of each record's length is verified; with `verify`
  that of its data too, which reads every byte.

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
  for image, offset, label, name in read_examples(content, path, keys, records, verify=verify):
    header = _header(io.BytesIO(image))
    rows.append((*header, len(image), offset, label, name_digest(name)))
  return np.array(rows, np.int64).reshape(-1, 7)


def _header(file: BinaryIO) -> pixels.Header:
  """Return an image's size and orientation; size 0 where Pillow finds no header.

  Raises:
    OSError: the file system failed; the error has an errno.
  """
  try:
    with pixels.open_image(file) as image:
      return pixels.header_of(image)
  # Parsers raise almost anything on a damaged header; a decompression bomb counts as one.
  except Exception as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise
    return _NO_HEADER
