"""Every program of a run compiled ahead of its clock, side by side, from a cache on disk."""

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
_FROM_CACHE = "/jax/compilation_cache/cache_retrieval_time_sec"


class CompiledInsideClock(UserWarning):
  """A program was compiled while the training clock ran, so its seconds are in the result."""


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program, what it cost to get, and how much it computes.

  Attributes:
    call: takes arguments of exactly the shapes and shardings it was compiled for.
    seconds: to trace, lower and compile, or to read from the cache.
    cached: whether the cache on disk had it.
    flops: of one call as XLA counts the program before it optimises; 0 where it does not say.
  """

  call: Callable[..., Any]
  seconds: float
  cached: bool
  flops: float


def use_cache(folder: str) -> pathlib.Path | None:
  """Turns the cache of compiled programs on; '' is the user's own, ~/.cache/jaxspeed/programs.

  Returns None, after a warning, when the folder cannot be written: the run goes on without.
  """
  path = pathlib.Path(folder or "~/.cache/jaxspeed/programs").expanduser()
  try:
    path.mkdir(parents=True, exist_ok=True)
    usable = os.access(path, os.W_OK)
  except OSError:
    usable = False
  if not usable:
    warnings.warn(f"no cache of compiled programs: {path} cannot be written", stacklevel=2)
    return None
  jax.config.update("jax_compilation_cache_dir", str(path))
  # Also the small programs: each one that is missing is compiled again at the next start.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  return path


_hits = threading.local()
_compiled = 0


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
  global _compiled
  if event == _FROM_CACHE:
    _hits.count = getattr(_hits, "count", 0) + 1
  elif event == _COMPILED:
    _compiled += 1


jax.monitoring.register_event_duration_secs_listener(_on_duration)


def compile_program(
  function: Callable[..., Any],
  arguments: tuple[Any, ...],
  *,
  donate: tuple[int, ...] = (),
  options: dict[str, Any] | None = None,
) -> Program:
  """Compiles `function` for arguments given as ShapeDtypeStructs with shardings.

  Args:
    function: pure, of arrays.
    arguments: abstract.
    donate: positions of arguments whose memory the results may take.
    options: of XLA, for this program only; unknown ones raise, where a flag would end the process.
  """
  start, hits = time.perf_counter(), getattr(_hits, "count", 0)
  lowered = jax.jit(function, donate_argnums=donate).lower(*arguments)
  compiled = lowered.compile(compiler_options=options)
  seconds = time.perf_counter() - start
  analysis = lowered.cost_analysis() or {}
  return Program(
    call=compiled,
    seconds=seconds,
    cached=getattr(_hits, "count", 0) > hits,
    flops=float(analysis.get("flops", 0.0)),
  )


def compile_all(jobs: dict[str, Callable[[], Program]]) -> dict[str, Program]:
  """Runs the compilations side by side in threads; the first error is raised."""
  with concurrent.futures.ThreadPoolExecutor(max(1, min(len(jobs), os.cpu_count() or 1))) as pool:
    futures = {name: pool.submit(job) for name, job in jobs.items()}
    return {name: future.result() for name, future in futures.items()}


@contextlib.contextmanager
def nothing_compiles(what: str) -> Iterator[None]:
  """Warns with CompiledInsideClock when the block compiled a program after all."""
  before = _compiled
  yield
  if _compiled > before:
    warnings.warn(
      f"{_compiled - before} program(s) were compiled during {what} and count in its seconds",
      CompiledInsideClock,
      stacklevel=3,
    )
