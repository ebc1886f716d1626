"""The index of a data set: where its images lie and how large they are, in one .npz file.

Headers are read once, in many processes. The index is in the cache, or beside the images:
ROOT/.jaxspeed/images.npz, which takes precedence. It is never used if it does not hold the names
that are listed now, or if shards have another size or time.
"""

import contextlib
import functools
import io
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import BinaryIO

import numpy as np
from jaxtyping import Int64

from jaxspeed.data import remote
from jaxspeed.data.formats import npz, pixels
from jaxspeed.data.formats.folders import readable
from jaxspeed.data.formats.tfrecord import read_examples
from jaxspeed.data.table import Listed, Table, name_digest
from jaxspeed.data.workers import in_processes
from jaxspeed.devices.host import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import locked_folder, open_regular

_log = logging.getLogger("jaxspeed")

_NAMES_PER_JOB = 500
# A header takes 75 us, and processes 0.7 s to start: they break even at 10,000 on 16 cores.
_IMAGES_FOR_PROCESSES = 10_000
_NO_HEADER = pixels.Header(0, 0, 1)
# Columns of the index: what a header gives and the image's size in bytes, then those of shards.
_HEADER: dict[str, type[np.signedinteger]] = {
  "width": np.int32,
  "height": np.int32,
  "orientation": np.int8,
  "length": np.int64,
}
_IN_SHARD = _HEADER | {"offset": np.int64, "label": np.int32, "digest": np.int64}
Show = Callable[[int, int], None]
Columns = dict[str, np.ndarray]


def open_table(listed: Listed, cache: pathlib.Path, show: Show | None = None) -> Table:
  """Return the table of listed images, from an index, or from their headers.

  Args:
    listed: the files.
    cache: the folder of indices that are not beside their images.
    show: called with the number of headers read and the total.

  Raises:
    UserError: as in `read_headers`.
  """
  entry = npz.entry_of(cache, "images", listed.place)
  # The processes of a host wait for the first, which reads the headers.
  with locked_folder(cache):
    for path in (_own(listed), entry):
      try:
        if path.is_file():
          return _table(listed, _stored(listed, path), path)
      except ValueError as error:
        _log.warning(
          "the index %s is not used (%s): headers are read again; python -m jaxspeed.prepare index "
          "renews one that is beside its images",
          *(path, error),
        )
    columns = _scan(listed, show)
    npz.store(entry, columns | _state(listed), {})
  return _table(listed, columns, entry)


def read_headers(listed: Listed, show: Show | None = None, *, store: bool = False) -> Table:
  """Return the table of listed images from their headers: an index may be out of date.

  With `store`, write the index beside the images, and verify the checksums of shards.

  Raises:
    UserError: a file cannot be opened, a shard is damaged, or the index cannot be written.
  """
  columns, path = _scan(listed, show, verify=store), _own(listed)
  try:
    if store:
      npz.write(path, columns | _state(listed), {})
  except OSError as error:
    raise UserError(
      f"{path} cannot be written ({error.strerror or error}): make its folder writable, or train "
      "without an index there."
    ) from error
  return _table(listed, columns, path)


def _own(listed: Listed) -> pathlib.Path:
  return listed.place / ".jaxspeed" / "images.npz"


def _stored(listed: Listed, path: pathlib.Path) -> Columns:
  """Return the columns of an index of these files, and perhaps of others after them.

  Raises:
    ValueError: the index must not be used; the message says why.
  """
  found, _ = npz.read(path)
  for name, now in _state(listed).items():
    if not np.array_equal(found.get(name, now[:0])[: len(now)], now):
      raise ValueError("it was made from other files, or an older state of these")
  wanted = _IN_SHARD if listed.records else _HEADER
  columns = {name: found[name][: listed.images] for name in wanted if name in found}
  kinds = {name: (column.dtype, column.shape) for name, column in columns.items()}
  if kinds != {name: (np.dtype(dtype), (listed.images,)) for name, dtype in wanted.items()}:
    raise ValueError("its columns are not those that this version reads")
  return columns


def _state(listed: Listed) -> dict[str, np.ndarray]:
  """Return names, and of shards on this machine sizes and times, in whole seconds, as in tar."""
  local = listed.records and not remote.is_remote(listed.root)
  names = listed.names.decoded() if local else []
  stats = [os.stat(os.path.join(listed.root, name)) for name in names]
  rows = np.array([(each.st_size, int(each.st_mtime)) for each in stats], np.int64)
  return {"names": listed.names.text, "stats": rows.reshape(-1, 2)}


def _table(listed: Listed, columns: Columns, index: pathlib.Path) -> Table:
  numbers = np.arange(len(listed.names), dtype=np.int32)
  columns["file"] = np.repeat(numbers, listed.records) if listed.records else numbers
  if listed.labels is not None:
    columns["label"] = listed.labels
  if listed.digest is not None:
    columns["digest"] = listed.digest
  return Table(root=listed.root, names=listed.names, index=str(index), **columns)


def _scan(listed: Listed, show: Show | None, *, verify: bool = False) -> Columns:
  """Read the headers of all images, in processes where there are many."""
  _log.info("reading the headers of %s images of %s", f"{listed.images:,}", listed.place)
  names = listed.names.decoded()
  jobs: list[Callable[[], Int64[np.ndarray, "n columns"]]]
  if listed.records:
    jobs = [
      functools.partial(scan_shard, os.path.join(listed.root, name), *listed.keys, records, verify)
      for name, records in zip(names, listed.records, strict=True)
    ]
  else:
    jobs = [
      functools.partial(scan_files, listed.root, names[i : i + _NAMES_PER_JOB])
      for i in range(0, len(names), _NAMES_PER_JOB)
    ]
  rows, done = [], 0
  workers = usable_cpus() if listed.images >= _IMAGES_FOR_PROCESSES else 1
  with contextlib.closing(in_processes(_run, jobs, workers=workers)) as answers:
    for answer in answers:
      rows.append(answer)
      done += len(answer)
      if show:
        show(done, listed.images)
  columns = {}
  for number, (name, dtype) in enumerate((_IN_SHARD if listed.records else _HEADER).items()):
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
  path: str, image_key: str, label_key: str, records: int, verify: bool
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
  for image, label, name in read_examples(
    content, path, image_key, label_key, records, verify=verify
  ):
    offset = _address(np.asarray(image)) - _address(content)
    header = _header(io.BytesIO(image))
    rows.append((*header, len(image), offset, label, name_digest(name)))
  return np.array(rows, np.int64).reshape(-1, 7)


def _address(array: np.ndarray) -> int:
  return array.__array_interface__["data"][0]


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
