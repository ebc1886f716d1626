"""A CSV file that lists images and their labels: `file,label`, and perhaps `split`.

    listed = read_csv(pathlib.Path("photos.csv"))
    listed.names, listed.labels, listed.class_names

The first line names the columns, in any order and among others, which are not read. Keras's names
(filename, class) and Hugging Face's (file_name) serve too. File names are relative to the CSV's
folder, or absolute. Commas, semicolons or tabs separate columns. Each row is a line.
"""

import collections
import csv
import itertools
import os
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxspeed.data.formats.class_names import distinct, read_lines
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.table import Listed, Names, path_digests
from jaxspeed.errors import UserError, plural, printable, some

# The columns' names; the first of each is the one in the documents.
_COLUMNS = {
  "file": ("file", "filename", "file_name", "path", "image"),
  "label": ("label", "class"),
  "split": ("split",),
}
_ADVICE = {
  "file": "name its image",
  "label": "give each image a label, or leave it out",
  "split": "write train or val, or leave the column out",
}
_SPLITS = {"training": "train", "valid": "val"} | {each: each for each in ("train", *EVAL_FOLDERS)}
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SHOWN = 3  # names in a message
_LONGEST = 100  # characters of each


class _Row(NamedTuple):
  """A row, in the order in which rows are sorted, with the number of its line."""

  file: str
  label: str
  split: str
  line: int


def is_csv(path: pathlib.Path) -> bool:
  """Return whether a path is that of a CSV file, by its name; it may be missing."""
  return path.suffix.lower() == ".csv" and not path.is_dir()


def read_csv(path: pathlib.Path, *, tune: bool = False) -> Listed:
  """Read a CSV file; whether its images exist is for `require_files`.

  Names are normalised, and sorted in each split. Classes are sorted, as numbers if all are.

  Args:
    path: the file.
    tune: whether to return the split "train" only.

  Raises:
    UserError: the file is no CSV in UTF-8 with the columns file and label, a row is incomplete, a
      file is listed twice, or a split is missing.
  """
  rows, others, has_splits = _rows(path)
  rows.sort()
  for one, other in itertools.pairwise(rows):
    if one.file == other.file:
      first, second = sorted([one.line, other.line])
      raise UserError(
        f"{path}, lines {first} and {second}, both name {_quoted(one.file)}: list each image once, "
        "with one label and in one split."
      )
  notes = []
  if others:
    notes.append(f"columns of {printable(path.name)} that are not read: {_some(others)}")
  train, source = len(rows), printable(path.name)
  if has_splits:
    rows, train, eval_name, unread = _by_split(path, rows, tune)
    source += ": split train" if tune else f": splits train and {eval_name}"
    notes += unread
  classes = _classes(path, rows[:train])
  numbers = {name: number for number, name in enumerate(classes)}
  if unknown := [row for row in rows if row.label not in numbers]:
    raise UserError(
      f"{path}, line {unknown[0].line}: the label {_quoted(unknown[0].label)} is in no row of "
      f"the split train ({len(unknown):,} in all): a model is trained on the classes it is "
      "evaluated on."
    )
  names = Names.of(row.file for row in rows)
  return Listed(
    place=path,
    root=str(path.parent),
    names=names,
    train=train if has_splits else None,
    class_names=classes,
    source=source,
    notes=tuple(notes),
    labels=np.array([numbers[row.label] for row in rows], np.int32),
    digest=path_digests(names),
  )


def read_names(path: pathlib.Path) -> list[str]:
  """The names in the column of files, as they are and in their order; no other column is needed.

  Raises:
    UserError: the file is no CSV in UTF-8 with a column file, or a row has no name.
    OSError: it cannot be read.
  """
  return [row.file for row in _rows(path, ("file",), normal=False)[0]]


def require_files(path: pathlib.Path, names: Sequence[str]) -> None:
  """Check that the files of a CSV are there, with one listing of each of their folders.

  Raises:
    UserError: files are missing; it has their number and the first names.
    OSError: a folder cannot be read.
  """
  folders: dict[str, list[str]] = collections.defaultdict(list)
  for name in names:
    folders[os.path.dirname(name)].append(name)
  missing: list[str] = []
  for folder, files in folders.items():
    try:
      there = set(os.listdir(path.parent / folder))
    except (FileNotFoundError, NotADirectoryError):
      there = set()
    # A second look: some file systems ignore case, or compose letters in another way.
    missing += [
      name
      for name in files
      if os.path.basename(name) not in there and not os.path.lexists(path.parent / name)
    ]
  if missing:
    raise UserError(
      f"{path} lists {plural(len(names), 'file')}, of which {len(missing):,} cannot be found: "
      f"{_some(sorted(missing))}; names have their endings and are relative to {path.parent}."
    )


