"""The exception for users' mistakes, the commands' exit codes, and text that is safe to print."""

import difflib
import unicodedata
from collections.abc import Iterable, Sequence

DONE = 0  # also after SIGTERM, once everything is saved
FAULT = 1  # an error in the program, reported in a sentence that names the file of its traceback
MISTAKE = 2  # the user's mistake, reported in a sentence
LOST_PEER = 75  # sysexits' EX_TEMPFAIL: another process ended or hangs; start the job again
SUPERSEDED = 76  # a later start of the run took its folder over; do not start the job again
REQUEUE = 85  # saved after SIGUSR1, which asks for this code: start the job again
INTERRUPTED = 130  # after Ctrl-C, as shells expect: 128 and the number of SIGINT


# The format characters (Cf) that join letters or emoji; others can reverse the direction of a line.
_JOINERS = "\u200c\u200d"


def printable(text: str) -> str:
  """`text` with control characters, line separators and bytes that are not UTF-8 escaped.

  Names of files and classes come from outside: unescaped, they could move the cursor, begin a new
  line, or fail in the terminal's encoding.
  """
  if text.isprintable():
    return text
  return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
  kind = unicodedata.category(character)
  if character.isprintable() or kind == "Zs" or character in _JOINERS:
    return character
  # A byte that is not UTF-8 is a surrogate in a name (PEP 383): print it as \xff.
  if 0xDC80 <= ord(character) <= 0xDCFF:
    return f"\\x{ord(character) - 0xDC00:02x}"
  return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """The end of a sentence on an unknown name: ": did you mean NAME?"; '' if none is near."""
  near = difflib.get_close_matches(name, [*known], 1)
  return f": did you mean {near[0]}?" if near else ""


def mend(error: object) -> str:
  """What to do about an error of the disk, by its words: those of Orbax have no errno."""
  if "Too many open files" in (said := str(error)):
    return "allow more open files (ulimit -n)"
  return "make room" if "No space left" in said or "quota" in said else "fix that"


def plural(count: int, noun: str) -> str:
  """A count with its noun: "1 seed", "3 seeds"."""
  return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int, count: int = 0) -> str:
  """At most `most` of names, and the number of the others: "a, b and 3 more".

  Args:
    names: the names.
    most: the most that are named.
    count: the number of all, if `names` are only the first.
  """
  others = (count or len(names)) - most
  return ", ".join(names[:most]) + (f" and {others:,} more" if others > 0 else "")


class UserError(Exception):
  """A user's mistake, in one sentence that names the file, field or value and what to do.

  The commands print the sentence without a traceback, below its notes (`add_note`), which are
  Python's lines on a bug in the user's own file, and exit with code 2. Unprintable characters are
  escaped (`printable`).
  """

  def __init__(self, message: str) -> None:
    super().__init__(printable(message))
