"""Names of classes: reading a user's list of lines, storing and checking a run's list."""

import itertools
import pathlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, open_regular, parse_json, read_bytes, write_atomically

# The file in a run's folder: a JSON list, so a name may hold any character.
STORED = "classes.json"
_MOST_BYTES = 2 * 10**9
# Tabs may separate columns. Unicode's line ends inside a name would look like two names.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")


def read_lines(path: pathlib.Path) -> list[str]:
  """Return the lines of a file, which end with LF, CR LF or CR.

  Raises:
    UserError: it is not UTF-8, holds a control character, or is too large.
    OSError: it cannot be read.
  """
  with open_regular(path) as file:
    content = file.read(_MOST_BYTES + 1)
  if len(content) > _MOST_BYTES:
    raise UserError(f"{path} has more than {_MOST_BYTES:,} bytes: it must be a list, one a line.")
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    line = content[: error.start].count(b"\n") + 1
    raise UserError(
      f"{path}, line {line}, is not UTF-8: save it as plain text in UTF-8, not as a spreadsheet."
    ) from None
  text = text.replace("\r\n", "\n").replace("\r", "\n")
  if found := _CONTROL.search(text):
    line = text.count("\n", 0, found.start()) + 1
    raise UserError(
      f"{path}, line {line}, holds the control character {found[0]!r}: remove it, and save the "
      "file as plain text in UTF-8."
    )
  return text.split("\n")


def read_class_names(path: pathlib.Path) -> tuple[str, ...]:
  """Read the names in a text file, one on each line; () where the file is missing.

  Raises:
    UserError: the file cannot be read or is not UTF-8; a line is empty, holds a control character,
      or occurs twice.
  """
  try:
    lines = [line.strip(" ") for line in read_lines(path)]
  except FileNotFoundError:
    return ()
  except OSError as error:
    raise UserError(
      f"{path} cannot be read ({error.strerror or error}): make it readable."
    ) from error
  while lines and not lines[-1]:
    lines.pop()
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
  for path in sorted([folder / STORED, *folder.glob(f"run_*/{STORED}")]):
    try:
      stored = parse_json(read_bytes(path))
    except (OSError, ValueError):
      continue  # it will be written again
    if renamed and isinstance(stored, list) and _one_has_numbers(names, list(map(str, stored))):
      continue
    if isinstance(stored, list) and stored != list(names):
      before, now = _first_difference(stored, names)
      raise UserError(
        f"{path} names {before}, and the data set {now} in its place: undo that change of the "
        "data, or choose others or another --workdir."
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
  if len(stored) != len(names) or list(stored) == list(names):
    return None
  if _one_has_numbers(names, stored):
    return (
      f"the classes of {path} and {data} are taken in the same order, as one has only their numbers"
    )
  theirs, ours = _first_difference(stored, names)
  raise UserError(
    f"{path} was trained with {theirs}, and {data} has {ours} in its place: set --config.data.path "
    "to data of the same classes in the same order."
  )


def _one_has_numbers(names: Sequence[str], others: Sequence[str]) -> bool:
  """Return whether one list holds numbers, for unnamed classes, and the other holds names."""
  numbers = list(map(str, range(len(names))))
  return numbers in (list(names), others) and not set(names) & set(others)


def _first_difference(stored: Sequence[Any], names: Sequence[str]) -> Iterator[str]:
  """Yield the first class that differs, as each list calls it."""
  pairs = itertools.zip_longest(stored, names, fillvalue=None)
  for each in next((a, b) for a, b in pairs if a != b):
    yield "no class" if each is None else f"the class {printable(str(each))}"


def stored_class_names(folder: pathlib.Path, classes: int) -> tuple[str, ...]:
  """Return the names of a run's classes.

  Raises:
    UserError: the file is missing, damaged, or does not name `classes` classes, as the model has.
  """
  path = folder / STORED
  try:
    # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
    names = parse_json(read_bytes(path))
  except (OSError, ValueError):
    names = None
  if (
    isinstance(names, list)
    and all(isinstance(name, str) for name in names)
    and len(names) == classes
  ):
    return tuple(names)
  raise UserError(
    f"{path} is not there, or no list in JSON of the names of the run's {classes} classes: restore "
    "the run's own file, or write it."
  )


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
    if before != number and names[before] == name:
      raise UserError(
        f"{where} names the classes {before} and {number} both {name!r}: give each a name of "
        "its own."
      )
    if before != number:
      raise UserError(
        f"{where} has two classes that look alike, {ascii(names[before]):.100} and "
        f"{ascii(name):.100}, both shown as {name:.100}: rename "
        "one, or make them one class."
      )
  return tuple(names)