def _rows(
  path: pathlib.Path, columns: Sequence[str] = tuple(_COLUMNS), *, normal: bool = True
) -> tuple[list[_Row], list[str], bool]:
  """Return the rows, the names of columns that are not read, and whether there are splits.

  Args:
    path: the file.
    columns: the columns to read; all but "split" must be there.
    normal: whether "./a.jpg" becomes "a.jpg".
  """
  lines = read_lines(path)
  first = next((number for number, line in enumerate(lines) if line.strip()), None)
  if first is None:
    raise UserError(f"{path} is empty: begin it with the line file,label and list an image a line.")
  delimiter, header, places = _header(path, lines[first], columns)
  reader = csv.reader(lines[first + 1 :], delimiter=delimiter, strict=True, skipinitialspace=True)
  rows: list[_Row] = []
  splits, before = {"": "train"}, 0
  try:
    for fields in reader:
      line = first + 1 + reader.line_num
      if reader.line_num > before + 1:
        raise csv.Error(f"by its double quotes, the row ends in line {line}")
      before = reader.line_num
      values = [fields[i].strip() if i < len(fields) else "" for i in places.values()]
      if not any(values) and not any(field.strip() for field in fields):
        continue  # an empty line, or one of separators, as spreadsheets write them
      if len(fields) != len(header):
        raise UserError(
          f"{path}, line {line}: the header names {len(header)} columns, and this line has "
          f"{len(fields)}: write one line for each image, with {_SEPARATORS[delimiter]} between "
          "columns, and a value that holds one in double quotes."
        )
      if not all(values):
        key = list(places)[values.index("")]
        raise UserError(f"{path}, line {line}, has no {key}: {_ADVICE[key]}.")
      file, label, split = (*values, "", "")[:3]
      if split not in splits:
        if split.lower() not in _SPLITS:
          raise UserError(
            f"{path}, line {line}: the split is {_quoted(split)}: write train, val or test."
          )
        splits[split] = _SPLITS[split.lower()]
      if normal and ("/." in file or "//" in file or file[0] == "."):
        file = os.path.normpath(file)
      rows.append(_Row(file, label, splits[split], line))
  except csv.Error as error:
    raise UserError(
      f"{path}, line {first + 2 + before}, cannot be read as CSV ({error}): close its double "
      "quotes, and write two of them for one inside a value."
    ) from None
  if not rows:
    raise UserError(f"{path} has a header line and no images: add a line for each image.")
  others = [name.strip() for i, name in enumerate(header) if i not in places.values()]
  return rows, [name for name in others if name], "split" in places


def _header(
  path: pathlib.Path, line: str, columns: Sequence[str]
) -> tuple[str, list[str], dict[str, int]]:
  """Return the separator, the names in the header, and the place of each column that is read."""
  needed = [key for key in columns if key != "split"]
  for delimiter in _SEPARATORS:
    header = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    names = [each.strip().lower() for each in header]
    # The first spelling that is there; a note names the columns that are not read.
    spelt = {key: [each for each in _COLUMNS[key] if each in names] for key in columns}
    places = {key: names.index(found[0]) for key, found in spelt.items() if found}
    if all(key in places for key in needed):
      return delimiter, header, places
  example = "file,label or file,label,split" if "label" in needed else "file or file,label"
  raise UserError(
    f"{path} has no column {' or no column '.join(needed)}: its first line must name the columns, "
    f"with commas between them, as in {example}, and it is {_quoted(line.strip())}."
  )


def _by_split(
  path: pathlib.Path, rows: Sequence[_Row], tune: bool
) -> tuple[list[_Row], int, str, list[str]]:
  """Return the rows of "train" and of the other split, the former's number, and the latter's name.

  The last value is notes.
  """
  grouped: dict[str, list[_Row]] = collections.defaultdict(list)
  for row in rows:
    grouped[row.split].append(row)
  present = [each for each in EVAL_FOLDERS if each in grouped]
  if "train" not in grouped:
    raise UserError(
      f"{path} has no rows of the split train: complete it; or, to evaluate on all its images, "
      "remove the column split and set --config.data.hold_out=1."
    )
  if tune:
    return grouped["train"], len(grouped["train"]), "", []
  if not present:
    raise UserError(
      f"{path} has no rows of the split val or test to evaluate on: complete it; remove the column "
      "split, to hold out a share (config.data.hold_out); or set --config.tune_on=validation."
    )
  chosen, *unread = present
  notes = [
    f"{len(grouped[each]):,} rows of the split {each} are not read: {chosen} is evaluated"
    for each in unread
  ]
  return grouped["train"] + grouped[chosen], len(grouped["train"]), chosen, notes


def _classes(path: pathlib.Path, rows: Sequence[_Row]) -> tuple[str, ...]:
  """Return the names of the classes, sorted, as numbers if all are integers."""
  names = {row.label for row in rows}
  if not all(_INTEGER.fullmatch(name) for name in names):
    return distinct(sorted(names), str(path))
  if len({*map(int, names)}) < len(names):
    raise UserError(
      f"{path} has labels that are one number, such as 1 and 01: write it in one way."
    )
  return tuple(sorted(names, key=int))


def _quoted(text: str) -> str:
  return f"'{_short(text)}'"


def _some(names: Sequence[str]) -> str:
  return some([*map(_short, names)], _SHOWN)


def _short(text: str) -> str:
  return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
