"""Helpers that write a folder of many files: whole files, one command at a time."""

import contextlib
import errno
import itertools
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator

from jaxspeed.errors import UserError, printable
from jaxspeed.files import TEMPORARY, try_lock, write_atomically


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
