"""Ahead-of-time compilation of a run's programs, in parallel and with a cache on disk."""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import pathlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxspeed.devices.flops import count_flops
from jaxspeed.devices.host import program_folder, usable_cpus
from jaxspeed.errors import UserError

_log = logging.getLogger("jaxspeed")
_COMPILED = "/jax/core/compile/backend_compile_duration"
_FROM_CACHE = "/jax/compilation_cache/cache_retrieval_time_sec"
# Small programs are cached too: any that is missing is compiled again at the next start.
_LEAST = {
  "jax_persistent_cache_min_compile_time_secs": 0.0,
  "jax_persistent_cache_min_entry_size_bytes": -1,
}


class CompiledInsideClock(UserWarning):
  """A program was compiled while the training clock ran, so its seconds are in the result."""


@dataclasses.dataclass(eq=False)
class Program:
  """A compiled program, the time it took to compile, and the operations it computes.

  Attributes:
    call: the program, for arguments of exactly the shapes and shardings it was compiled for.
    seconds: the time to trace, lower and compile it, or to read it from the cache.
    tracing: the part of it that traced and lowered Python, cached or not.
    cached: whether it came from the cache on disk.
    flops: the operations of one call (`flops.count_flops`).
    counted: whether the clock of a run has its seconds.
  """

  call: jax.stages.Compiled
  seconds: float
  cached: bool
  flops: float
  tracing: float = 0.0
  counted: bool = False

  def text(self) -> str:
    """The optimised program as HLO, megabytes of text."""
    return self.call.as_text() or ""


def use_cache() -> pathlib.Path | None:
  """Turns on the cache of programs; returns its folder, or None with a warning if not writable.

  The environment names it, no config does: compiled programs are code, and a run may be a
  stranger's.
  """
  path = program_folder()
  try:
    path = path.expanduser()
    path.mkdir(parents=True, exist_ok=True)
    usable = os.access(path, os.W_OK)
  except (OSError, RuntimeError, ValueError):  # a RuntimeError: no home folder
    usable = False
  if not usable:
    _log.warning("no cache of compiled programs: %s cannot be written", path)
    return None
  if jax.config.values["jax_compilation_cache_dir"] != str(path):
    jax.config.update("jax_compilation_cache_dir", str(path))
    compilation_cache.reset_cache()  # otherwise JAX keeps the folder of its first program
  for name, least in _LEAST.items():
    jax.config.update(name, least)
  return path


@contextlib.contextmanager
def cache_settings_kept() -> Iterator[None]:
  """A block after which JAX's cache of programs is as it was before (`use_cache`)."""
  before = {name: jax.config.values[name] for name in ("jax_compilation_cache_dir", *_LEAST)}
  try:
    yield
  finally:
    for name, value in before.items():
      jax.config.update(name, value)
    compilation_cache.reset_cache()  # otherwise JAX keeps the folder of its first program


class _Counts(threading.local):
  """Programs that this thread compiled or read; other threads compile while a clock runs."""

  from_cache = 0
  compiled = 0


_counts = _Counts()


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
  if event == _FROM_CACHE:
    _counts.from_cache += 1
  elif event == _COMPILED:
    _counts.compiled += 1


jax.monitoring.register_event_duration_secs_listener(_on_duration)

# Programs are traced one after the other, since Python runs one thread at a time, and JAX does not
# trace again in a second program what it traced in the first. A warm start of configs/cifar10.py
# took 4.1 s instead of 4.6 (EPYC, two cores, medians of 5 in turns).
_one_traces = threading.Lock()


def compile_program(
  function: Callable[..., Any],
  arguments: tuple[Any, ...],
  *,
  donate: tuple[int, ...] = (),
  options: dict[str, Any] | None = None,
) -> Program:
  """Compiles `function` for arguments given as ShapeDtypeStructs with shardings.

  Args:
    function: a pure function of arrays.
    arguments: the abstract arguments.
    donate: the positions of arguments that lend their memory to the results.
    options: XLA options for this program only; an unknown one in XLA_FLAGS would end the process.

  Raises:
    UserError: XLA does not accept an option or its value.
  """
  with _one_traces:
    start, hits = time.perf_counter(), _counts.from_cache
    traced = jax.jit(function, donate_argnums=donate).trace(*arguments)
    lowered = traced.lower()
    tracing = time.perf_counter() - start
  try:
    compiled = lowered.compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as error:
    sentence = str(error).partition(": ")[2]
    if "compile option" not in sentence and "setting option" not in sentence:
      raise
    raise UserError(f"--config.compiler_options: XLA says: {sentence.rstrip('.')}.") from error
  seconds = time.perf_counter() - start
  return Program(
    call=compiled,
    seconds=seconds,
    cached=_counts.from_cache > hits,
    flops=count_flops(traced.jaxpr),
    tracing=tracing,
  )


def compiling_threads() -> int:
  """The number of programs to compile at once: one per core for a CPU, otherwise one."""
  # XLA times kernels on a GPU while it compiles: two compilations would disturb each other.
  return usable_cpus() if jax.default_backend() == "cpu" else 1


class BackgroundCompiler:
  """Compiles programs in background threads, in the order given; on a CPU several at once.

  Args:
    jobs: for each program, under any name, a function that compiles it.
  """

  def __init__(self, jobs: Mapping[Any, Callable[[], Program]]) -> None:
    threads = max(1, min(len(jobs), compiling_threads()))
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="compile")
    self._futures = {name: pool.submit(job) for name, job in jobs.items()}
    pool.shutdown(wait=False)

  def __getitem__(self, name: Any) -> Program:
    """Waits for a program and returns it, or raises the exception of its compilation."""
    return self._futures[name].result()

  def wait(self) -> dict[Any, Program]:
    """Waits for all programs and returns them; at the first error, cancels those not begun."""
    try:
      return {name: self[name] for name in self._futures}
    except BaseException:
      self.cancel()
      raise

  def cancel(self) -> None:
    """Cancels the programs whose compilation has not begun."""
    for future in self._futures.values():
      future.cancel()

  def ready(self) -> dict[Any, Program]:
    """The programs that are compiled by now."""
    return {name: self[name] for name, future in self._futures.items() if future.done()}


@contextlib.contextmanager
def warn_on_compile(what: str) -> Iterator[None]:
  """Warns with CompiledInsideClock if the block compiles a program."""
  before = _counts.compiled
  yield
  compiled = _counts.compiled - before
  if compiled:
    warnings.warn(
      f"{compiled} program(s) were compiled during {what} and count in its seconds",
      CompiledInsideClock,
      stacklevel=3,
    )
