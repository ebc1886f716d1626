"""A table of predictions in CSV: for the images of folders, and those that CSV files list."""

import collections
import contextlib
import csv
import dataclasses
import io
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from jaxspeed.config import output
from jaxspeed.data.formats.folders import left_out, list_folder
from jaxspeed.data.formats.label_csv import is_csv, read_names
from jaxspeed.data.formats.pixels import SUFFIXES
from jaxspeed.errors import UserError, mend, printable
from jaxspeed.files import write_atomically
from jaxspeed.run.folder import check_output
from jaxspeed.run.predict import BrokenImage, Predictor

# The path that stands for standard output.
STANDARD_OUTPUT = "-"
_SURROGATE = re.compile("[\ud800-\udfff]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Called with the number of images done, and that of all.
Show = Callable[[int, int], None]


@dataclasses.dataclass
class Predicted:
  """What a table holds."""

  images: int = 0
  broken: int = 0  # the number of those that could not be read
  seconds: float = 0.0  # from the first image to the last, without loading and compiling


@dataclasses.dataclass(frozen=True)
class Images:
  """Image files to predict."""

  names: list[str]  # as the table shows them: those in a list are its own
  paths: list[str]
  notes: tuple[str, ...]  # lines about files that are left out


def find_images(arguments: Sequence[str]) -> Images:
  """The images that are named: files, folders with all their sub-folders, and CSV lists.

  In a folder, files are images by their ending; hidden ones are left out.

  Raises:
    UserError: a folder holds no image or cannot be read; a list is none.
  """
  pairs, others = list[tuple[str, str]](), collections.Counter[str]()  # names and paths
  for name in arguments:
    try:
      found = [(name, name)]
      if os.path.isdir(name):
        found = [(path, path) for path in _in_folder(pathlib.Path(name), others)]
      elif is_csv(pathlib.Path(name)):
        listed = map(_without_apostrophe, read_names(pathlib.Path(name)))
        found = [(each, os.path.join(os.path.dirname(name), each)) for each in listed]
    except OSError as error:
      raise UserError(
        f"{error.filename or name} cannot be read ({error.strerror or error}): make it readable, "
        "or name others."
      ) from error
    if not found:
      raise UserError(f"{name} holds no image ({', '.join(SUFFIXES)}): name another folder.")
    pairs += found
  notes = left_out(others, where="")
  return Images([name for name, _ in pairs], [path for _, path in pairs], notes)


def _in_folder(folder: pathlib.Path, others: collections.Counter[str]) -> Iterator[str]:
  """The images of a folder and its sub-folders; links to folders are not followed."""
  listed = list_folder(folder)
  others.update(listed.others)
  yield from (str(folder / name) for name in listed.images)
  for name in listed.folders:
    if not (folder / name).is_symlink():
      yield from _in_folder(folder / name, others)


def check_csv(path: str, arguments: Iterable[str]) -> None:
  """Makes sure that a table can be written, before anything is loaded.

  Raises:
    UserError: as `check_output`, or it would replace a file that is read.
  """
  if path == STANDARD_OUTPUT:
    return
  check_output(pathlib.Path(path), f"--csv={path}")
  with contextlib.suppress(OSError):
    if any(os.path.samefile(path, name) for name in arguments if os.path.exists(name)):
      raise UserError(f"--csv={path} is a file to read, and would be replaced: name another one.")


def write_csv(
  path: str, predictor: Predictor, images: Images, *, top: int, show: Show
) -> Predicted:
  """Writes the table of `predict.py`: a header, and a line for each image, in order.

  `path` is a file, which appears when it is complete, or "-" for standard output. `top` is the
  number of classes of an image. `show` is called now and then with the numbers of images.

  Raises:
    UserError: the file cannot be written, or logits are not finite.
  """
  done = Predicted()
  lines = _lines(predictor, images, min(top, len(predictor.names)), show, done)
  with contextlib.closing(lines):
    if path == STANDARD_OUTPUT:
      terminal = sys.stdout.isatty()
      for line in lines:
        print(printable(line[:-1]) if terminal else line[:-1])
        if output.is_closed():
          break
      return done
    try:
      write_atomically(path, (line.encode() for line in lines))
    except OSError as error:
      raise UserError(
        f"--csv={path} cannot be written ({error.strerror or error}): {mend(error)}, or name "
        "another."
      ) from error
  return done


def _lines(
  predictor: Predictor, images: Images, top: int, show: Show, done: Predicted
) -> Generator[str, None, None]:
  """Yields the lines of the table, and counts them in `done`."""
  more = [f"{name}_{number}" for number in range(2, top + 1) for name in ("label", "probability")]
  yield _line(["file", "label", "probability", *more, "error"])
  with contextlib.closing(predictor.rows(images.paths)) as found:
    begun = time.perf_counter()
    show(0, len(images.paths))
    for image, each in zip(images.names, found, strict=True):
      done.images += 1
      done.seconds = time.perf_counter() - begun
      if isinstance(each, BrokenImage):
        done.broken += 1
        yield _line([image, *[""] * (2 * top), printable(each.reason)])
      else:
        pairs = [(name, f"{share:.6g}") for name, share in predictor.likeliest(each, top)]
        yield _line([image, *(cell for pair in pairs for cell in pair), ""])
      show(done.images, len(images.paths))


def _without_apostrophe(name: str) -> str:
  """A name as it was before `_line` wrote it."""
  return name[1:] if name[:1] == "'" and name[1:].startswith(_FORMULA) else name


def _line(cells: Sequence[str]) -> str:
  """A line of a CSV file, which may hold line ends inside quotes."""
  buffer = io.StringIO(newline="")
  # Spreadsheets compute a cell that begins so; the apostrophe makes it text.
  cells = [f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells]
  # With "\n" as the end of its lines, the writer would not quote a name that holds "\r".
  csv.writer(buffer, lineterminator="\r\n").writerow(
    # A byte that is no UTF-8 is a surrogate in a name, which a file in UTF-8 cannot hold.
    [_SURROGATE.sub(lambda found: printable(found[0]), cell) for cell in cells]
  )
  return buffer.getvalue().removesuffix("\r\n") + "\n"
