"""Sides of a comparison that take turns: each prepares a step, times it, and waits.

A side may have a process of its own (`Worker`) or share this one (`Here`).
"""

import contextlib
import dataclasses
import math
import multiprocessing
import re
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import benchmarking

# A function that takes a number of steps and returns the last loss, and what preparing it cost.
Prepared = tuple[Callable[[int], float], dict[str, Any]]
MEMORY = "out of memory"
_WARM_STEPS = 3


class WorkerFailed(Exception):
  """A side cannot do what it was asked; the message says why."""


class Work:
  """Methods that a side is asked for by name."""

  def __init__(self) -> None:
    self._run: Callable[[int], float]

  def prepare(self, make: Callable[[], Prepared]) -> dict[str, Any]:
    """Makes a step and warms it up; `step_s` is a first estimate, `loss` the first loss."""
    self._run, prepared = make()
    first_loss, step_s = self._run(1), self.turn(_WARM_STEPS)
    return prepared | {"step_s": step_s, "loss": first_loss}

  def turn(self, steps: int) -> float:
    """Times some steps, after an untimed one; returns the seconds per step."""
    self._run(1)
    start = time.perf_counter()
    loss = self._run(steps)
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
      raise ValueError(f"the loss is {loss}")
    return seconds / steps

  def call(self, function: Callable[[], Any]) -> Any:
    """Returns what a function returns."""
    return function()

  def answer(self, do: str, request: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The answer of a method, or why there is none: any error, so that the other sides go on."""
    try:
      return getattr(self, do)(**request), None
    except Exception as error:
      text = f"{type(error).__name__}: {error}"
      if re.search(r"RESOURCE_EXHAUSTED|OutOfMemory|out of memory|MemoryError", text):
        return None, MEMORY
      lines = [line for line in text.splitlines() if line.strip()]
      return None, lines[0][:300]


class Here:
  """A side in this process."""

  def __init__(self) -> None:
    self._work = Work()

  def ask(self, do: str, **request: Any) -> Any:
    """Returns the answer of a method of `Work`.

    Raises:
      WorkerFailed: it fails.
    """
    answer, failed = self._work.answer(do, request)
    if failed:
      raise WorkerFailed(failed)
    return answer

  def close(self) -> None:
    """Gives up its step."""
    self._work = Work()


def serve(pipe: Connection) -> None:
  """Answers requests until the other end is closed."""
  work = Work()
  with contextlib.suppress(EOFError):
    while True:
      pipe.send(work.answer(*pipe.recv()))


class Worker:
  """A side in a process of its own.

  Args:
    seconds: the longest time for an answer.
  """

  def __init__(self, seconds: float) -> None:
    self._seconds = seconds
    context = multiprocessing.get_context("spawn")
    self._pipe, theirs = context.Pipe()
    self._process = context.Process(target=serve, args=(theirs,), daemon=True)
    self._process.start()
    theirs.close()

  def ask(self, do: str, **request: Any) -> Any:
    """Returns the answer of a method of `Work`.

    Raises:
      WorkerFailed: the worker reports a failure, has ended, or took too long.
    """
    try:
      self._pipe.send((do, request))
      if not self._pipe.poll(self._seconds):
        # Otherwise its late answer would be taken for the answer to the next request.
        self._process.kill()
        self._process.join()
        raise WorkerFailed(f"no answer within {self._seconds:g} s")
      answer, failed = self._pipe.recv()
    except (EOFError, OSError):
      self._process.join()
      code = self._process.exitcode
      # The kernel kills a process this way when the host runs out of memory.
      raise WorkerFailed(
        MEMORY if code == -signal.SIGKILL else f"it ended with code {code}"
      ) from None
    if failed:
      raise WorkerFailed(failed)
    return answer

  def close(self) -> None:
    """Ends it, by force if it is still there after ten seconds."""
    self._pipe.close()
    self._process.join(10)
    self._process.kill()


@dataclasses.dataclass
class Timing:
  """A side: what preparing it cost, and the seconds per step of each turn."""

  prepared: dict[str, Any] = dataclasses.field(default_factory=dict)
  step_s: list[float] = dataclasses.field(default_factory=list)
  failed: str | None = None


def time_in_turns(
  makes: Mapping[str, Callable[[], Prepared]],
  make_worker: Callable[[], Any],
  *,
  turns: int,
  turn_seconds: float,
) -> dict[str, Timing]:
  """Timings of sides, turn by turn; one that fails has the reason, and the others go on."""
  timings = {name: Timing() for name in makes}
  with contextlib.ExitStack() as stack:
    workers = {name: stack.enter_context(contextlib.closing(make_worker())) for name in makes}
    # Prepared in order, and timed in turns, every other one backwards.
    for turn, name in [(-1, name) for name in makes] + [*benchmarking.turns([*makes], turns)]:
      timing = timings[name]
      try:
        if turn < 0:
          timing.prepared = workers[name].ask("prepare", make=makes[name])
        elif timing.failed is None:
          steps = max(1, round(turn_seconds / timing.prepared["step_s"]))
          timing.step_s.append(workers[name].ask("turn", steps=steps))
      except WorkerFailed as error:
        timing.failed = str(error)
  return timings
