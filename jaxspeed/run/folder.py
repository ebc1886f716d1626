"""A run's folder: its ownership, its files, and the clean-up after a refused start."""

import contextlib
import errno
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.cluster import folder_lock
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import stored
from jaxspeed.errors import UserError, mend
from jaxspeed.files import TEMPORARY, expanded
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.run.profile import FOLDER as PROFILE

CONFIG = "config.json"
_LOCKS = (folder_lock.OWNER, folder_lock.OWNER_LOCK, folder_lock.LOCK)
_FILES = (
  CONFIG,
  "metrics.jsonl",
  "classes.json",
  "result.json",
  Predictions.FILE,
  Thumbnails.FILE,
  "broken_images.tsv",
  *_LOCKS,
)
_FOLDERS = ("checkpoints", "tensorboard", "loggers", PROFILE)
_EARLY = (CONFIG, "classes.json", *_LOCKS)
# Left by a start that was killed before it wrote its config; jaxspeed.launch's record of a job;
# lost+found is on a new disk.
_TRACES = (*_LOCKS, "launch", "lost+found")
_RUN = re.compile("run_[0-9]+")  # the folder of one of several seeds
_SHOWN = 3  # foreign files named in a message


def run_folder(workdir: Any, config: ConfigDict) -> str:
  """The folder that is named for a run, None: runs/NAME; a UserError if it is no path."""
  if workdir is None and config.name:
    return f"runs/{config.name.replace('/', '-')}"
  if not isinstance(workdir, str | os.PathLike) or not os.fspath(workdir):
    raise UserError(f"--workdir={workdir!r}: name a folder, or set --config.name for runs/NAME.")
  return str(expanded(workdir, "--workdir"))


def clear(path: pathlib.Path) -> None:
  """Removes what an untrained run has written."""
  for folder in (*_subfolders(path), path):
    for name in ("tensorboard", "loggers"):
      shutil.rmtree(folder / name, ignore_errors=True)
    for name in (CONFIG, "classes.json", "metrics.jsonl"):
      with contextlib.suppress(OSError):
        (folder / name).unlink()
    if folder != path:
      with contextlib.suppress(OSError):
        folder.rmdir()


def is_untrained(path: pathlib.Path) -> bool:
  """Whether a run has nothing to lose: only files that a start writes before its first row."""
  for place, folders, names in os.walk(path):
    folders[:] = [name for name in folders if name not in _TRACES]
    for name in names:
      is_log = name.startswith("events.") and os.path.basename(place) == "tensorboard"
      is_empty = name == "metrics.jsonl" and not os.path.getsize(os.path.join(place, name))
      if not (name in _EARLY or name.startswith((TEMPORARY, "traceback")) or is_log or is_empty):
        return False
  return True


@contextlib.contextmanager
def taken(
  workdir: str | os.PathLike[str],
  *,
  superseded: Callable[[str], None] = folder_lock.end_superseded,
) -> Iterator[FolderLock]:
  """Creates a run's folder if it is missing, and yields its lock, owned by this start.

  If the block fails before a new run has anything to lose, the folder is removed.

  Raises:
    UserError: the folder is foreign, another job's, or not writable; or the block could not write
      records or the result there.
  """
  path, lock, is_new = _local(workdir), None, False
  look(path)
  is_ours = not path.exists()
  make(path)
  try:
    lock = FolderLock(path, superseded=superseded)
    is_new = look(path)  # again, under the lock: another start may have written since
    yield lock
  except BaseException as error:
    if lock is not None:
      refused = is_new and not isinstance(error, Stopped) and lock.successor() is None
      if refused := refused and is_untrained(path):
        clear(path)
      lock.close(erase=refused)
    with contextlib.suppress(OSError):  # it is not empty
      if is_ours:
        path.rmdir()
    if isinstance(error, OSError) and (place := _unwritable(error, path)):
      raise UserError(
        f"{place} could not be written ({error.strerror or error}): {mend(error)}; the same "
        "command resumes from the newest checkpoint."
      ) from error
    raise
  lock.close()


def _unwritable(error: OSError, folder: pathlib.Path) -> pathlib.Path | None:
  """What of a run's folder an error of the disk kept from being written; None: nothing of it."""
  full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
  place = pathlib.Path(error.filename if isinstance(error.filename, str) else folder)
  in_folder = error.filename and place.absolute().is_relative_to(folder.absolute())
  return place if full or in_folder else None


