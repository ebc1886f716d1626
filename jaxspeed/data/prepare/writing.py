"""A folder of many files that follow their originals, as with `make`.

    with locked(folder):
      refuse_other(folder, made)
      begin([folder], made)
      done = update([folder], made, tasks, look=look, work=work)

Every file appears whole or not at all, by a rename, so the same command, run again after a kill,
resumes. A file has the modification time of its latest original when that was read, and is made
again if an original's is later.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from jaxspeed.data.disk.index import own_index
from jaxspeed.data.disk.prepared import (
  STAT_THREADS,
  Prepared,
  mending,
  modified,
  read_prepared,
  write_prepared,
)
from jaxspeed.data.table import Table
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError, printable
from jaxspeed.files import TEMPORARY, try_lock, write_atomically

Show = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Broken:
  """An image that cannot be read: its name below the source's folder, and why."""

  name: str
  reason: str


def broken_headers(table: Table) -> tuple[Broken, ...]:
  """Return the images without a readable header."""
  rows = np.flatnonzero(table.width == 0).tolist()
  return tuple(Broken(table.name(row), "it has no header of an image") for row in rows)


class Task(Protocol):
  """The files that are made of some originals."""

  @property
  def originals(self) -> Sequence[str]:
    """The path of each original."""


_Task = TypeVar("_Task", bound=Task)


@dataclasses.dataclass(frozen=True)
class Done:
  """What a command did.

  Attributes:
    images: number of originals that are not broken.
    made: number of those whose files were made now; those of the others were current.
    broken: images that are left out, sorted by name.
    seconds: the time that it took.
    notes: lines for the user.
  """

  images: int
  made: int
  broken: tuple[Broken, ...]
  seconds: float
  notes: tuple[str, ...] = ()


def refuse_inside(destination: pathlib.Path, source: pathlib.Path) -> None:
  """Raise a UserError where the destination is inside the source."""
  if destination.resolve().is_relative_to(source.resolve()):
    raise UserError(
      f"{destination} lies inside {source}, whose images are read: name a folder outside it."
    )


def refuse_other(folder: pathlib.Path, made: Prepared) -> Prepared | None:
  """Return how the files in a folder were made, if there are any.

  Raises:
    UserError: they have another source or setting than `made`, or `prepare` did not write them.
  """
  stored = read_prepared(folder)
  if stored is None:
    if folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
      raise UserError(
        f"{folder} holds files that prepare {made.kind} did not write: train on them as they are, "
        "or name another folder."
      )
    return None
  # Names and times cannot tell two folders' images apart. If the old folder is gone and the names
  # are the same, it was moved.
  there = os.path.isdir(stored.source)
  same = (
    os.path.samefile(stored.source, made.source) if there else stored.originals == made.originals
  )
  if not same or (stored.kind, stored.setting) != (made.kind, made.setting):
    raise UserError(
      f"{folder} holds what {mending(folder, stored)} makes: remove it, or name another folder."
    )
  return stored


def begin(folders: Iterable[pathlib.Path], made: Prepared) -> None:
  """Store that folders are not complete, and how they are made."""
  for folder in folders:
    for each in (folder, folder / ".jaxspeed"):
      remove_temporary(each)
    write_prepared(folder, made)
    own_index(folder).unlink(missing_ok=True)


def update(
  folders: Iterable[pathlib.Path],
  made: Prepared,
  tasks: Sequence[_Task],
  *,
  look: Callable[[_Task, Sequence[int]], _Task | None],
  work: Callable[[_Task], tuple[int, list[Broken]]],
  finish: Callable[[Sequence[Broken]], None],
  broken: Iterable[Broken] = (),
  workers: int,
  show: Show | None,
) -> Done:
  """Do what is left of some tasks, and store that folders are complete.

  Args:
    folders: the folders of the files.
    made: how they are made.
    tasks: what makes all files.
    look: function from a task and the times of its originals (0: missing) to what is left of it.
    work: function that does a task; it returns the number of originals, and those that are broken.
    finish: function that writes what completes the folders, given all broken images.
    broken: images that are in no task.
    workers: number of processes.
    show: called now and then with the number of images done and the total.
  """

  began = time.perf_counter()

  def examine(task: _Task) -> tuple[int, _Task | None]:
    times = [modified(path) for path in task.originals]
    return max(times, default=0), look(task, times)

  with ThreadPoolExecutor(STAT_THREADS) as pool:
    examined = list(pool.map(examine, tasks))
  left = [task for _, task in examined if task is not None]
  images, read = (sum(len(task.originals) for task in each) for each in (tasks, left))
  found: list[Broken] = []
  done = images - read
  for count, damaged in in_processes(work, left, workers=workers):
    done += count
    found += damaged
    if show is not None:
      show(done, images)
  images, read = images - len(found), read - len(found)
  found = sorted([*found, *broken], key=lambda each: each.name)
  lost = collections.Counter("".join(each.name.split("/")[:-2]) for each in found)
  complete = dataclasses.replace(
    made,
    newest=max([made.newest, *(newest for newest, _ in examined)]),
    images={split: count - lost[split] for split, (count, _) in made.originals.items()},
  )
  finish(found)
  for folder in folders:
    write_prepared(folder, complete)
  return Done(images, read, tuple(found), time.perf_counter() - began)


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
  """Make `folder` with its parents, and lock it against other commands.

  The lock ends with the process, even if that is killed.

  Raises:
    UserError: another command has locked the folder; or it, or what the block writes there, cannot
      be written.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
      if not try_lock(descriptor):
        raise UserError(f"{folder} is being written by another jaxspeed.prepare: wait for it.")
      yield
    finally:
      os.close(descriptor)
  except OSError as error:
    name = printable(os.fspath(error.filename or folder))
    raise UserError(
      f"{name} cannot be written ({error.strerror or error}): nothing is half-written; correct "
      "that and run the same command again, which resumes from here."
    ) from error


def write_whole(path: str | os.PathLike[str], content: Iterable[bytes]) -> None:
  """Write a file under a temporary name in its folder, then rename it."""
  # No sync of a million files: those that a power failure loses are made again.
  write_atomically(path, content, sync=False)


def remove_temporary(folder: pathlib.Path) -> None:
  """Remove the temporary files that a kill left in a folder."""
  for path in folder.glob(f"{TEMPORARY}*"):
    if not path.is_dir():
      path.unlink()
