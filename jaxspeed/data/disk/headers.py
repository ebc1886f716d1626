"""Readers of image headers in many processes: width, height, orientation and place of each image.

for rows in scan([("files", "/data/train/cat", ["1.jpg", "2.jpg"])], images=2):
  ...  # an int64 array of shape [2, 4]
"""

import contextlib
import hashlib
import io
import mmap
import os
import pathlib
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64

from jaxspeed.data.formats import pixels
from jaxspeed.data.formats.tfrecord import parse_example, read_records
from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, open_regular, parse_json

_NO_HEADER = pixels.Header(0, 0, 1)
# Holds the headers of 98 % of ImageNet's JPEGs; the others carry previews and profiles.
_HEADER_BYTES = 1 << 14
# A header takes 75 us and a process 0.7 s to start: they break even at 10,000 on 16 cores.
_IMAGES_FOR_PROCESSES = 10_000

# The name of a function in _SCANS and its arguments, which JSON can hold.
Job = tuple[Any, ...]


def scan_files(folder: str, names: Sequence[str]) -> Int64[np.ndarray, "n 4"]:
  """Return each file's width, height (0 without a header), orientation and size in bytes.

  A link to a missing file counts as a broken image of 0 bytes.

  Raises:
    UserError: a file cannot be opened or read, or is not a regular file.
  """
  rows = []
  for name in names:
    path = os.path.join(folder, name)
    try:
      with open_regular(path) as file:
        rows.append((*_header(file), os.fstat(file.fileno()).st_size))
    except OSError as error:
      if not (isinstance(error, FileNotFoundError) and os.path.islink(path)):
        raise _unreadable(path, error) from error
      rows.append((*_NO_HEADER, 0))
  return np.array(rows, np.int64)


def scan_shard(path: str, image_key: str, label_key: str, records: int) -> Int64[np.ndarray, "n 7"]:
  """Return each image's width, height, orientation, bytes, offset, label and `name_digest`.

  The shard is memory-mapped, so no record is copied. A core scans 7,500 records/s, and headers take
  half of the time. The kernel's read-ahead stays on although it reads the whole shard: from a cold
  disk a core scanned 3,600 records/s with it and 2,200 without (MADV_RANDOM, a fifth of the bytes).
  The first epoch then finds the shard in memory (results/input_decisions.json). Both checksums of
  each record are verified.

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
  found = read_records(content, path)
  if len(found) != records:
    raise UserError(
      f"{path} holds {len(found)} records and dataset_info.json promises {records}: prepare the "
      "data set again."
    )
  rows = []
  for number, record in enumerate(found):
    try:
      image, label, name = parse_example(record, image_key, label_key)
    except (ValueError, IndexError) as error:
      raise UserError(f"{path}: record {number} is not a labelled image: {error}") from error
    offset = _address(np.asarray(image)) - _address(content)
    header = _header_within(file, offset, len(image))
    rows.append((*header, len(image), offset, label, name_digest(name)))
  return np.array(rows, np.int64).reshape(-1, 7)


def name_digest(name: bytes) -> int:
  """Return a signed 64-bit digest of a file's name without its folders; 0 for an empty name."""
  base = name.rpartition(b"/")[2]
  digest = hashlib.blake2b(base, digest_size=8).digest()
  return int.from_bytes(digest, "little", signed=True) if base else 0


def _address(array: np.ndarray) -> int:
  return array.__array_interface__["data"][0]


def _header_within(file: BinaryIO, offset: int, length: int) -> pixels.Header:
  """Return the header of the image at `offset` of a file, usually without reading all of it."""
  header = _NO_HEADER
  for part in (_HEADER_BYTES, length):
    header = _header(io.BytesIO(os.pread(file.fileno(), min(part, length), offset)))
    if header.width or part >= length:
      break
  return header


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


def _unreadable(path: str, error: OSError) -> UserError:
  return UserError(
    f"{path} cannot be read ({error.strerror or error}): the data set is not complete, or not "
    "readable for you."
  )


_SCANS: dict[str, Callable[..., Int64[np.ndarray, "n columns"]]] = {
  "files": scan_files,
  "shard": scan_shard,
}


def scan(jobs: Sequence[Job], images: int) -> Generator[Int64[np.ndarray, "n columns"], None, None]:
  """Yield the rows of each job in order; for many images, with one process for each core.

  Raises:
    UserError: a file cannot be opened, or a shard is damaged.
  """
  cores = usable_cpus()
  if images >= _IMAGES_FOR_PROCESSES and sys.executable:
    yield from _scan_in_processes(jobs, min(cores, len(jobs)))
  else:
    yield from map(_scan_here, jobs)


def _scan_here(job: Job) -> Int64[np.ndarray, "n columns"]:
  with pixels.without_warnings():
    return _SCANS[job[0]](*job[1:])


def _scan_in_processes(
  jobs: Sequence[Job], workers: int
) -> Generator[Int64[np.ndarray, "n columns"], None, None]:
  """Yield the rows of each job in order, from processes that import neither JAX nor TensorFlow.

  Processes of `multiprocessing` would import the main module again: with `python -m
  jaxspeed.train` that is JAX (2 s and 150 MB each), and a user's script without
  `if __name__ == "__main__"` would fail.
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
      command = [sys.executable, "-m", "jaxspeed.data.disk.headers"]
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
  """Have the process do a job, or do it here if the process has died (out of memory, say)."""
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
  """End a process by closing its pipes, which are broken if it has died."""
  for pipe in (process.stdin, process.stdout):
    with contextlib.suppress(OSError):
      if pipe:
        pipe.close()
  process.wait()


def _serve() -> None:
  """Answer one job for each line of standard input, until the parent closes the pipe."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
  for line in sys.stdin:
    try:
      answer: dict[str, Any] = {"rows": _scan_here(parse_json(line)).tolist()}
    except UserError as error:
      answer = {"error": str(error)}
    print(dump_json(answer), flush=True)


if __name__ == "__main__":
  _serve()
