"""A run's folder: its ownership, its files, and the clean-up after a refused start."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator

from jaxspeed.cluster.folder_lock import (
  LOCK,
  OWNER,
  OWNER_LOCK,
  FolderLock,
  end_superseded,
)
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.run.profile import FOLDER as PROFILE

CONFIG = "config.json"
_FILES = (
  CONFIG,
  "metrics.jsonl",
  "classes.json",
  "result.json",
  "confusion.npy",  # of an earlier version
  Predictions.FILE,
  Thumbnails.FILE,
  "broken_images.tsv",
  OWNER,
  OWNER_LOCK,
  LOCK,
)
_FOLDERS = ("checkpoints", "tensorboard", "loggers", PROFILE)
_EARLY = (CONFIG, "classes.json", OWNER, OWNER_LOCK, LOCK)
# Left by a start that was killed before it wrote its config; jaxspeed.launch's record of a job;
# lost+found is on a new disk.
_TRACES = (OWNER, OWNER_LOCK, LOCK, "launch", "lost+found")
# Folders of images, with a subfolder for each class.
_SPLITS = ("train", "val", "validation", "test")
_RUN = re.compile("run_[0-9]+")  # the folder of one of several seeds
_SHOWN = 3  # foreign files named in a message


def clear(path: pathlib.Path) -> None:
  """Removes what an untrained run has written."""
  for folder in (*_subfolders(path), path):
    for name in ("tensorboard", "loggers"):
      shutil.rmtree(folder / name, ignore_errors=True)
    for name in (CONFIG, "classes.json", "metrics.jsonl"):
      with contextlib.suppress(OSError):
        (folder / name).unlink()
    if folder != path:
      _remove_empty([folder])


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
  data_path: str = "",
  superseded: Callable[[str], None] = end_superseded,
) -> Iterator[FolderLock]:
  """Creates a run's folder if it is missing, and yields its lock, owned by this start.

  If the block fails before a new run has anything to lose, what was created is removed.

  Args:
    workdir: the folder.
    data_path: the path of the run's data; '': none.
    superseded: as in `FolderLock`.

  Raises:
    UserError: the folder is foreign, another job's, among the data (`data_path`), or not writable.
  """
  path = _local(workdir)
  _refuse_among_data(path, data_path)
  look(path)
  made = make(path)
  try:
    lock = FolderLock(path, superseded=superseded)
  except BaseException:
    _remove_empty(made)
    raise
  is_new = False
  try:
    is_new = look(path)  # again, under the lock: another start may have written since
    yield lock
  except BaseException as error:
    refused = is_new and not isinstance(error, Stopped) and lock.is_held() and is_untrained(path)
    if refused:
      clear(path)
    lock.close(erase=refused)
    _remove_empty(made)
    raise
  lock.close()


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
  _refuse_foreign(path, names)
  if CONFIG not in names:
    return True
  stored.load(path / CONFIG)
  for folder in _subfolders(path):
    look(folder)
  return False


def _refuse_foreign(path: pathlib.Path, names: Collection[str]) -> None:
  """Refuses a folder in which `names` are not those of a run; errors as in `look`."""
  if CONFIG not in names:
    foreign = [name for name in names if not _is_trace(path / name)]
    if foreign:
      shown = ", ".join(foreign[:_SHOWN]) + (", ..." if len(foreign) > _SHOWN else "")
      raise UserError(
        f"{path} is not empty and holds no run, since {CONFIG} is missing ({shown}): choose "
        "another --workdir; nothing was written."
      )
  for name in names:
    if (name in _FOLDERS or _RUN.fullmatch(name)) and (path / name).is_symlink():
      raise UserError(
        f"{path / name} is a link, and what a run writes and removes there would lie elsewhere: "
        "put a folder in its place, or choose another --workdir."
      )
    if (name in _FILES and not (path / name).is_file()) or (
      name in _FOLDERS and not (path / name).is_dir()
    ):
      kind = "file" if name in _FILES else "folder"
      raise UserError(
        f"{path / name} is no {kind}, but a run writes a {kind} of that name: move it away, or "
        "choose another --workdir."
      )


def make(path: pathlib.Path) -> list[pathlib.Path]:
  """Creates a writable folder and its parents; returns those created, the outermost first.

  Raises:
    UserError: it cannot be created or written; nothing is left of it.
  """
  missing: list[pathlib.Path] = []
  for each in (path, *path.parents):
    if os.path.lexists(each):
      break
    missing.insert(0, each)
  made = []
  try:
    for each in missing:
      # Another start may have created it first.
      with contextlib.suppress(FileExistsError):
        each.mkdir()
        made.append(each)
    with tempfile.TemporaryFile(dir=path):
      pass
  except (OSError, ValueError) as error:
    _remove_empty(made)
    raise _unusable(path, error) from error
  return made


def check_output(path: pathlib.Path, shown: str = "") -> None:
  """Makes sure that a command can write a file, and that it replaces none of a run's own.

  Args:
    path: the file.
    shown: what a message calls it; '': its path.

  Raises:
    UserError: it is a folder, its own folder is missing or not writable, its name is too long, a
      run has a file of that name, or it lies in a folder that a run writes.
  """
  shown, folder = shown or str(path), path.parent
  if os.path.isdir(path):
    raise UserError(f"{shown} is a folder: name a file in it.")
  if not os.path.isdir(folder):
    raise UserError(f"{shown} cannot be written, as there is no folder {folder}: make it first.")
  if not os.access(folder, os.W_OK):
    raise UserError(f"{shown} cannot be written: name a file in a folder that you can write to.")
  try:
    os.lstat(path)
  except FileNotFoundError:
    pass
  except (OSError, ValueError) as error:  # such as a name of 256 bytes
    reason = getattr(error, "strerror", None) or error
    raise UserError(f"{shown} cannot be written ({reason}): name another file.") from None
  if path.name in (*_FILES, *_FOLDERS) and os.path.exists(folder / CONFIG):
    raise UserError(f"{shown} has the name of a file of the run in {folder}: name another file.")
  for inner in (real := pathlib.Path(os.path.realpath(folder)), *real.parents):
    if inner.name in (*_FOLDERS, "launch") and os.path.exists(inner.parent / CONFIG):
      raise UserError(
        f"{shown} lies in {inner.name}/ of the run in {inner.parent}, which only the run writes: "
        "name a file elsewhere."
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
    os.fspath(path.absolute()).encode()
  except OSError as error:  # the folder in which the command runs was removed
    raise _unusable(path, error) from error
  except UnicodeEncodeError:
    # Orbax and TensorBoard take no other names.
    raise UserError(
      f"workdir {ascii(os.fspath(path))} has a name that is not UTF-8: choose another --workdir"
    ) from None
  return path


def _refuse_among_data(path: pathlib.Path, data_path: str) -> None:
  """Refuses a folder among the data, where it could be taken for a class of images."""
  if not data_path:
    return
  try:
    folder, data = path.resolve(), pathlib.Path(data_path).resolve()
  except (OSError, RuntimeError, ValueError):  # a loop of symbolic links
    return
  if folder == data or any(folder.is_relative_to(data / split) for split in _SPLITS):
    raise UserError(
      f"workdir {path} lies where the data is (config.data.path={data_path}): choose another "
      "--workdir."
    )


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


def _remove_empty(made: list[pathlib.Path]) -> None:
  for each in reversed(made):
    with contextlib.suppress(OSError):
      each.rmdir()
