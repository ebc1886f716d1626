"""Listings of folders of images: the files of each class, and the files that are left out."""

import collections
import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator

from jaxspeed.data.formats.class_names import distinct
from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.errors import UserError, plural, printable, some

EVAL_FOLDERS = ("val", "validation", "test")
# The most endings of names in the note about files left out.
_ENDINGS = 5


@dataclasses.dataclass(frozen=True)
class Folder:
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


def has_splits(root: pathlib.Path) -> bool:
  """Return whether a folder has splits; folders of images named `train` or `test` are classes."""
  found = [each for each in ("train", *EVAL_FOLDERS) if (root / each).is_dir()]
  if not found or set(list_folder(root).folders) <= set(found):
    return bool(found)
  return any(list_folder(root / each).folders for each in found)


def list_folders(
  root: pathlib.Path, others: collections.Counter[str] | None = None, *, tune: bool = False
) -> dict[str, dict[str, list[str]]]:
  """Return the sorted names of a data set's images, by split ('train', then the other) and class.

  Args:
    root: a folder with train/CLASS/NAME and val/, validation/ or test/CLASS/NAME.
    others: receives the number of files that are not images, by name ending.
    tune: whether to list 'train' only.

  Raises:
    UserError: a split is missing, has no class or an empty one, or train/ lacks a class.
    OSError: a folder cannot be read.
  """
  others = collections.Counter() if others is None else others
  eval_name = next((each for each in EVAL_FOLDERS if (root / each).is_dir()), None)
  if not (root / "train").is_dir():
    raise UserError(f"{root} has {eval_name}/ but no train/ to train on.")
  if tune:
    return {"train": list_classes(root / "train", others)}
  if eval_name is None:
    raise UserError(
      f"{root} has train/ but none of val/, validation/ and test/ to evaluate on: complete it, or "
      "set --config.tune_on=validation, which holds config.data.hold_out of train/ out."
    )
  files = {split: list_classes(root / split, others) for split in ("train", eval_name)}
  distinct(sorted({*files["train"], *files[eval_name]}), str(root))
  if unknown := [name for name in files[eval_name] if name not in files["train"]]:
    named = some([f"{name}: {len(files[eval_name][name]):,}" for name in unknown], 3)
    raise UserError(
      f"{root / eval_name} has images of classes that train/ lacks ({named}): "
      "both name their classes alike."
    )
  return files


def list_classes(folder: pathlib.Path, others: collections.Counter[str]) -> dict[str, list[str]]:
  """Return each class's image names, all sorted; count other files as `list_folders` does.

  Raises:
    UserError: there is no class, or an empty one, or two that look alike.
    OSError: a folder cannot be read.
  """
  outer = list_folder(folder)
  distinct(outer.folders, str(folder))
  if not outer.folders:
    loose = "images but no class folders" if outer.images else "no class folders"
    raise UserError(f"{folder} holds {loose}: put the images of each class in a folder of its own.")
  classes = {}
  for name in outer.folders:
    inner = list_folder(folder / name)
    if not inner.images:
      held = (
        f"only sub-folders ({inner.folders[0]}, ...), which are not searched: move its images up"
        if inner.folders
        else f"no image ({', '.join(SUFFIXES)}): remove it, or complete the data set"
      )
      raise UserError(f"the class folder {folder / name} holds {held}.")
    classes[name] = inner.images
    others.update(inner.others)
  return classes


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
  """Return a note about files that are left out, by name ending, if there are any."""
  if not others:
    return ()
  named = [f"{printable(ending)} ({count:,})" for ending, count in sorted(others.items())]
  files = f"{plural(others.total(), 'file')} {where}{'is' if others.total() == 1 else 'are'}"
  return (f"{files} left out, with other endings than images: {some(named, _ENDINGS)}",)
