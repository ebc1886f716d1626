"""Sides of a comparison that take turns: each prepares a step, times it, and waits.

A side is a pool of one process (`process`), as each framework has it, or of one thread of this
process (`ThreadPool(1)`).
"""

import contextlib
import dataclasses
import math
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.pool import Pool
from typing import Any

import benchmarking

# A function that takes a number of steps and returns the last loss, and what preparing it cost.
Prepared = tuple[Callable[[int], float], dict[str, Any]]
_WARM_STEPS = 3
# `run`, the step of a side, which is this thread or process.
_side = threading.local()


class SideFailed(Exception):
  """A side cannot do what it was asked; the message says why."""


def prepare(make: Callable[[], Prepared]) -> dict[str, Any]:
  """Makes a side's step and warms it up; `step_s` is a first estimate, `loss` the first loss."""
  _side.run, prepared = make()
  first_loss, step_s = _side.run(1), turn(_WARM_STEPS)
  return prepared | {"step_s": step_s, "loss": first_loss}


def turn(steps: int) -> float:
  """Times some steps of a side, after an untimed one; returns the seconds per step."""
  _side.run(1)
  start = time.perf_counter()
  loss = _side.run(steps)
  seconds = time.perf_counter() - start
  if not math.isfinite(loss):
    raise ValueError(f"the loss is {loss}")
  return seconds / steps


def answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
  """What a function returns, or why it failed: any error, so that the other sides go on."""
  try:
    return function(*arguments), ""
  except Exception as error:
    return None, f"{type(error).__name__}: {error}".splitlines()[0][:300]


def process() -> Pool:
  """A side in a process of its own."""
  return multiprocessing.get_context("spawn").Pool(1)


def ask(side: Pool, function: Callable[..., Any], *arguments: Any, seconds: float = 3600) -> Any:
  """Returns what a function returns in a side.

  Raises:
    SideFailed: the function fails, or takes longer than `seconds`, as it does in a process that was
      killed.
  """
  try:
    found, failed = side.apply_async(answer, (function, arguments)).get(seconds)
  except multiprocessing.TimeoutError:
    side.terminate()
    raise SideFailed(f"no answer within {seconds:g} s") from None
  if failed:
    raise SideFailed(failed)
  return found


@dataclasses.dataclass
class Timing:
  """A side: what preparing it cost, the seconds per step of each turn, and why it failed, if so."""

  prepared: dict[str, Any] = dataclasses.field(default_factory=dict)
  step_s: list[float] = dataclasses.field(default_factory=list)
  failed: str = ""


def time_in_turns(
  makes: Mapping[str, Callable[[], Prepared]],
  make_side: Callable[[], Pool],
  *,
  turns: int,
  turn_seconds: float,
  answer_seconds: float = 3600,
  on_ready: Callable[[dict[str, Timing]], None] = lambda timings: None,
) -> dict[str, Timing]:
  """Timings of sides, turn by turn; one that fails has the reason, and the others go on.

  Args:
    makes: what makes the step of each side; they are prepared in this order.
    make_side: makes a side.
    turns: of each, every other one backwards.
    turn_seconds: about what one takes.
    answer_seconds: the longest time for one, or for preparing.
    on_ready: called with what there is each time that a side is prepared.
  """
  timings = {name: Timing() for name in makes}
  with contextlib.ExitStack() as stack:
    sides = {name: stack.enter_context(make_side()) for name in makes}
    for name, make in makes.items():
      print(f"{name}: compiles", flush=True)
      start, timing = time.perf_counter(), timings[name]
      try:
        timing.prepared = ask(sides[name], prepare, make, seconds=answer_seconds)
      except SideFailed as error:
        timing.failed = str(error)
      seconds = time.perf_counter() - start
      print(f"{name}: {timing.failed or 'ready'} after {seconds:.1f} s", flush=True)
      on_ready(timings)
    for _, name in benchmarking.turns([*makes], turns):
      timing = timings[name]
      if timing.failed:
        continue
      steps = max(1, round(turn_seconds / timing.prepared["step_s"]))
      try:
        timing.step_s.append(ask(sides[name], turn, steps, seconds=answer_seconds))
      except SideFailed as error:
        timing.failed = str(error)
  return timings
