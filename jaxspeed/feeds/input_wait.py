"""The time in which the devices wait for input."""

import time
from collections.abc import Callable
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

  Args:
    end_of: a function that waits for a step's loss and returns the time of the step's end.
    now: a function that returns the time, in seconds of the same clock.
  """

  def __init__(
    self,
    end_of: Callable[[Any], float] = _end_of,
    now: Callable[[], float] = time.monotonic,
  ) -> None:
    self._end_of, self._now = end_of, now
    self._pool = ThreadPoolExecutor(1, thread_name_prefix="step ends")
    self._step: tuple[Any, Future[float]] | None = None
    self._seconds = 0.0

  def dispatched(self, loss: Any) -> None:
    """Notes that the step that computes `loss` is under way."""
    self._step = loss, self._pool.submit(self._end_of, loss)

  def take(self, take: Callable[[], Any]) -> Any:
    """Returns the batch from `take`; counts the wait for it while no step is under way."""
    start = self._now()
    batch = take()
    end = self._now()
    self._seconds += max(0.0, end - max(start, self._idle_since(end)))
    return batch

  def take_seconds(self) -> float:
    """The seconds measured since the last call."""
    seconds, self._seconds = self._seconds, 0.0
    return seconds

  def close(self) -> None:
    """Ends the thread after the steps under way, without waiting for them."""
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _idle_since(self, now: float) -> float:
    """When the last step ended; `now` if it has not, or if it failed, which the loop finds out."""
    if self._step is None:
      return float("-inf")
    loss, ended = self._step
    if not loss.is_ready():
      return now
    return now if ended.exception() else ended.result()
