"""How long the devices wait for input."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def _end_of(loss: Any) -> float:
  """Waits for the step that computes a loss; returns the seconds of the clock at its end."""
  loss.block_until_ready()
  return time.monotonic()


class InputWait:
  """Measures the seconds in which the devices had no step under way, for want of a batch.

  These run from the end of the last step, or from when the next batch was asked for if that was
  later, to when the batch came. A thread waits for the end of each step: the loop itself stands in
  the wait for the batch when it comes.

  Args:
    end_of: waits for a step's loss, and returns when the step ended.
    now: seconds of the same clock.
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

  def begin(self) -> None:
    """Notes that no step is under way."""
    self._step = None

  def dispatched(self, loss: Any) -> None:
    """Notes that a step is under way, which computes `loss`."""
    self._step = loss, self._pool.submit(self._end_of, loss)

  def take(self, take: Callable[[], Any]) -> Any:
    """The next batch, which `take` returns; counts the wait for it while no step is under way."""
    start = self._now()
    batch = take()
    end = self._now()
    self._seconds += max(0.0, end - max(start, self._idle_since(end)))
    return batch

  def take_seconds(self) -> float:
    """The seconds since the last call."""
    seconds, self._seconds = self._seconds, 0.0
    return seconds

  def close(self) -> None:
    """Ends the thread once the steps under way have ended; does not wait for that."""
    self._pool.shutdown(wait=False, cancel_futures=True)

  def _idle_since(self, now: float) -> float:
    """When the last step ended; `now` where it has not, or has failed, which the loop finds out."""
    if self._step is None:
      return float("-inf")
    loss, ended = self._step
    if not loss.is_ready():
      return now
    return now if ended.exception() else ended.result()
