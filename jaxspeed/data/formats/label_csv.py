"""A CSV file that lists images and their labels: `file,label`, and perhaps `split`.

    listed = read_csv(pathlib.Path("photos.csv"))
    listed.names, listed.labels, listed.class_names

The first line names the columns, in any order and among others, which are not read. Keras's names
(filename, class) and Hugging Face's (file_name) serve too. File names are relative to the CSV's
folder, or absolute. Commas, semicolons or tabs separate columns.
"""

import csv
import itertools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from jaxspeed.data.formats.class_names import distinct, read_text
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.data.table import Listed, Names, path_digests
from jaxspeed.errors import UserError, printable, some

# The columns' names; the first of each is the one in the documents.
_COLUMNS = {
  "file": ("file", "filename", "file_name", "path", "image"),
  "label": ("label", "class"),
  "split": ("split",),
}
_SPLITS = {"training": "train", "valid": "val"} | {each: each for each in ("train", *EVAL_FOLDERS)}
_SEPARATORS = ",;\t"
_SHOWN, _LONGEST = 3, 100  # names in a message, and characters of each


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
  """Read a CSV file; whether its images exist is not looked at.

  Names are normalised, and sorted in each split. Classes are sorted, as numbers if all are.

  Args:
    path: the file.
    tune: whether to return the split "train" only.

  Raises:
    UserError: the file is no CSV in UTF-8 with the columns file and label, a row is incomplete, a
      file is listed twice, or a split is missing.
  """
  rows, others, has_splits = _read(path, tuple(_COLUMNS), os.path.normpath)
  rows.sort()
  for one, other in itertools.pairwise(rows):
    if one.file == other.file:
      first, second = sorted([one.line, other.line])
      raise UserError(
        f"{path}, lines {first} and {second}, both name {_quoted(one.file)}: list each image once, "
        "with one label and in one split."
      )
  source, notes = printable(path.name), tuple[str, ...]()
  if others:
    notes = (f"columns of {source} that are not read: {some(list(map(_short, others)), _SHOWN)}",)
  train = None
  if has_splits:
    splits = _by_split(path, rows, tune)
    source += f": split{'s' * (len(splits) > 1)} {' and '.join(splits)}"
    rows, train = list(itertools.chain(*splits.values())), len(splits["train"])
  classes = _classes(path, rows)
  numbers = {name: number for number, name in enumerate(classes)}
  names = Names.of(row.file for row in rows)
  return Listed(
    place=path,
    root=str(path.parent),
    names=names,
    train=train,
    class_names=classes,
    source=source,
    notes=notes,
    labels=np.array([numbers[row.label] for row in rows], np.int32),
    digest=path_digests(names),
  )


def read_names(path: pathlib.Path) -> list[str]:
  """The names in the column of files, as they are and in their order; no other column is needed.

  Raises:
    UserError: the file is no CSV in UTF-8 with a column file, or a row has no name.
    OSError: it cannot be read.
  """
  return [row.file for row in _read(path, ("file",), str)[0]]


def _read(
  path: pathlib.Path, columns: Sequence[str], normal: Callable[[str], str]
) -> tuple[list[_Row], list[str], bool]:
  """Return the rows, the names of columns that are not read, and whether there are splits.

  Args:
    path: the file.
    columns: the columns to read; all but "split" must be there.
    normal: what makes the file of a row of its name in the CSV.
  """
  lines = read_text(path).split("\n")
  first = next((number for number, line in enumerate(lines) if line.strip()), 0)
  separator, header, places = _header(path, lines[first], columns)
  rows, line = list[_Row](), first + 1
  reader = csv.reader(lines[line:], delimiter=separator, strict=True, skipinitialspace=True)
  try:
    for fields in reader:
      begun, line = line + 1, first + 1 + reader.line_num
      if begun < line:  # a forgotten double quote would swallow images in silence
        raise UserError(
          f"{path}, line {begun}: by its double quotes, the row ends in line {line}: close "
          "them, and write two of them for one inside a value."
        )
      if not any(map(str.strip, fields)):
        continue  # an empty line, or one of separators, as spreadsheets write them
      if len(fields) != len(header):
        raise UserError(
          f"{path}, line {line}: the header names {len(header)} columns, and this line has "
          f"{len(fields)}: write {separator!r} between columns, and values that hold it in double "
          "quotes."
        )
      values = [fields[place].strip() for place in places.values()]
      if not all(values):
        key = list(places)[values.index("")]
        raise UserError(f"{path}, line {line}, has no {key}: write it, or leave the line out.")
      file, label, split = (*values, *("", "train")[len(values) - 1 :])
      if (known := _SPLITS.get(split.lower())) is None:
        raise UserError(
          f"{path}, line {line}: the split is {_quoted(split)}: write train, val or test."
        )
      rows.append(_Row(normal(file), label, known, line))
  except csv.Error as error:
    raise UserError(
      f"{path}, line {line + 1}, cannot be read as CSV ({error}): close its double quotes, and "
      "write two of them for one inside a value."
    ) from None
  if not rows:
    raise UserError(f"{path} has no images: write a header line, and add a line for each image.")
  others = [name for i, name in enumerate(header) if name and i not in places.values()]
  return rows, others, "split" in places


def _header(
  path: pathlib.Path, line: str, columns: Sequence[str]
) -> tuple[str, list[str], dict[str, int]]:
  """Return the separator, the names in the header, and the place of each column that is read."""
  needed = [key for key in columns if key != "split"]
  for separator in _SEPARATORS:
    header = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    lower = [name.lower() for name in header]
    # Of several spellings the first that is there.
    spelt = {key: [name for name in _COLUMNS[key] if name in lower] for key in columns}
    places = {key: lower.index(found[0]) for key, found in spelt.items() if found}
    if places.keys() >= set(needed):
      return separator, header, places
  raise UserError(
    f"{path} has no column {' or no column '.join(needed)}: its first line must name the columns, "
    f"with commas between them, as in {','.join(columns)}, and it is {_quoted(line.strip())}."
  )


def _by_split(path: pathlib.Path, rows: Sequence[_Row], tune: bool) -> dict[str, list[_Row]]:
  """Return the rows of "train" and, unless `tune`, of the first other split that there is."""
  splits = {each: [row for row in rows if row.split == each] for each in ("train", *EVAL_FOLDERS)}
  chosen = [each for each in splits if splits[each]][: 1 if tune else 2]
  if chosen[0] != "train":
    raise UserError(
      f"{path} has no rows of the split train: complete it; or, to evaluate on all its images, "
      "remove the column split and set --config.data.hold_out=1."
    )
  if not tune and len(chosen) == 1:
    raise UserError(
      f"{path} has no rows of the split val or test to evaluate on: complete it; remove the column "
      "split, to hold out a share (config.data.hold_out); or set --config.tune_on=validation."
    )
  return {each: splits[each] for each in chosen}


def _classes(path: pathlib.Path, rows: Sequence[_Row]) -> tuple[str, ...]:
  """Return the names of the classes, sorted, as numbers if all are integers."""
  names = {row.label for row in rows}
  try:
    numbers = {int(name) for name in names}
  except ValueError:
    return distinct(sorted(names), str(path))
  if len(numbers) < len(names):
    raise UserError(
      f"{path} has labels that are one number, such as 1 and 01: write it in one way."
    )
  return tuple(sorted(names, key=int))


def _quoted(text: str) -> str:
  return f"'{_short(text)}'"


def _short(text: str) -> str:
  return printable(text)[:_LONGEST]
