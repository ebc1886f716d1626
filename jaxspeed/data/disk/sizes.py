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
import io
import itertools
import logging
import mmap
import os
import pathlib
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64

from jaxspeed.data.formats import array_cache, pixels
from jaxspeed.data.formats.tfrecord import Shard, find_records, parse_example
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, open_regular, parse_json

_log = logging.getLogger("jaxspeed")

_NO_HEADER = pixels.Header(0, 0, 1)
# The header of 98 in 100 JPEGs of ImageNet ends before it; the rest carry previews and profiles.
_HEADER_BYTES = 1 << 14
_NAMES_A_JOB = 500
# A header takes 75 us and a process 0.7 s to start, which come out even at 10,000 on 16 cores.
_IMAGES_FOR_PROCESSES = 10_000

Columns = dict[str, np.ndarray]
# What the header of an image says, and its bytes.
_HEADER_COLUMNS: dict[str, type[np.signedinteger]] = {
  "width": np.int32,
  "height": np.int32,
  "orientation": np.int8,
  "length": np.int64,
}
# The name of a function in _SCANS and its arguments, of types that JSON has.
Job = tuple[Any, ...]
Show = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Listing:
  """The images of a split before any of them is opened."""

  jobs: Sequence[Job]
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
  with contextlib.closing(_scan(list(missing.values()))) as answers:
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


def scan_files(folder: str, names: Sequence[str]) -> Int64[np.ndarray, "n 4"]:
  """Width, height, orientation and bytes of each file; a size of 0 where there is no header.

  Raises:
    UserError: a file cannot be opened or read, or is no regular one.
  """
  rows = []
  for name in names:
    path = os.path.join(folder, name)
    try:
      with open_regular(path) as file:
        rows.append((*_header(file), os.fstat(file.fileno()).st_size))
    except OSError as error:
      raise _unreadable(path, error) from error
  return np.array(rows, np.int64)


def scan_shard(path: str, image_key: str, label_key: str, records: int) -> Int64[np.ndarray, "n 7"]:
  """Width, height, orientation, bytes, offset in the file, label and `name_digest` of each image.

  The shard is mapped, so that no record is copied: 7,500 records/s a core, of which the headers
  take half. The kernel's read-ahead is left on although it reads the whole shard: from a cold disk
  3,600 records/s a core came with it and 2,200 without (MADV_RANDOM), which reads a fifth of the
  bytes; and the first epoch finds them in memory (results/input_decisions.json). Checksums of the
  data are not checked.

  Raises:
    UserError: the shard is cut off or damaged, or does not hold `records` images with labels.
  """
  try:
    with open_regular(path) as file:
      return _scan_open_shard(file, pathlib.Path(path), image_key, label_key, records)
  except OSError as error:
    raise _unreadable(path, error) from error


def _scan_open_shard(
  file: BinaryIO, path: pathlib.Path, image_key: str, label_key: str, records: int
) -> Int64[np.ndarray, "n 7"]:
  content = np.empty(0, np.uint8)
  if os.fstat(file.fileno()).st_size:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    content = np.frombuffer(mapped, np.uint8)
  frames = find_records(content, path)
  if len(frames) != records:
    raise UserError(
      f"{path} holds {len(frames)} records and dataset_info.json promises {records}: prepare the "
      "data set again."
    )
  rows = []
  for number, (start, length) in enumerate(frames):
    record = content[start : start + length]
    try:
      image, label, name = parse_example(record.data, image_key, label_key)
    except (ValueError, IndexError) as error:
      raise UserError(f"{path}: record {number} is no image with a label: {error}") from error
    offset = start + _address(np.asarray(image)) - _address(record)
    header = _header_within(file, offset, len(image))
    rows.append((*header, len(image), offset, label, name_digest(name)))
  return np.array(rows, np.int64).reshape(-1, 7)


def name_digest(name: bytes) -> int:
  """A signed 64-bit digest of a file's name without its folders; 0 of no name."""
  base = name.rpartition(b"/")[2]
  digest = hashlib.blake2b(base, digest_size=8).digest()
  return int.from_bytes(digest, "little", signed=True) if base else 0


