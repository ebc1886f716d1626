"""Frameworks that take turns: each has a process that prepares a step, times it, and waits."""

import contextlib
import dataclasses
import math
import multiprocessing
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import benchmarking

# A function that takes a number of steps and returns the last loss, and what preparing it cost.
Prepared = tuple[Callable[[int], float], dict[str, Any]]
MEMORY = "out of memory"
_WARM_STEPS = 3


class WorkerFailed(Exception):
  """A worker cannot do what it was asked; the message says why."""


class Work:
  """Methods that a worker is asked for by name."""

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


def is_out_of_memory(error: BaseException) -> bool:
  """Whether an error of JAX, PyTorch or NumPy says that it ran out of memory."""
  text = f"{type(error).__name__}: {error}"
  return bool(re.search(r"RESOURCE_EXHAUSTED|OutOfMemory|out of memory|MemoryError", text))


def serve(pipe: Connection) -> None:
  """Answers requests until the other end is closed: with a result, or with why there is none."""
  work = Work()
  while True:
    try:
      do, request = pipe.recv()
    except EOFError:
      return
    try:
      answer = getattr(work, do)(**request), None
    except Exception as error:  # any error is reported, so that the other rows go on
      said = [part for part in str(error).splitlines() if part.strip()] or [""]
      short = f"{type(error).__name__}: {said[0]}"[:300]
      answer = None, MEMORY if is_out_of_memory(error) else short
    pipe.send(answer)


class Worker:
  """A process that prepares and times the step of one framework.

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
  """A framework: what preparing it cost, and the seconds per step of each turn."""

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
  """Timings of frameworks, turn by turn; one that fails has the reason, and the others go on."""
  timings = {framework: Timing() for framework in makes}
  with contextlib.ExitStack() as stack:
    workers = {f: stack.enter_context(contextlib.closing(make_worker())) for f in makes}
    for framework, timing in timings.items():
      with _failing(timing):
        timing.prepared = workers[framework].ask("prepare", make=makes[framework])
    for _, framework in benchmarking.turns([*makes], turns):
      timing = timings[framework]
      if timing.failed is None:
        steps = max(1, round(turn_seconds / timing.prepared["step_s"]))
        with _failing(timing):
          timing.step_s.append(workers[framework].ask("turn", steps=steps))
  return timings


@contextlib.contextmanager
def _failing(timing: Timing) -> Iterator[None]:
  try:
    yield
  except WorkerFailed as error:
    timing.failed = str(error)
