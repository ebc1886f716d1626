"""A reader of images that reads ahead in many threads."""

import collections
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from jaxtyping import Int64

# Images of one thread's job: handing over each one alone would cost 30 us.
_TOGETHER = 4


class ReadAhead:
  """Reads images in threads, and returns them in the order of the requests.

  A disk or a network answers each request after its latency, so the throughput is the number of
  threads over the latency, whatever the number of cores.

  Args:
    read: function that returns the bytes of an image, given its number.
    threads: number of images read concurrently.
  """

  def __init__(self, read: Callable[[int], bytes], *, threads: int) -> None:
    self._read = read
    self._pool = ThreadPoolExecutor(threads, thread_name_prefix="read")
    # Enough for all threads, whatever the size of the parts.
    self._images = threads * _TOGETHER

  def in_parts(self, parts: Iterator[Int64[np.ndarray, "n"]]) -> Iterator[list[bytes]]:
    """Yield the images of each part, while those of the next parts are read."""
    under_way: collections.deque[list[Future[list[bytes]]]] = collections.deque()
    images = 0
    for part in parts:
      under_way.append(self._submit(part))
      images += len(part)
      if images >= self._images + len(part):
        ready = self._wait(under_way.popleft())
        images -= len(ready)
        yield ready
    while under_way:
      yield self._wait(under_way.popleft())

  def close(self) -> None:
    """End the threads; requests that have not started are dropped."""
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _submit(self, part: Int64[np.ndarray, "n"]) -> list[Future[list[bytes]]]:
    groups = [part[i : i + _TOGETHER] for i in range(0, len(part), _TOGETHER)]
    return [self._pool.submit(self._read_group, group) for group in groups]

  def _read_group(self, group: Int64[np.ndarray, "n"]) -> list[bytes]:
    return [self._read(number) for number in group.tolist()]

  @staticmethod
  def _wait(group: list[Future[list[bytes]]]) -> list[bytes]:
    return [encoded for future in group for encoded in future.result()]
