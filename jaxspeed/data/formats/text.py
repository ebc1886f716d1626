"""A reader of users' text files: lists of images and of names."""

import pathlib
import re

from jaxspeed.errors import UserError
from jaxspeed.files import open_regular

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
