"""Exceptions that need no traceback, the codes of the commands, and text that is safe to print."""

import unicodedata

DONE = 0  # also after SIGTERM, once everything is saved
FAULT = 1  # of the program, told in one sentence that names the file of its traceback
MISTAKE = 2  # of the user, told in one sentence
LOST_PEER = 75  # sysexits' EX_TEMPFAIL: another process ended or hangs; start the job again
SUPERSEDED = 76  # a later start of the run has taken its folder over; nothing is to be started
REQUEUE = 85  # saved after SIGUSR1, which asks for this code: start the job again
INTERRUPTED = 130  # after Ctrl-C, as shells expect: 128 and the number of SIGINT


# Of the format characters (Cf) those that join letters or parts of a picture; the rest includes the
# ones that turn the direction of a line.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
  """`text` with control characters, line separators and bytes that are no UTF-8 escaped.

  Names of files and classes come from outside: printed as they are, they could move the cursor,
  begin a new line, or be refused by the terminal's encoding.
  """
  if text.isprintable():
    return text
  return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
  kind = unicodedata.category(character)
  if character.isprintable() or kind == "Zs" or character in _JOINERS:
    return character
  # A byte that is no UTF-8 is a surrogate in a name (PEP 383): \xff, as it is stored.
  if 0xDC80 <= ord(character) <= 0xDCFF:
    return f"\\x{ord(character) - 0xDC00:02x}"
  return character.encode("unicode_escape", "backslashreplace").decode("ascii")


class UserError(Exception):
  """A user's mistake, told in one sentence that names the file, field or value and what to do.

  The commands print the sentence without a traceback and exit with code 2. What cannot be printed
  is escaped (`printable`).
  """

  def __init__(self, message: str) -> None:
    super().__init__(printable(message))
