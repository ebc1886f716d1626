"""The clock of a run: seconds by activity, and the rules that sum them into published times.

    clock = Clock()
    with clock.measure("train"):
      metrics = jax.block_until_ready(run_epoch(...))
    with clock.measure("validate"):
      ...
    print(clock.train_seconds, clock.dawn_seconds, clock.process_seconds)

JAX returns before the device has finished: end an interval with `jax.block_until_ready`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

# The parts of a start stand first, in the order in which they are printed.
_PARTS_OF_START = (
  "connect",  # to the other processes of the run
  "devices",  # finding them: JAX's own start, with the driver's and CUDA's on a GPU
  "load",  # reading data before the first step
  "model",  # the plan, and the shapes of the model's parameters
  "compile",  # waiting for programs
  "warmup",
  "others",  # waiting for slower processes before the first step
  "restore",  # of a checkpoint
  "init",  # parameters and whitening
)
NAMES = (
  *_PARTS_OF_START,
  "train",  # steps, with the augmentation and averaging inside them
  "validate",  # accuracy between epochs
  "final_validate",  # the evaluation with test-time augmentation that airbench counts
  "checkpoint",
  "compile_cold",  # seconds of XLA, summed over the threads that compile
  "compile_cached",  # seconds of reading programs from the persistent cache
  "tracing",  # the part of these two in which JAX traces Python, also summed over threads
)

# Seconds; a shorter wait is only each epoch's check for its programs, which takes microseconds.
_CHECKING = 0.01

_IMPORTED = time.perf_counter()


def process_age() -> float:
  """Seconds since this process started.

  Linux tells the start in ticks of its boot clock (proc(5)), so the interpreter's start and earlier
  imports count. On other systems, and if that figure is later than this module's import (a sandbox
  with its own clock), the import counts as the start.
  """
  since_import = time.perf_counter() - _IMPORTED
  try:
    # psutil adds the time of the boot, rounded to seconds.
    started = psutil.Process().create_time() - psutil.boot_time()
    return max(since_import, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
  except (OSError, RuntimeError, AttributeError, psutil.Error):
    return since_import


class Clock:
  """Sums of seconds under the names of `NAMES`, measured one interval at a time.

  A reading counts only intervals that have ended. `add` may be called from any thread.

  Args:
    now: returns the seconds of a monotonic clock.
    later: whether this is a later run of its process, which starts now and not with the process.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter, *, later: bool = False) -> None:
    self._now, self._later = now, later
    self._imports = 0.0 if later else process_age()
    self._process_start = now() - self._imports
    self._seconds = dict.fromkeys(NAMES, 0.0)  # of this process
    self._earlier: Mapping[str, float] = {}  # of the run's earlier processes
    self._running = ""
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def measure(self, name: str) -> Iterator[None]:
    """Adds the seconds of the `with` block to `name`, even if the block raises.

    Raises:
      RuntimeError: another interval is running, and seconds would be counted twice.
    """
    if self._running:
      raise RuntimeError(f"the clock cannot measure {name!r} while it measures {self._running!r}")
    self._running, start = name, self._now()
    try:
      yield
    finally:
      self.add(name, self._now() - start)
      self._running = ""

  def add(self, name: str, seconds: float) -> None:
    """Adds seconds measured elsewhere; an unknown name is a KeyError."""
    with self._lock:
      self._seconds[name] += seconds

  def _sum(self, *names: str) -> float:
    """The seconds of some names, with those of the run's earlier processes."""
    return sum(self._seconds[name] + self._earlier.get(name, 0.0) for name in names)

  @property
  def train_seconds(self) -> float:
    """airbench's rule: init and whitening, training, and the final evaluation with its test-time
    augmentation.

    Excluded: compiling, loading data, warm-up, validation between epochs, checkpoints, logging.
    Source: KellerJordan/cifar10-airbench, the CUDA events of legacy/airbench94.py.
    """
    return self._sum("init", "train", "final_validate")

  @property
  def dawn_seconds(self) -> float:
    """DAWNBench's rule: init and training, without any validation or checkpoint.

    Source: stanford-futuredata/dawn-bench-entries, README.
    """
    return self._sum("init", "train")

  @property
  def process_seconds(self) -> float:
    """All seconds since the start of this process (`process_age`), plus those of the run's earlier
    processes, each up to its last saved state."""
    return self._earlier.get("process", 0.0) + self._now() - self._process_start

  def summary(self) -> dict[str, Any]:
    """The `seconds` of a result: train, dawn, process, and compile {wall, cold, cached}.

    `wall` is the time that the run waited for programs; `cold` and `cached` are sums over threads
    that compile in parallel. Each is None if there was nothing to wait for, compile or read.
    """
    wall = self._sum("compile")
    return {
      "train": self.train_seconds,
      "dawn": self.dawn_seconds,
      "compile": {
        "wall": wall if wall >= _CHECKING else None,
        "cold": self._sum("compile_cold") or None,
        "cached": self._sum("compile_cached") or None,
      },
      "process": self.process_seconds,
    }

  def state(self) -> dict[str, float]:
    """The seconds of `NAMES` and of "process", for a checkpoint."""
    with self._lock:
      return {name: self._sum(name) for name in NAMES} | {"process": self.process_seconds}

  def restore(self, state: Mapping[str, float]) -> None:
    """Adds the seconds of the run's earlier processes; call it once, early in a resumed run.

    Args:
      state: the value of `state` in the last one.
    """
    self._earlier = state

  def starting(self) -> str:
    """The time since the start of the process, or of a later run, and its parts, in words.

    "python and imports" ends where the clock begins; "the rest" is what no part measures. Tracing
    is a part of the seconds of compiling, but summed over threads.
    """
    parts = {"python and imports": self._imports}
    parts |= {name: self._seconds[name] for name in _PARTS_OF_START}
    age, tracing = self._now() - self._process_start, self._seconds["tracing"]
    parts["the rest"] = age - sum(parts.values())
    words = {name: f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds >= 0.05}
    if "compile" in words and tracing >= 0.05:
      words["compile"] += f" (tracing {tracing:.1f} in its threads)"
    begin = "this run" if self._later else "the process"
    return f"{age:.1f} s after {begin} began" + (f": {', '.join(words.values())}" if words else "")