def _address(array: np.ndarray) -> int:
  return array.__array_interface__["data"][0]


def _header_within(file: BinaryIO, offset: int, length: int) -> pixels.Header:
  """The header of the image at `offset` of a file, most often without reading all of it."""
  header = _NO_HEADER
  for part in (_HEADER_BYTES, length):
    header = _header(io.BytesIO(os.pread(file.fileno(), min(part, length), offset)))
    if header.width or part >= length:
      break
  return header


def _header(file: BinaryIO) -> pixels.Header:
  """Size and orientation of an image; a size of 0 where Pillow finds no header.

  Raises:
    OSError: with a number, from the file system.
  """
  try:
    with pixels.open_image(file) as image:
      return pixels.header_of(image)
  # Parsers of damaged headers raise whatever they stumble over; a decompression bomb is one, too.
  except Exception as error:
    if isinstance(error, OSError) and error.errno is not None:
      raise
    return _NO_HEADER


def _unreadable(path: str, error: OSError) -> UserError:
  return UserError(
    f"{path} cannot be read ({error.strerror or error}): the data set is not complete, or not "
    "readable for you."
  )


_SCANS: dict[str, Callable[..., Int64[np.ndarray, "n columns"]]] = {
  "files": scan_files,
  "shard": scan_shard,
}


def _scan(
  listings: Sequence[Listing],
) -> Generator[Int64[np.ndarray, "n columns"], None, None]:
  """The rows of each job, in order; of many images in as many processes as there are cores."""
  jobs = [job for listing in listings for job in listing.jobs]
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  if sum(listing.images for listing in listings) >= _IMAGES_FOR_PROCESSES and sys.executable:
    yield from _scan_in_processes(jobs, min(cores, len(jobs)))
  else:
    yield from map(_scan_here, jobs)


def _scan_here(job: Job) -> Int64[np.ndarray, "n columns"]:
  with pixels.without_warnings():
    return _SCANS[job[0]](*job[1:])


def _scan_in_processes(
  jobs: Sequence[Job], workers: int
) -> Generator[Int64[np.ndarray, "n columns"], None, None]:
  """The rows of each job, in order, from processes that import neither JAX nor TensorFlow.

  Those of `multiprocessing` import the main module again before their first job, which is JAX with
  `python -m jaxspeed.train` (2 s and 150 MB each), and fail where a script of the user's has no
  `if __name__ == "__main__"`.
  """
  environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
  idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()

  def ask(job: Job) -> Int64[np.ndarray, "n columns"]:
    process = idle.get()
    try:
      return _ask(process, job)
    finally:
      idle.put(process)

  with contextlib.ExitStack() as stack:
    for _ in range(workers):
      command = [sys.executable, "-m", "jaxspeed.data.disk.sizes"]
      process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="ascii",
        env=environment,
      )
      stack.callback(_end, process)
      idle.put(process)
    with ThreadPoolExecutor(workers, thread_name_prefix="headers") as pool:
      yield from pool.map(ask, jobs)


def _ask(process: "subprocess.Popen[str]", job: Job) -> Int64[np.ndarray, "n columns"]:
  """Has the process do a job; where it has died (for want of memory, say), this one does it."""
  assert process.stdin and process.stdout
  try:
    process.stdin.write(dump_json(job) + "\n")
    process.stdin.flush()
    answer = parse_json(process.stdout.readline())
  except (OSError, ValueError):
    return _scan_here(job)
  if "error" in answer:
    raise UserError(answer["error"])
  return np.array(answer["rows"], np.int64)


def _end(process: "subprocess.Popen[str]") -> None:
  """Closes the pipes of a process, at which it ends; one that has died leaves them broken."""
  for pipe in (process.stdin, process.stdout):
    with contextlib.suppress(OSError):
      if pipe:
        pipe.close()
  process.wait()


def _serve() -> None:
  """Answers one job a line until the other process closes the pipe."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the process that asks
  for line in sys.stdin:
    try:
      answer: dict[str, Any] = {"rows": _scan_here(parse_json(line)).tolist()}
    except UserError as error:
      answer = {"error": str(error)}
    print(dump_json(answer), flush=True)


if __name__ == "__main__":
  _serve()
