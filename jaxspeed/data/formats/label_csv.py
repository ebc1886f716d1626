"""A CSV file that lists images and their labels: `file,label`, and perhaps `split`.

    listed = read_csv(pathlib.Path("photos.csv"))
    listed.names["train"], listed.labels["train"], listed.classes

The first line names the columns, in any order and among others, which are not read. Keras's names
(filename, class) and Hugging Face's (file_name) serve too. File names are relative to the CSV's
folder, or absolute. Commas, semicolons or tabs separate columns; Excel's line `sep=;` is skipped.
Each row is a line.
"""

import collections
import csv
import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxspeed.data.formats.class_names import distinct
from jaxspeed.data.formats.folders import EVAL_FOLDERS
from jaxspeed.errors import UserError, plural, printable, some
from jaxspeed.files import open_regular

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
_SEPARATOR_LINE = re.compile(r'\s*"?sep=\s*[,;]?"?\s*', re.IGNORECASE)  # Excel's first line
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_SHOWN = 3  # names in a message
_LONGEST = 100  # characters of each
_MOST_BYTES = 2 * 10**9


@dataclasses.dataclass(frozen=True)
class Listed:
  """Images and labels by split: "train", and "val" where there is a column of splits and no tuning.

  Attributes:
    names: normalised file names, sorted.
    labels: class number of each image, an index of `classes`.
    classes: the classes' names: sorted, as numbers if all are integers.
    has_splits: whether there is a column of splits.
    eval_name: the name of the split "val" in the file; '' without it.
    notes: lines about what is not read.
  """

  names: dict[str, list[str]]
  labels: dict[str, list[int]]
  classes: tuple[str, ...]
  has_splits: bool
  eval_name: str
  notes: tuple[str, ...]


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

  Args:
    path: the file.
    tune: whether to return the split "train" only.

  Raises:
    UserError: the file is no CSV in UTF-8 with the columns file and label, a row is incomplete, a
      file is listed twice, or a split is missing.
  """
  rows, others, has_splits = _rows(path)
  rows.sort()
  _refuse_twice(path, rows)
  notes = []
  if others:
    notes.append(f"columns of {printable(path.name)} that are not read: {_some(others)}")
  by_split, eval_name = {"train": rows}, ""
  if has_splits:
    by_split, eval_name, unread = _by_split(path, rows, tune)
    notes += unread
  classes = _classes(path, by_split["train"])
  numbers = {name: number for number, name in enumerate(classes)}
  unknown = [row for each in by_split.values() for row in each if row.label not in numbers]
  if unknown:
    raise UserError(
      f"{path}, line {unknown[0].line}: the label {_quoted(unknown[0].label)} is in no row of "
      f"the split train ({len(unknown):,} in all): a model is trained on the classes it is "
      "evaluated on."
    )
  names = {split: [row.file for row in each] for split, each in by_split.items()}
  labels = {split: [numbers[row.label] for row in each] for split, each in by_split.items()}
  return Listed(names, labels, classes, has_splits, eval_name, tuple(notes))


def read_names(path: pathlib.Path) -> list[str]:
  """The names in the column of files, as they are and in their order; no other column is needed.

  Raises:
    UserError: the file is no CSV in UTF-8 with a column file, or a row has no name.
    OSError: it cannot be read.
  """
  return [row.file for row in _rows(path, ("file",), normal=False)[0]]


def require_files(path: pathlib.Path, names: Mapping[str, Sequence[str]]) -> None:
  """Check that the files of a CSV are there, with one listing of each of their folders.

  Raises:
    UserError: files are missing; it has their number and the first names.
    OSError: a folder cannot be read.
  """
  folders: dict[str, list[str]] = collections.defaultdict(list)
  for name in (name for each in names.values() for name in each):
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
    missing.sort()
    listed, hint = sum(map(len, names.values())), _hint(path.parent, missing[0])
    raise UserError(
      f"{path} lists {plural(listed, 'file')}, of which {len(missing):,} cannot be found: "
      f"{_some(missing)}; names are relative to {path.parent}{hint}."
    )


def _hint(folder: pathlib.Path, name: str) -> str:
  """Return what may be wrong with a missing file's name, to end a sentence."""
  if "\\" in name:
    return ", and folders end with '/', not '\\'"
  if re.match("[a-z0-9]+:/", name):
    return ": download the images first"
  if not os.path.splitext(name)[1]:
    for ending in (".jpg", ".jpeg", ".png"):
      if os.path.exists(f"{folder / name}{ending}"):
        return f", and have their endings ({os.path.basename(name)}{ending})"
  return ""


def _rows(
  path: pathlib.Path, columns: Sequence[str] = tuple(_COLUMNS), *, normal: bool = True
) -> tuple[list[_Row], list[str], bool]:
  """Return the rows, the names of columns that are not read, and whether there are splits.

  Args:
    path: the file.
    columns: the columns to read; all but "split" must be there.
    normal: whether "./a.jpg" becomes "a.jpg".
  """
  # Not `splitlines`: Unicode's other line ends may be inside a name.
  lines = _text(path).split("\n")
  if _SEPARATOR_LINE.fullmatch(lines[0]):
    lines[0] = ""
  first = next(number for number, line in enumerate(lines) if line.strip())
  delimiter, header, places = _header(path, lines[first], columns)
  reader = csv.reader(lines[first + 1 :], delimiter=delimiter, strict=True, skipinitialspace=True)
  rows: list[_Row] = []
  splits, before = {"": "train"}, 0
  try:
    for fields in reader:
      line, begin, before = first + 1 + reader.line_num, first + 2 + before, reader.line_num
      if line > begin:
        raise UserError(
          f"{path}, lines {begin} to {line}, are one row by their double quotes, and each row is a "
          f"line: close the double quotes of line {begin} there."
        )
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


