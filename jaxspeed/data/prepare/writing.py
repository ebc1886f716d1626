"""Helpers that write a folder of many files: whole files, one command at a time, many processes."""

import contextlib
import errno
import itertools
import multiprocessing
import os
import pathlib
import signal
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from jaxspeed.errors import UserError, printable
from jaxspeed.files import TEMPORARY, try_lock, write_atomically

_POLL_SECONDS = 0.05

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def refuse_inside(destination: pathlib.Path, source: pathlib.Path) -> None:
  """Raise a UserError where the destination is inside the source."""
  if destination.resolve().is_relative_to(source.resolve()):
    raise UserError(
      f"{destination} lies inside {source}, whose images are read: name a folder outside it."
    )


@contextlib.contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[None]:
  """Report a full disk, or any other failure to write to `folder`, in one sentence."""
  try:
    yield
  except OSError as error:
    reason, name = error.strerror or str(error), os.fspath(error.filename or "")
    # A full disk concerns all files; a file that is in the way is named.
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP):
      reason += f": {printable(str(name))}" if name and name != os.fspath(folder) else ""
    raise UserError(
      f"{folder} cannot be written ({reason}): nothing in it is half-written; "
      "correct that and run the same command again, which resumes from here."
    ) from error


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Make `folder` with its parents, and lock it against other commands.

  The lock ends with the process, even if that is killed.

  Raises:
    UserError: the folder cannot be made, or another command has locked it.
  """
  with writing(folder):
    folder.mkdir(parents=True, exist_ok=True)
  descriptor = os.open(folder, os.O_RDONLY)
  if not try_lock(descriptor):
    os.close(descriptor)
    raise UserError(f"{folder} is being written by another jaxspeed.prepare: wait for it.")
  try:
    yield
  finally:
    os.close(descriptor)


@contextlib.contextmanager
def waiting_for(folder: pathlib.Path) -> Iterator[None]:
  """Wait until no other command writes the index of `folder`, then keep others waiting.

  Raises:
    OSError: the folder cannot be opened.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    while not try_lock(descriptor):
      time.sleep(_POLL_SECONDS)  # an index is written within a second
    yield
  finally:
    os.close(descriptor)


def write_whole(path: str | os.PathLike[str], content: Iterable[bytes]) -> None:
  """Write a file under a temporary name in its folder, then rename it."""
  # No sync of a million files: those that a power failure loses are made again.
  write_atomically(path, content, sync=False)


def finished_files(folder: str | os.PathLike[str]) -> set[str]:
  """Return the names of the files in a folder, and remove temporary files that a kill left."""
  try:
    names = os.listdir(folder)
  except FileNotFoundError:
    return set()
  for name in names:
    path = os.path.join(folder, name)
    # A temporary folder is a half-written index, which `remove_indices` removes.
    if name.startswith(TEMPORARY) and not os.path.isdir(path):
      os.unlink(path)
  return set(names)


def remove_file(folder: pathlib.Path, name: str) -> bool:
  """Remove a file below a folder; return False for links, folders, and what is behind a link."""
  *parents, _ = (folder / part for part in itertools.accumulate(name.split("/"), os.path.join))
  if any(each.is_symlink() for each in parents):
    return False
  try:
    if not stat.S_ISREG(os.lstat(folder / name).st_mode):
      return False
    os.unlink(folder / name)
  except FileNotFoundError:
    pass
  return True


def in_processes(
  function: Callable[[_Task], _Result], tasks: Sequence[_Task], *, workers: int
) -> Generator[_Result]:
  """Yield the results of `function` as they come, from at most `workers` processes.

  The processes end with this one, even if it is killed. With one worker or task, the work is done
  in this process.

  Raises:
    UserError: a process was killed.
    Exception: the first one that `function` raised; tasks that have not started are dropped.
  """
  if min(workers, len(tasks)) <= 1:
    yield from map(function, tasks)
    return
  # fork would copy locks held by threads of the caller's modules.
  method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
  context = multiprocessing.get_context(method)
  if method == "forkserver":
    context.set_forkserver_preload([function.__module__])
  remaining = iter(tasks)
  pool = ProcessPoolExecutor(
    min(workers, len(tasks)), mp_context=context, initializer=_begin_process
  )
  try:
    pending = {pool.submit(function, task) for task in itertools.islice(remaining, 4 * workers)}
    while pending:
      done, pending = wait(pending, return_when=FIRST_COMPLETED)
      pending |= {pool.submit(function, task) for task in itertools.islice(remaining, len(done))}
      yield from (future.result() for future in done)
  except BrokenProcessPool:
    raise UserError(
      "a worker process was killed, perhaps out of memory: run the same command again, which "
      f"resumes from here, with fewer than --workers={workers}."
    ) from None
  finally:
    pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
  """Leave Ctrl-C to the parent, and end when the parent has ended."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)
