"""The time in which the devices wait for input."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def _end_of(loss: Any) -> float:
  """Waits for the step that computes `loss`; returns the time of its end, in seconds."""
  loss.block_until_ready()
  return time.monotonic()


class InputWait:
  """Measures the seconds in which the devices had no step under way because a batch was missing.

  A wait starts at the end of the last step, or at the request for the next batch if that is later,
  and ends when the batch comes. A thread waits for the end of each step, because the loop itself is
  then waiting for the batch.
  """

  def __init__(self) -> None:
    self._pool = ThreadPoolExecutor(1, thread_name_prefix="step ends")
    self._step: tuple[Any, Future[float]] | None = None
    self._seconds = 0.0

  def dispatched(self, loss: Any) -> None:
    """Notes that the step that computes `loss` is under way."""
    self._step = loss, self._pool.submit(_end_of, loss)

  def take(self, batches: Iterator[Any]) -> Any:
    """Returns the next batch; counts the wait for it while no step is under way."""
    idle_from = time.monotonic()
    batch = next(batches)
    end = time.monotonic()
    if self._step is not None:
      loss, ended = self._step
      # The loop finds out about a step that failed.
      under_way = not loss.is_ready() or ended.exception() is not None
      idle_from = end if under_way else max(idle_from, ended.result())
    self._seconds += max(0.0, end - idle_from)
    return batch

  def take_seconds(self) -> float:
    """The seconds measured since the last call."""
    seconds, self._seconds = self._seconds, 0.0
    return seconds

  def close(self) -> None:
    """Ends the thread after the steps under way, without waiting for them."""
    self._pool.shutdown(wait=False, cancel_futures=True)