def _text(path: pathlib.Path) -> str:
  """Return a file's text, with line feeds at the ends of lines."""
  with open_regular(path) as file:
    content = file.read(_MOST_BYTES + 1)
  if len(content) > _MOST_BYTES:
    raise UserError(f"{path} has more than {_MOST_BYTES:,} bytes: it must list images, one a line.")
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = content[: error.start].count(b"\n") + 1
    raise UserError(
      f"{path}, line {line}, is not UTF-8: save it as a CSV file in UTF-8, not as a spreadsheet."
    ) from None
  if not text.strip():
    raise UserError(f"{path} is empty: begin it with the line file,label and list an image a line.")
  text = text.replace("\r\n", "\n").replace("\r", "\n")
  if found := _CONTROL.search(text):
    line = text.count("\n", 0, found.start()) + 1
    raise UserError(
      f"{path}, line {line}, holds the control character {found[0]!r}: save it as a CSV file in "
      "UTF-8, without that character."
    )
  return text


def _header(
  path: pathlib.Path, line: str, columns: Sequence[str]
) -> tuple[str, list[str], dict[str, int]]:
  """Return the separator, the names in the header, and the place of each column that is read."""
  needed = [key for key in columns if key != "split"]
  for delimiter in _SEPARATORS:
    header = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
    places = _places(path, header, columns)
    if all(key in places for key in needed):
      return delimiter, header, places
  header = [each.strip() for each in re.split("[,;\t]", line.strip())]
  lacking = [key for key in needed if key not in _places(path, header, columns)]
  example = "file,label or file,label,split" if "label" in needed else "file or file,label"
  raise UserError(
    f"{path} has no column {' and no column '.join(lacking)}: its first line must name the "
    f"columns, with commas between them, as in {example}, and it is {_quoted(line.strip())}."
  )


def _places(path: pathlib.Path, header: Sequence[str], columns: Sequence[str]) -> dict[str, int]:
  """Return the place of each column that is read.

  Raises:
    UserError: two columns could be one that is read.
  """
  names = [each.strip().lower() for each in header]
  places = {}
  for key, spellings in ((key, _COLUMNS[key]) for key in columns):
    found = [i for i, name in enumerate(names) if name in spellings]
    # The documents' own name goes before the others.
    found = [i for i in found if names[i] == key] or found
    if len(found) > 1:
      both = " and ".join(_quoted(header[i].strip()) for i in found[:2])
      raise UserError(
        f"{path} has the columns {both}, and one column of {key}s is read: name that column {key}, "
        "and the other something else."
      )
    if found:
      places[key] = found[0]
  return places


def _refuse_twice(path: pathlib.Path, rows: Sequence[_Row]) -> None:
  """Raise a UserError where two rows name one file; rows are sorted."""
  pairs = zip(rows, rows[1:], strict=False)
  twice = [sorted(pair, key=lambda row: row.line) for pair in pairs if pair[0][0] == pair[1][0]]
  if not twice:
    return
  one, other = min(twice, key=lambda pair: pair[1].line)
  more = f" ({len(twice):,} rows repeat a file)" if len(twice) > 1 else ""
  ways = [f"label {_quoted(row.label)}, split {row.split}" for row in (one, other)]
  raise UserError(
    f"{path}, lines {one.line} and {other.line}, both name {_quoted(one.file)}{more}: list each "
    f"image once, with one label and in one split ({' and '.join(dict.fromkeys(ways))})."
  )


def _by_split(
  path: pathlib.Path, rows: Sequence[_Row], tune: bool
) -> tuple[dict[str, list[_Row]], str, list[str]]:
  """Return the rows of "train" and "val", the latter's name in the file, and notes."""
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
    return {"train": grouped["train"]}, "", []
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
  return {"train": grouped["train"], "val": grouped[chosen]}, chosen, notes


def _classes(path: pathlib.Path, rows: Sequence[_Row]) -> tuple[str, ...]:
  """Return the names of the classes, sorted, as numbers if all are integers."""
  names = {row.label for row in rows}
  if not all(_INTEGER.fullmatch(name) for name in names):
    return distinct(sorted(names), str(path))
  by_number: dict[int, str] = {}
  for name in sorted(names):
    if by_number.setdefault(int(name), name) != name:
      raise UserError(
        f"{path} has the labels {by_number[int(name)]} and {name}, which are one number: write it "
        "in one way."
      )
  return tuple(by_number[number] for number in sorted(by_number))


def _quoted(text: str) -> str:
  return f"'{_short(text)}'"


def _some(names: Sequence[str]) -> str:
  return some([*map(_short, names)], _SHOWN)


def _short(text: str) -> str:
  return printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
