"""Processes that prepare and time steps for `bench_resnet50.py`, and pause in between.

This file, run as a program, is such a process: it answers requests, a line of JSON each.
"""

import dataclasses
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import benchmarking
from paused_process import PausedProcess
from resnet50_steps import Shape, make_jax_step, make_torch_step

MEMORY = "out of memory"
_WARM_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Contestant:
  """What is timed: "jaxspeed" with a variant of its step, or "torch"."""

  framework: str
  variant: str = "sgd"


class WorkerFailed(Exception):
  """A worker cannot do what it was asked; the message says why."""


class Work:
  """Methods that a worker is asked for by name."""

  def __init__(self) -> None:
    self._runs: dict[str, Callable[[int], float]] = {}

  def prepare(self, contestant: dict, shape: dict, mode: str) -> dict[str, Any]:
    """Compiles a step and warms it up; `step_s` is a first estimate."""
    who, what = Contestant(**contestant), Shape(**shape)
    if who.framework == "torch":
      run, prepared = make_torch_step(what, mode)
    else:
      run, prepared = make_jax_step(what, who.variant)
    self._runs[who.variant] = run
    first_loss = run(1)
    return prepared | {"step_s": self.turn(who.variant, _WARM_STEPS)["step_s"], "loss": first_loss}

  def turn(self, variant: str, steps: int) -> dict[str, Any]:
    """Times some steps, after an untimed one; returns the seconds per step."""
    run = self._runs[variant]
    run(1)
    start = time.perf_counter()
    loss = run(steps)
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
      raise ValueError(f"the loss is {loss}")
    return {"step_s": seconds / steps}

  def ceiling(self, precision: str) -> dict[str, Any]:
    """Returns the rate of a matrix product, and the device."""
    from jaxspeed.records import provenance

    tflops = benchmarking.matrix_product_tflops(precision)
    return {"tflops": tflops, "device": provenance.describe_device()}


def is_out_of_memory(error: BaseException) -> bool:
  """Whether an error of JAX, PyTorch or NumPy says that it ran out of memory."""
  text = f"{type(error).__name__}: {error}"
  return bool(re.search(r"RESOURCE_EXHAUSTED|OutOfMemory|out of memory|MemoryError", text))


def serve() -> None:
  """Answers requests, a line of JSON each, until the input ends."""
  # Libraries print to standard output; the answers get a stream of their own.
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  work = Work()
  for line in sys.stdin:
    request = json.loads(line)
    try:
      answer = getattr(work, request.pop("do"))(**request)
    except Exception as error:  # any error is reported, so that the other rows go on
      said = [part for part in str(error).splitlines() if part.strip()] or [""]
      short = f"{type(error).__name__}: {said[0]}"[:300]
      answer = {"failed": MEMORY if is_out_of_memory(error) else short}
    print(json.dumps(answer), file=answers, flush=True)


class Worker(PausedProcess):
  """A process that prepares and times contestants of one framework, and pauses in between.

  Args:
    seconds: the longest time for an answer.
  """

  def __init__(self, seconds: float) -> None:
    self._seconds = seconds
    process = subprocess.Popen(
      [sys.executable, __file__],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      # JAX would reserve three quarters of the memory, but the other framework needs half of it.
      env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    super().__init__(process)

  def ask(self, do: str, **request: Any) -> dict[str, Any]:
    """Returns the answer of a method of `Work`.

    Raises:
      WorkerFailed: the worker reports a failure, has ended, or took too long.
    """
    try:
      self.say(json.dumps({"do": do} | request))
      line = self._lines.get(timeout=self._seconds)
    except queue.Empty:
      # Otherwise its late answer would be taken for the answer to the next request.
      self.kill()
      raise WorkerFailed(f"no answer within {self._seconds:g} s") from None
    except OSError:
      line = None
    if line is None:
      code = self._process.wait()
      # The kernel kills a process this way when the host runs out of memory.
      raise WorkerFailed(MEMORY if code == -signal.SIGKILL else f"it ended with code {code}")
    answer = json.loads(line)
    if "failed" in answer:
      raise WorkerFailed(answer["failed"])
    return answer


if __name__ == "__main__":
  serve()