def look(path: pathlib.Path) -> bool:
  """Whether `path` is free for a new run: missing, or empty but for traces; False if it has a run.

  Raises:
    UserError: it holds foreign files, or a file or a link where a run has a folder, or the reverse.
  """
  try:
    names = sorted(os.listdir(path))
  except FileNotFoundError:
    return True
  except (OSError, ValueError) as error:
    raise _unusable(path, error) from error
  foreign = [name for name in names if not _is_trace(path / name)]
  if CONFIG not in names and foreign:
    shown = ", ".join(foreign[:_SHOWN]) + (", ..." if len(foreign) > _SHOWN else "")
    raise UserError(
      f"{path} is not empty and holds no run, since {CONFIG} is missing ({shown}): choose another "
      "--workdir; nothing was written."
    )
  for place in map(path.joinpath, names):
    kind = "folder" if place.name in _FOLDERS or _RUN.fullmatch(place.name) else "file"
    # What a run writes and removes behind a link would lie elsewhere.
    fits = place.is_dir() and not place.is_symlink() if kind == "folder" else place.is_file()
    if not fits and (kind == "folder" or place.name in _FILES):
      link = " but a link" if place.is_symlink() else ""
      raise UserError(
        f"{place} is no {kind}{link}, and a run writes a {kind} of that name: move it away, or "
        "choose another --workdir."
      )
  if CONFIG not in names:
    return True
  stored.load(path / CONFIG)
  for folder in _subfolders(path):
    look(folder)
  return False


def make(path: pathlib.Path) -> None:
  """Creates a folder and its parents if they are missing, and makes sure that it can be written.

  Raises:
    UserError: it cannot be created or written.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
  except (OSError, ValueError) as error:
    raise _unusable(path, error) from error


def check_output(path: pathlib.Path, shown: str = "") -> None:
  """Makes sure that a command can write a file, and that it replaces none of a run's own.

  A message calls it `shown`; '': by its path.

  Raises:
    UserError: it is a folder, its own folder is missing or not writable, its name is too long, or
      only a run writes there.
  """
  shown = shown or str(path)
  if os.path.isdir(path):
    raise UserError(f"{shown} is a folder: name a file in it.")
  try:
    with contextlib.suppress(FileNotFoundError):
      os.lstat(path)  # raises on a name of 256 bytes
    with tempfile.TemporaryFile(dir=path.parent):
      pass
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise UserError(
      f"{shown} cannot be written ({reason}): name one that you can write."
    ) from error
  real = pathlib.Path(os.path.realpath(path.parent), path.name)
  for inner in (real, *real.parents):
    if inner.name in (*_FILES, *_FOLDERS, "launch") and os.path.exists(inner.parent / CONFIG):
      raise UserError(
        f"{shown} is, or lies in, {inner.name} of the run in {inner.parent}, which only the run "
        "writes: name a file elsewhere."
      )


def _unusable(path: pathlib.Path, error: Exception) -> UserError:
  reason = getattr(error, "strerror", None) or error
  return UserError(
    f"workdir {path} cannot be created or written ({reason}): choose another --workdir"
  )


def _local(workdir: str | os.PathLike[str]) -> pathlib.Path:
  if "://" in str(workdir):
    raise UserError(f"workdir {workdir} is no local folder: mount the bucket and name the folder")
  path = pathlib.Path(workdir)
  try:
    os.fspath(path.absolute()).encode()  # Orbax and TensorBoard take names in UTF-8 alone
  except (OSError, ValueError) as error:  # OSError: the current folder was removed
    raise _unusable(path, error) from error
  return path


def _is_trace(path: pathlib.Path) -> bool:
  """Whether a file or folder does not count: a start's trace, a temporary file, an empty folder."""
  name = path.name
  if name in _FOLDERS:  # perhaps the mount point of a disk
    with contextlib.suppress(OSError):
      return not os.listdir(path)
  return name in _TRACES or name.startswith(TEMPORARY)


def _subfolders(path: pathlib.Path) -> list[pathlib.Path]:
  """The folders of the single runs of a config with several runs."""
  return sorted(each for each in path.glob("run_*") if _RUN.fullmatch(each.name) and each.is_dir())
