"""A CSV file that lists images and their labels: `file,label`, and perhaps `split`.

    table = read_csv(pathlib.Path("photos.csv"))
    table.names, table.label, table.class_names

The first line names the columns, in any order and among others, which are not read. Keras's names
(filename, class) and Hugging Face's (file_name) serve too. File names are relative to the CSV's
folder, or absolute. Commas, semicolons or tabs separate columns.
"""

import csv
import itertools
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from jaxspeed.data.formats.class_names import distinct, read_text
from jaxspeed.data.formats.folders import SPLITS, choose_splits
from jaxspeed.data.table import Names, Table, path_digests
from jaxspeed.errors import UserError, printable, some

# The columns' names; the first of each is the one in the documents.
_COLUMNS = {
  "file": ("file", "filename", "file_name", "path", "image"),
  "label": ("label", "class"),
  "split": ("split",),
}
_SEPARATORS = ",;\t"
_SHOWN, _LONGEST = 3, 100  # names in a message, and characters of each


def is_csv(path: pathlib.Path) -> bool:
  """Return whether a path is that of a CSV file, by its name; it may be missing."""
  return path.suffix.lower() == ".csv" and not path.is_dir()


def read_csv(path: pathlib.Path, *, tune: bool = False) -> Table:
  """Read a CSV file; whether its images exist is not looked at.

  Names are normalised, and sorted in each split. Classes are sorted, as numbers if all are.

  Args:
    path: the file.
    tune: whether to return the split "train" only.

  Raises:
    UserError: the file is no CSV in UTF-8 with the columns file and label, a row is incomplete, a
      file is listed twice, or a split is missing.
  """
  columns, lines, others = _read(path, tuple(_COLUMNS))
  files, labels = [*map(os.path.normpath, columns["file"])], columns["label"]
  order = np.array(sorted(range(len(files)), key=files.__getitem__))
  # A name may also be the whole path of a file below the list's folder.
  places = [name.removeprefix(f"{path.parent}{os.sep}") for name in files]
  if len(set(places)) < len(places):
    pairs = itertools.pairwise(sorted(range(len(places)), key=places.__getitem__))
    one, other = next((one, other) for one, other in pairs if places[one] == places[other])
    raise UserError(
      f"{path}, lines {lines[one]} and {lines[other]}, both name {_quoted(files[one])}: list each "
      "image once, with one label and in one split."
    )
  source, notes = printable(path.name), tuple[str, ...]()
  train: int | None = None
  if others:
    named = some([printable(each)[:_LONGEST] for each in others], _SHOWN)
    notes = (f"columns of {source} that are not read: {named}",)
  used = np.ones(len(files), bool)
  if "split" in columns:
    lower = [each.lower() for each in columns["split"]]
    if wrong := {*lower} - {*SPLITS}:
      raise UserError(f"{path} has the split {_quoted(min(wrong))}: write train, val or test.")
    splits = np.array(lower)
    chosen, words = choose_splits({*splits.tolist()}, path, evaluation=not tune)
    source += f": {words}"
    parts = [order[splits[order] == each] for each in chosen]
    order, train, used = np.concatenate(parts), len(parts[0]), np.isin(splits, chosen)
  classes = _classes(path, {*itertools.compress(labels, used)})
  numbers = {name: number for number, name in enumerate(classes)}
  names = Names.of(files[row] for row in order)
  return Table(
    root=str(path.parent),
    names=names,
    file=np.arange(len(order), dtype=np.int32),
    label=np.array([numbers.get(label, -1) for label in labels], np.int32)[order],
    class_names=classes,
    source=source,
    notes=notes,
    place=path,
    train=train,
    digest=path_digests(names),
  )


def read_names(path: pathlib.Path) -> list[str]:
  """The names in the column of files, as they are and in their order; no other column is needed.

  Raises:
    UserError: the file is no CSV in UTF-8 with a column file, or a row has no name.
    OSError: it cannot be read.
  """
  return _read(path, ("file",))[0]["file"]


def _read(
  path: pathlib.Path, wanted: Sequence[str]
) -> tuple[dict[str, list[str]], list[int], list[str]]:
  """Return the columns, the number of each row's line, and the names of columns that are not read.

  Args:
    path: the file.
    wanted: the columns to read; all but "split" must be there.
  """
  text = read_text(path).split("\n")
  first = next((number for number, line in enumerate(text) if line.strip()), 0)
  lines, line = list[int](), first
  quotes = "close its double quotes, and write two of them for one inside a value."
  try:
    separator, header, places = _header(path, text[first], wanted)
    reader = csv.reader(text[first + 1 :], delimiter=separator, strict=True, skipinitialspace=True)
    # Columns, because Python's collector would visit a million rows again and again.
    columns, line = {key: list[str]() for key in places}, first + 1
    for row in reader:
      line += 1
      if (end := first + 1 + reader.line_num) > line:  # it would swallow images in silence
        raise UserError(f"{path}, line {line}, ends in line {end} by its double quotes: {quotes}")
      if not any(row):
        continue  # an empty line, or one of separators, as spreadsheets write them
      if len(row) != len(header):
        raise UserError(
          f"{path}, line {line}: the header names {len(header)} columns, and this line has "
          f"{len(row)}: write {separator!r} between columns, and values that hold it in double "
          "quotes."
        )
      lines.append(line)
      for key, place in places.items():
        columns[key].append(row[place].strip())
  except csv.Error as error:
    raise UserError(f"{path}, line {line + 1}, cannot be read as CSV ({error}): {quotes}") from None
  if not lines:
    raise UserError(f"{path} has no images: write a header line, and add a line for each image.")
  for key, column in columns.items():
    if "" in column:
      line = lines[column.index("")]
      raise UserError(f"{path}, line {line}, has no {key}: write it, or leave the line out.")
  others = [name for i, name in enumerate(header) if name and i not in places.values()]
  return columns, lines, others


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


def _classes(path: pathlib.Path, names: set[str]) -> tuple[str, ...]:
  """Return the names of the classes, sorted, as numbers if all are integers."""
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
  return f"'{printable(text)[:_LONGEST]}'"
