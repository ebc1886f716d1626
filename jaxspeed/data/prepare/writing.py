"""A folder of files that follow their originals, as with `make`.

Every file appears whole or not at all, by a rename, so the same command, run again after a kill,
resumes. A file has the modification time of its latest original when that was read, and is made
again if an original's is later.
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from jaxspeed.data.disk import index
from jaxspeed.data.disk.index import Show
from jaxspeed.data.disk.prepared import (
  Prepared,
  digest_of,
  mending,
  read_prepared,
  write_prepared,
)
from jaxspeed.data.disk.sources import list_images
from jaxspeed.data.formats.folders import readable
from jaxspeed.data.table import Table
from jaxspeed.data.workers import in_processes
from jaxspeed.errors import UserError, printable, some
from jaxspeed.files import TEMPORARY, locked_folder, write_atomically

_NAMED = 3  # the most names of images in a message
_Job = TypeVar("_Job")


# An image that cannot be read: its name below the source's folder, and why.
Broken = tuple[str, str]
# What a job did: numbers of originals and of those read now, latest time, broken originals.
Made = tuple[int, int, int, Sequence[Broken]]


def broken_headers(table: Table) -> list[Broken]:
  """Return the images without a readable header."""
  rows = np.flatnonzero(table.width == 0).tolist()
  return [(table.name(row), "it has no header of an image") for row in rows]


def write_index(folder: pathlib.Path, show: Show | None = None) -> Table:
  """Read all headers of a folder, and write the index beside its images.

  Raises:
    UserError: as in `sources.list_images` and `index.write_index`.
  """
  with readable(folder):
    return index.write_index(list_images(folder), show)


class Done(NamedTuple):
  """What a command did.

  Attributes:
    images: number of originals that are not broken.
    made: number of those whose files were made now; those of the others were current.
    broken: images that are left out, sorted by name.
    seconds: the time that it took.
    indices: those of the folders that were written, as `write_index` returns them.
    notes: lines on files of the source that are left out.
  """

  images: int
  made: int
  broken: list[Broken]
  seconds: float
  indices: list[Table]
  notes: tuple[str, ...]


def follow(
  folders: Sequence[pathlib.Path],
  kind: Literal["resize", "shards"],
  source: Table,
  flags: Sequence[str],
  jobs: Sequence[_Job],
  work: Callable[[_Job], Made],
  *,
  finish: Callable[[], None] = lambda: None,
  broken: Iterable[Broken] = (),
  workers: int,
  show: Show | None,
) -> Done:
  """Make what is missing or older than its originals in some folders, and an index of each.

  Args:
    folders: the folders, all in one, which is locked against other commands.
    kind, flags: as in `Prepared`.
    source: the originals.
    jobs: what makes the files.
    work: function that does a job, or finds that it is done.
    finish: function that writes what completes the folders.
    broken: images that `work` leaves out.
    workers: number of processes.
    show: called now and then with the number of images done and the total.

  Raises:
    UserError: the source holds shards; or a folder holds other files, or holds the originals or
      lies among them, or cannot be written, or the disk is full.
  """
  if source.keys:
    raise UserError(f"{source.root} holds shards: name the folder of their images.")
  began = time.perf_counter()
  root = pathlib.Path(source.root).absolute()
  made = Prepared(kind, root.as_uri(), tuple(flags), len(source.names), digest_of(source.names))
  for folder in folders:
    inner, outer = folder.resolve(), root.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
      raise UserError(
        f"{folder} lies inside {root}, whose images are read, or holds it: name another folder."
      )
  done = read = newest = 0
  found = [*broken]
  try:
    with locked_folder(folders[0].parent):
      outdated = [path for folder in folders for path in _outdated(folder, made)]
      for path in outdated:
        path.unlink()
      for folder in folders:
        write_prepared(folder, made)  # they are not complete
      for images, made_now, latest, lost in in_processes(
        work, jobs, workers=min(workers, len(jobs))
      ):
        done, read, newest = done + images, read + made_now, max(newest, latest)
        found += lost
        if show is not None:
          show(done, made.originals)
      finish()
      found.sort()
      made = dataclasses.replace(made, newest=newest)
      indices = [_complete(folder, made, found, source) for folder in folders]
  except OSError as error:
    raise UserError(
      f"{error.filename or folders[0]} cannot be read or written ({error.strerror or error}): "
      "nothing is half-written; correct that, and the same command resumes from here."
    ) from error
  seconds = time.perf_counter() - began
  return Done(done - len(found), read, found, seconds, indices, source.notes)


def _outdated(folder: pathlib.Path, made: Prepared) -> Iterator[pathlib.Path]:
  """Yield what a kill left of files in a folder, and shards of other images.

  Raises:
    UserError: its files have another source or other flags than `made`, or `prepare` did not write
      them.
  """
  yield from folder.rglob(f"{TEMPORARY}*")
  stored = read_prepared(folder)
  if stored is None:
    if folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
      raise UserError(
        f"{folder} holds files that prepare {made.kind} did not write: train on them as they are, "
        "or name another folder."
      )
    return
  # Names and times cannot tell two folders' images apart. If the old folder is gone and the names
  # are the same, it was moved.
  there = os.path.isdir(stored.source)
  same = os.path.samefile(stored.source, made.source) if there else stored.digest == made.digest
  if not same or (stored.kind, stored.flags) != (made.kind, made.flags):
    raise UserError(
      f"{folder} holds what {mending(folder, stored)} makes: remove it, or name another folder."
    )
  if stored.digest != made.digest:
    yield from folder.glob(f"{folder.parent.name}-*.tfrecord-*-of-*")


def _complete(
  folder: pathlib.Path, made: Prepared, broken: Sequence[Broken], source: Table
) -> Table:
  """List the broken images, index the files, and store that they are complete.

  Raises:
    UserError: there are copies that have no original.
  """
  if lines := [f"{printable(name)}\t{reason}\n".encode() for name, reason in broken]:
    write_atomically(folder / "broken.txt", lines, sync=False)
  else:
    (folder / "broken.txt").unlink(missing_ok=True)
  table = write_index(folder)
  others = {*table.names.decoded()} - {*source.names.decoded()}
  if others and not table.keys:
    raise UserError(
      f"{folder} holds {len(others):,} images without originals in the source "
      f"({some([*map(printable, sorted(others))], _NAMED)}): remove them or move them away, or "
      f"remove {folder} and make all copies again."
    )
  write_prepared(folder, dataclasses.replace(made, images=table.counts))
  return table
