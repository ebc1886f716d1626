"""A reader of images that reads ahead in many threads."""

import collections
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from jaxtyping import Int64

# Images of one thread's job: handing over each one alone would cost 30 us.
_TOGETHER = 4


@functools.cache
def _threads(number: int) -> ThreadPoolExecutor:
  """Return the threads that all streams of this process share."""
  return ThreadPoolExecutor(number, thread_name_prefix="read")


class ReadAhead:
  """Reads images in threads, and returns them in the order of the requests.

  A disk or a network answers each request after its latency, so the throughput is the number of
  threads over the latency, whatever the number of cores.

  Args:
    read: function that returns the bytes of an image, given its number.
    threads: number of images read concurrently.
  """

  def __init__(self, read: Callable[[int], bytes], *, threads: int) -> None:
    self._read, self._threads, self._closed = read, threads, False

  def in_parts(self, parts: Iterator[Int64[np.ndarray, "n"]]) -> Iterator[list[bytes]]:
    """Yield the images of each part, while those of the next parts are read."""
    under_way: collections.deque[list[Future[list[bytes]]]] = collections.deque()
    images = 0
    for part in parts:
      if self._closed:
        return
      groups = [part[i : i + _TOGETHER] for i in range(0, len(part), _TOGETHER)]
      under_way.append([_threads(self._threads).submit(self._read_group, each) for each in groups])
      images += len(part)
      # Enough for all threads, whatever the size of the parts.
      if images >= self._threads * _TOGETHER + len(part):
        ready = [encoded for future in under_way[0] for encoded in future.result()]
        under_way.popleft()
        images -= len(ready)
        yield ready
    while under_way:
      yield [encoded for future in under_way.popleft() for encoded in future.result()]

  def close(self) -> None:
    """Drop the requests that have not started."""
    self._closed = True

  def _read_group(self, group: Int64[np.ndarray, "n"]) -> list[bytes]:
    return [self._read(number) for number in group.tolist() if not self._closed]
