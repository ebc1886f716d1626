"""Names of classes: in a user's text file, in a run's folder, and the rule that all lists keep."""

import itertools
import pathlib
from collections.abc import Sequence

from jaxspeed.errors import UserError, printable
from jaxspeed.files import dump_json, load_json, open_regular, write_atomically

# In a run's folder: a list in JSON, in which a name may hold any character.
STORED = "classes.json"

# 100,000 classes of 100 bytes.
_MOST_BYTES = 10_000_000


def read_class_names(path: pathlib.Path) -> tuple[str, ...]:
  """The names in a text file, one a line; () where there is no such file.

  Lines end with a line feed, or with a carriage return and a line feed, and with nothing else that
  Unicode counts as an end: a name that held one would give all names after it to other classes.

  Raises:
    UserError: the file cannot be read or is no UTF-8; a line is empty, holds a control character,
      or stands there twice.
  """
  try:
    with open_regular(path) as file:
      content = file.read(_MOST_BYTES + 1)
  except FileNotFoundError:
    return ()
  except OSError as error:
    raise UserError(f"{path} cannot be read ({error.strerror or error}).") from error
  if len(content) > _MOST_BYTES:
    raise UserError(f"{path} has more than {_MOST_BYTES:,} bytes: it holds a name a line.")
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    wrong = content[: error.start].count(b"\n") + 1
    raise UserError(
      f"{path}, line {wrong}, is no UTF-8: store the file in that encoding."
    ) from None
  lines = [line.removesuffix("\r").strip(" ") for line in text.rstrip("\r\n ").split("\n")]
  if lines == [""]:
    return ()
  for number, line in enumerate(lines, start=1):
    if not line:
      raise UserError(
        f"{path}, line {number}, is empty: it holds the name of a class in each line."
      )
    if any(character < " " or 0x7F <= ord(character) < 0xA0 for character in line) or (
      len(line.splitlines()) > 1
    ):
      raise UserError(
        f"{path}, line {number}, {line!r:.100}, holds a control character: remove it."
      )
  return distinct(lines, str(path))


def store_class_names(folder: pathlib.Path, names: Sequence[str]) -> None:
  """Writes the names of a run's classes into its folder.

  Raises:
    OSError: they cannot be written.
  """
  write_atomically(folder / STORED, dump_json(list(names), indent=2) + "\n")


def check_class_names(folder: pathlib.Path, names: Sequence[str], *, renamed: bool = False) -> None:
  """Makes sure that data have the classes that a run began with, in their order.

  Args:
    folder: of the run.
    names: of the data.
    renamed: whether numbers may stand for names, as in data sets without names.

  Raises:
    UserError: the same numbers would mean other classes.
  """
  for path in sorted([folder / STORED, *folder.glob(f"run_*/{STORED}")]):
    try:
      stored = load_json(path)
    except (OSError, ValueError):
      continue  # it is written anew
    if renamed and isinstance(stored, list) and _one_has_numbers(names, list(map(str, stored))):
      continue
    if isinstance(stored, list) and stored != list(names):
      pairs = itertools.zip_longest(stored, names, fillvalue=None)
      before, now = (
        "no class" if each is None else f"the class {printable(str(each))}"
        for each in next((a, b) for a, b in pairs if a != b)
      )
      raise UserError(
        f"{path} names {before}, and the data set {now} in its place: undo that change of the "
        "data, or choose others or another --workdir."
      )


def _one_has_numbers(names: Sequence[str], others: Sequence[str]) -> bool:
  """Whether one list has numbers, as data sets without names do, and the other list has names."""
  numbers = list(map(str, range(len(names))))
  return numbers in (list(names), others) and not set(names) & set(others)


def stored_class_names(folder: pathlib.Path, classes: int) -> tuple[str, ...]:
  """The names of a run's classes.

  Args:
    folder: of the run.
    classes: as many as its model tells apart.

  Raises:
    UserError: the file is missing, damaged, or names another number of classes.
  """
  path = folder / STORED
  try:
    # No type is asked for: pydantic refuses the escapes of bytes that are no UTF-8, as names have.
    names = load_json(path)
  except FileNotFoundError:
    raise UserError(
      f"{path} is missing: it holds the names of the run's {classes} classes as a list in JSON; "
      "put it back, or write it."
    ) from None
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise UserError(f"{path} holds no list of names in JSON ({reason}).") from None
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    raise UserError(f"{path} holds no list of names in JSON.")
  if len(names) != classes:
    raise UserError(
      f"{path} names {len(names)} classes, and the run's model tells {classes} apart: put the "
      "run's own file back."
    )
  return tuple(names)


def distinct(names: Sequence[str], where: str) -> tuple[str, ...]:
  """The names, none of which stands there twice.

  Raises:
    UserError: two classes have one name.
  """
  first: dict[str, int] = {}
  for number, name in enumerate(names):
    if first.setdefault(name, number) != number:
      raise UserError(
        f"{where} names the classes {first[name]} and {number} both {name!r}: give each a name of "
        "its own."
      )
  return tuple(names)
