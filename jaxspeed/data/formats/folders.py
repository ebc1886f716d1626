"""Listings of folders of images: splits, the files of each class, and the files left out."""

import collections
import contextlib
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from jaxspeed.data.formats.class_names import distinct
from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.errors import UserError, plural, printable, some

# The splits of every kind of data set; the first after "train" that is there is evaluated.
SPLITS = ("train", "val", "validation", "test")
# The most endings of names in the note about files left out.
_ENDINGS = 5


class Folder(NamedTuple):
  """A folder's content: sorted names of sub-folders and images, and counts of other endings."""

  folders: list[str]
  images: list[str]
  others: collections.Counter[str]


@contextlib.contextmanager
def readable(what: object, data: str = "data set is") -> Iterator[None]:
  """Turn an error of the file system, perhaps without a file's name, into a sentence."""
  try:
    yield
  except OSError as error:
    raise UserError(
      f"{error.filename or what} cannot be read ({error.strerror or error}): the {data} not "
      "complete, or not readable for you."
    ) from error


# Folders of thumbnails, archives and trash that systems leave among the user's own.
_OF_SYSTEMS = ("@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "__MACOSX")


def splits_in(root: pathlib.Path) -> list[str]:
  """Return the splits of a folder; folders of images named `train` or `test` are classes."""
  found = [each for each in SPLITS if (root / each).is_dir()]
  if not found or set(list_folder(root).folders) <= set(found):
    return found
  return found if any(list_folder(root / each).folders for each in found) else []


def choose_splits(
  found: Collection[str], where: object, *, evaluation: bool | None = True
) -> tuple[list[str], str]:
  """Return the split to train on and the one to evaluate on, and words for them.

  Args:
    found: the splits that there are.
    where: the data set, for messages.
    evaluation: whether the latter is returned; None: if there is one.

  Raises:
    UserError: one of them is missing.
  """
  there = [each for each in SPLITS if each in found]
  chosen = there[: 1 if evaluation is False else 2]
  if chosen[:1] != ["train"]:
    raise UserError(
      f"{where} has no split train to train on: complete it; or, to evaluate on all its images, "
      "give them no splits and set --config.data.hold_out=1."
    )
  if evaluation and len(chosen) == 1:
    raise UserError(
      f"{where} has the split train but none of val, validation and test to evaluate on: complete "
      "it, or set --config.tune_on=validation, which holds config.data.hold_out of train out."
    )
  words = f"split{'s' * (len(chosen) > 1)} {' and '.join(chosen)}"
  if there[2:] and evaluation is not False:
    words += f" ({' and '.join(there[2:])} not read)"
  return chosen, words


def list_classes(
  folder: pathlib.Path, others: collections.Counter[str]
) -> Iterator[tuple[str, list[str]]]:
  """Yield each class with its images' names, all sorted; count in `others` what is left out.

  Raises:
    UserError: there is no class, or an empty one, or two that look alike.
    OSError: a folder cannot be read.
  """
  outer = list_folder(folder)
  distinct(outer.folders, str(folder))
  if not outer.folders:
    loose = "images but no class folders" if outer.images else "no class folders"
    raise UserError(f"{folder} holds {loose}: put the images of each class in a folder of its own.")
  others["images beside the class folders"] += len(outer.images)
  for name in outer.folders:
    inner = list_folder(folder / name)
    if not inner.images:
      held = (
        f"only sub-folders ({inner.folders[0]}, ...), which are not searched: move its images up"
        if inner.folders
        else f"no image ({', '.join(SUFFIXES)}): remove it, or complete the data set"
      )
      raise UserError(f"the class folder {folder / name} holds {held}.")
    others.update(inner.others)
    others["sub-folders, which are not searched"] += len(inner.folders)
    yield name, inner.images


def list_folder(folder: pathlib.Path) -> Folder:
  """List sub-folders and images, except hidden ones.

  Raises:
    OSError: the folder cannot be read.
  """
  found = Folder([], [], collections.Counter())
  with os.scandir(folder) as entries:
    for entry in entries:
      if entry.name.startswith(".") or entry.name in _OF_SYSTEMS:
        continue
      # scandir gives the type with the name: only links cost a stat, and may lead in a circle.
      if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
        found.folders.append(entry.name)
      elif entry.name.lower().endswith(SUFFIXES):
        found.images.append(entry.name)
      else:
        found.others[os.path.splitext(entry.name)[1].lower() or "no ending"] += 1
  found.folders.sort()
  found.images.sort()
  return found


def left_out(
  others: collections.Counter[str], where: str = "in the class folders "
) -> tuple[str, ...]:
  """Return a note about files and folders that are left out, if there are any."""
  if not (others := +others):  # without counts of 0
    return ()
  # Endings come last: the others may hold many images.
  order = sorted(others, key=lambda kind: (kind.startswith("."), kind))
  named = [f"{printable(kind)} ({others[kind]:,})" for kind in order]
  files = f"{plural(others.total(), 'file')} {where}{'is' if others.total() == 1 else 'are'}"
  return (f"{files} left out: {some(named, _ENDINGS)}",)
