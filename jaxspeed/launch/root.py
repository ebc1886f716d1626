"""Where runs lie, and whether their executors can be used from here."""

import os
import pathlib
from collections.abc import Sequence

from jaxspeed.config import schema
from jaxspeed.errors import UserError
from jaxspeed.files import expanded
from jaxspeed.launch.executor import Executor
from jaxspeed.launch.local import Local


def absolute(folder: str | os.PathLike[str]) -> pathlib.Path:
  """A folder as an absolute path, with ~ replaced.

  Raises:
    UserError: it is no path, or names no local folder.
  """
  if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
    raise UserError(f"root={folder!r}: name a folder that all machines of the jobs share.")
  if "://" in os.fspath(folder):
    raise UserError(f"root {folder} is no local folder: mount the bucket, and name the folder.")
  path = pathlib.Path(os.path.abspath(expanded(folder, "root")))
  # Scripts name it, line by line.
  if not schema.is_plain(str(path)):
    raise UserError(f"root {str(path)!r} has characters that no script can name: choose another.")
  return path


def check_executors(executors: Sequence[Executor], root: pathlib.Path) -> None:
  """Checks that executors can be used from here.

  Raises:
    UserError: one cannot be used, or `root` is not writable.
  """
  if sum(isinstance(executor, Local) for executor in executors) > 1:
    raise UserError("the jobs of one run share one Local(...), whose places they take in turn.")
  for executor in executors:
    executor.check(root)
  place = next(each for each in (root, *root.parents) if os.path.lexists(each))
  if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
    reason = f"{place} may not be written" if place.is_dir() else f"{place} is no folder"
    raise UserError(f"root {root} cannot be written ({reason}): choose another root.")
