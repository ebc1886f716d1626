"""A pool of processes for many small tasks."""

import collections
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from jaxspeed.errors import UserError

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
# Tasks of each process that wait or are done.
_AHEAD = 4


def in_processes(
  function: Callable[[_Task], _Result], tasks: Iterable[_Task], *, workers: int
) -> Generator[_Result]:
  """Yield the results of `function` in the order of the tasks, from at most `workers` processes.

  The processes end with this one, even if it is killed. They do not import the main module, which
  may be a user's script or import JAX. With one worker, the work is done in this process.

  Raises:
    UserError: a process was killed.
    Exception: the first one that `function` raised; tasks that have not started are dropped.
  """
  if workers <= 1:
    yield from map(function, tasks)
    return
  # fork would copy locks held by threads of the caller's modules.
  context = multiprocessing.get_context("forkserver")
  module = getattr(function, "func", function).__module__  # of a `functools.partial`
  context.set_forkserver_preload([module])
  pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_process)
  under_way = collections.deque[Future[_Result]]()
  try:
    for task in tasks:
      with _without_main():
        under_way.append(pool.submit(function, task))
      # Not all at once: the tasks of 14 million images hold all their names.
      if len(under_way) > _AHEAD * workers:
        yield under_way.popleft().result()
    while under_way:
      yield under_way.popleft().result()
  except BrokenProcessPool:
    raise UserError(
      f"one of {workers} worker processes was killed, perhaps out of memory: run the same command "
      "again, prepare with fewer --workers, and it resumes from here."
    ) from None
  finally:
    pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
  """Hide the main module from `multiprocessing`, which starts processes at a submission."""
  main = sys.modules["__main__"]
  sys.modules["__main__"] = types.ModuleType("__main__")
  try:
    yield
  finally:
    sys.modules["__main__"] = main


def _begin_process() -> None:
  """Leave Ctrl-C to the parent, and end when the parent has ended."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)
