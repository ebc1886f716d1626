"""A reader of images that reads ahead in many threads, and shards in large parts.

Images are taken from an order in windows. All reads of a window are under way at once, while the
images of the window before are used. Images of a shard that lie together are one read, so an order
that mixes `chunks_of` shards within a window, as that of training does, reads megabytes at a time.
"""

import collections
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from jaxtyping import Int64

from jaxspeed.data.formats.folders import readable
from jaxspeed.data.table import Table

# Images of one thread's job: handing over each one alone would cost 30 us.
_TOGETHER = 4
# The most bytes of a shard that are read at once: at 50 ms a request, 64 threads can ask for
# 2.7 GB/s.
_CHUNK_BYTES = 1 << 21
# A gap up to this between two images is read with them.
_GAP_BYTES = 1 << 16
# Bytes of images in a window: 2,400 of ImageNet's originals, of 128 places in its shards. A stream
# holds two windows.
_WINDOW_BYTES = 1 << 28


@functools.cache
def _threads(number: int) -> ThreadPoolExecutor:
  """Return the threads that all streams of this process share."""
  return ThreadPoolExecutor(number, thread_name_prefix="read")


def chunks_of(table: Table) -> Int64[np.ndarray, "n"]:
  """Return the number of each image's chunk, from 0: images of a shard that are read together."""
  assert table.offset is not None
  places = np.stack([table.file, table.offset // _CHUNK_BYTES])
  return np.cumsum(np.diff(places, prepend=places[:, :1]).any(0))


def window_of(table: Table, threads: int) -> int:
  """Return the number of images in a window."""
  if table.offset is None or not len(table):
    return threads * _TOGETHER
  return max(int(_WINDOW_BYTES / max(table.length.mean(), 1)), 1)


# Images that are used together: their window, their numbers, and perhaps arrays with a row of each.
Part = tuple[tuple[int, int], Int64[np.ndarray, "n"], *tuple[np.ndarray, ...]]


class ReadAhead:
  """Reads images in threads, and returns them in the order of the requests.

  A disk or a network answers each request after its latency, so the throughput is the number of
  threads over the latency, whatever the number of cores.

  Args:
    table: the images.
    threads: number of concurrent reads.
  """

  def __init__(self, table: Table, *, threads: int) -> None:
    self._table, self._threads, self._closed = table, threads, False

  def in_order(self, parts: Iterator[Part]) -> Iterator[tuple[Part, list[bytes]]]:
    """Yield each part with its images, while those of the next window are read."""
    under_way: collections.deque[Iterator[tuple[Part, list[bytes]]]] = collections.deque()
    for _, window in itertools.groupby(parts, key=operator.itemgetter(0)):
      under_way.append(self._read([*window]))
      if len(under_way) > 1:
        yield from under_way.popleft()
      if self._closed:
        return
    yield from itertools.chain(*under_way)

  def close(self) -> None:
    """Drop the requests that have not started."""
    self._closed = True

  def _read(self, parts: Sequence[Part]) -> Iterator[tuple[Part, list[bytes]]]:
    """Begin to read a window; return an iterator of its parts with their images."""
    numbers = np.concatenate([part[1] for part in parts])
    found: dict[int, tuple[Future[list[bytes]], int]] = {}
    for places in self._together(numbers):
      future = _threads(self._threads).submit(self._do, numbers[places])
      found |= {place: (future, i) for i, place in enumerate(places.tolist())}
    place = itertools.count()

    def take() -> bytes:
      future, i = found.pop(next(place))
      return future.result()[i]

    return ((part, [take() for _ in part[1]]) for part in parts)

  def _together(self, numbers: Int64[np.ndarray, "n"]) -> list[Int64[np.ndarray, "_"]]:
    """Return the places in `numbers` of the images of each read."""
    table = self._table
    if table.offset is None:
      return np.split(np.arange(len(numbers)), np.arange(_TOGETHER, len(numbers), _TOGETHER))
    order = np.lexsort((table.offset[numbers], table.file[numbers]))
    rows = numbers[order]
    first, end = table.offset[rows], table.offset[rows] + table.length[rows]
    apart = (first[1:] - end[:-1] > _GAP_BYTES) | (np.diff(table.file[rows]) != 0)
    apart |= np.diff(first // _CHUNK_BYTES) != 0
    return np.split(order, np.flatnonzero(apart) + 1)

  def _do(self, numbers: Int64[np.ndarray, "n"]) -> list[bytes]:
    """Read images; b"", which counts as broken, is one that cannot be read or has changed.

    Raises:
      UserError: a shard cannot be read.
    """
    if self._closed:
      return []
    table, length = self._table, self._table.length[numbers]
    if table.offset is None:
      found = [_read_file(table, number) for number in numbers.tolist()]
    else:
      offset = table.offset[numbers]
      begin = int(offset[0])
      with readable(f"{table.name(int(numbers[0]))} in {table.root}"):
        content = table.read_part(int(numbers[0]), begin, int((offset + length).max()))
      found = [content[at : at + size] for at, size in zip(offset - begin, length, strict=True)]
    return [
      each if len(each) == size else b"" for each, size in zip(found, length.tolist(), strict=True)
    ]


def _read_file(table: Table, number: int) -> bytes:
  try:
    return table.read(number)
  except OSError:
    return b""
