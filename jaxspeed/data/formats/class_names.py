"""Names of classes: reading a user's list of lines, storing and checking a run's list."""

import io
import itertools
import pathlib
import unicodedata
from collections.abc import Sequence
from typing import Any

from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, open_regular, parse_json, read_bytes, write_atomically

# The file in a run's folder: a JSON list, so a name may hold any character.
STORED = "classes.json"


def read_text(path: pathlib.Path) -> str:
  """Return the content of a text file, whose lines may end with LF, CR LF or CR, with LF.

  Raises:
    UserError: it is not UTF-8, or holds a zero byte, as spreadsheets and UTF-16 do.
    OSError: it cannot be read.
  """
  with open_regular(path) as file:
    try:
      text = io.TextIOWrapper(file, "utf-8-sig").read()
    except UnicodeDecodeError:
      text = "\0"
  if "\0" in text:
    raise UserError(f"{path} is not UTF-8: save it as plain text in UTF-8, not as a spreadsheet.")
  return text


def read_class_names(path: pathlib.Path) -> tuple[str, ...]:
  """Read the names in a text file, one on each line; () where the file is missing.

  Raises:
    UserError: the file is not UTF-8; a line is empty, has a tab or occurs twice.
    OSError: it cannot be read.
  """
  try:
    lines = [line.strip(" ") for line in read_text(path).rstrip("\n ").split("\n")]
  except FileNotFoundError:
    return ()
  if wrong := [number for number, line in enumerate(lines, 1) if not line or "\t" in line]:
    raise UserError(
      f"{path}, line {wrong[0]}, is empty or has a tab: write the name of a class on each line."
    )
  return distinct(lines, str(path))


def store_class_names(folder: pathlib.Path, names: Sequence[str]) -> None:
  """Write the names of a run's classes into its folder.

  Raises:
    OSError: the file cannot be written.
  """
  write_atomically(folder / STORED, dump_json(list(names), indent=2) + "\n")


def check_class_names(folder: pathlib.Path, names: Sequence[str], *, renamed: bool = False) -> None:
  """Check that the data set has the classes that a run began with, in the same order.

  Args:
    folder: the run's folder.
    names: names of the data set's classes.
    renamed: whether numbers may stand for names, as in data sets without names.

  Raises:
    UserError: class numbers would change their meaning.
  """
  for path in (folder / STORED, *sorted(folder.glob(f"run_*/{STORED}"))):
    stored = _stored(path) or names  # what is damaged will be written again
    difference = _difference(stored, names, "the data set")
    if difference and not (renamed and _one_has_numbers(names, stored)):
      raise UserError(
        f"{path} names {difference}: undo that change of the data, or choose others or another "
        "--workdir."
      )


def check_weights_classes(
  path: str, stored: Sequence[str], data: str, names: Sequence[str]
) -> str | None:
  """Check that weights were trained on a data set's classes; None or a note if that is not known.

  Args:
    path: the file of the weights.
    stored: the class names in it; (): none. Another number than the data set's is not checked here:
      the last layer then does not fit.
    data: what a message calls the data set.
    names: names of the data set's classes.

  Raises:
    UserError: a class has another name in the data set.
  """
  difference = _difference(stored, names, data)
  if len(stored) != len(names) or not difference:
    return None
  if not _one_has_numbers(names, stored):
    raise UserError(
      f"{path} was trained with {difference}: set --config.data.path to data of the same classes "
      "in the same order."
    )
  return f"the classes of {path} and {data} are taken in the same order, as one has only numbers"


def _one_has_numbers(names: Sequence[str], others: Sequence[str]) -> bool:
  """Return whether one list holds numbers, for unnamed classes, and the other holds names."""
  numbers = list(map(str, range(len(names))))
  return numbers in (list(names), list(others)) and not set(names) & set(others)


def _difference(stored: Sequence[str], names: Sequence[str], data: str) -> str:
  """Return the first class that differs, as each list calls it; '' if none does."""
  for pair in itertools.zip_longest(stored, names):
    if pair[0] != pair[1]:
      theirs, ours = ("no class" if a is None else f"the class {printable(a)}" for a in pair)
      return f"{theirs}, and {data} has {ours} in its place"
  return ""


def stored_class_names(folder: pathlib.Path, classes: int) -> tuple[str, ...]:
  """Return the names of a run's classes.

  Raises:
    UserError: the file is missing, damaged, or does not name `classes` classes, as the model has.
  """
  names = _stored(folder / STORED)
  if names is None or len(names) != classes:
    raise UserError(
      f"{folder / STORED} is not there, or no list in JSON of the names of the run's {classes} "
      "classes: restore the run's own file, or write it."
    )
  return tuple(names)


def _stored(path: pathlib.Path) -> list[str] | None:
  """Return the names in a run's file; None if it is missing or damaged."""
  try:
    # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
    names: Any = parse_json(read_bytes(path))
  except (OSError, ValueError):
    return None
  return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def check_labels(smallest: int, largest: int, names: Sequence[str], where: str) -> None:
  """Check that labels count classes from 0, and each has a name if classes have names.

  Raises:
    UserError: they do not.
  """
  if smallest < 0:
    raise UserError(f"a label of {where} is {smallest}: labels count from 0, one for each image.")
  if names and largest >= len(names):
    raise UserError(
      f"labels of {where} go up to {largest}, but it has names for only {len(names)} classes: "
      "correct its labels or its list of class names."
    )
  distinct(names, where)


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
  """Return the names as a tuple, after a check that all are different and look different.

  Raises:
    UserError: two classes have one name, or names that only Unicode tells apart.
  """
  first: dict[str, int] = {}
  for number, name in enumerate(names):
    before = first.setdefault(unicodedata.normalize("NFC", name), number)
    if before != number:
      raise UserError(
        f"{where} has two classes that look alike, {before}: {ascii(names[before]):.100} and "
        f"{number}: {ascii(name):.100}: give each a name of its own, or make them one class."
      )
  return tuple(names)
