"""Standard output and error that never end a command, even closed, full or in a narrow encoding."""

import contextlib
import errno
import os
import pathlib
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, cast

from absl import flags

from jaxspeed.errors import printable
from jaxspeed.files import write_atomically

# Files of Python, of installed packages and of this one.
_FOLDERS = os.path.dirname(os.__file__), str(pathlib.Path(__file__).parents[1])
_OTHERS = re.compile(f"^<|/(site|dist)-packages/|^({'|'.join(map(re.escape, _FOLDERS))})/")


class _Stream:
  """A stream that drops what the stream below it cannot write; `failure` is why a write failed."""

  def __init__(self, stream: TextIO | None) -> None:
    self.failure: Exception | None = None
    if stream is None or stream.closed:
      self.failure = OSError(errno.EBADF, "it is closed")
      stream = open(os.devnull, "w", errors="replace")  # noqa: SIM115  as long as the process
    self._stream = stream

  def write(self, text: str) -> int:
    self._try(lambda: self._stream.write(text))
    return len(text)

  def flush(self) -> None:
    self._try(self._stream.flush)

  def _try(self, act: Callable[[], object]) -> None:
    """After a failure, what follows and what a buffer still holds goes to nowhere."""
    try:
      act()
    except (OSError, ValueError) as error:
      if self.failure is None:
        self.failure = error
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
          os.dup2(nowhere.fileno(), self._stream.fileno())

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def guard() -> None:
  """Replaces sys.stdout and sys.stderr by streams that never raise, and opens closed descriptors.

  If descriptor 1 is closed, the next file would get its number and libraries would print into it.
  Characters that the encoding lacks become escapes. A stream that a test has put there stays.
  """
  for number in range(3):
    try:
      os.set_blocking(number, True)  # another program may have made a shared one non-blocking
    except OSError:
      os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free, this one
  for name in ("stdout", "stderr"):
    stream = getattr(sys, name)
    if stream is None or stream is getattr(sys, f"__{name}__"):
      if stream is not None:
        stream.reconfigure(errors="backslashreplace", line_buffering=True)
      setattr(sys, name, _Stream(stream))


def write_error(sentence: str) -> None:
  """Writes "jaxspeed: " and a sentence to standard error, without a lock, from any thread."""
  with contextlib.suppress(OSError):
    os.write(2, f"jaxspeed: {sentence}\n".encode("utf-8", "backslashreplace"))


_HOLDING = threading.Lock()


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Drops what is written to descriptor 2 in the block."""
  with _HOLDING, open(os.devnull, "w") as nowhere:
    before = os.dup(2)
    os.dup2(nowhere.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(before, 2)
      os.close(before)


def unfailing(stream: TextIO | None) -> TextIO:
  """A stream in place of `stream`, which may be closed or full, that never raises."""
  return cast(TextIO, stream if isinstance(stream, _Stream) else _Stream(stream))


def is_closed() -> bool:
  """Whether nobody can read standard output any more: its pipe is closed, or a write failed."""
  return getattr(sys.stdout, "failure", None) is not None


def lost() -> object:
  """Why output to standard output was lost; None if none was, or the reader closed the pipe."""
  sys.stdout.flush()
  failure = getattr(sys.stdout, "failure", None)
  return None if isinstance(failure, BrokenPipeError) else getattr(failure, "strerror", failure)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
  """Lines with aligned columns, the first with their names; columns without values are left out."""
  kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
  widths = [max(len(row[i]) for row in rows) for i in kept]
  return [
    "  ".join(f"{row[i]:<{width}}" for i, width in zip(kept, widths, strict=True)).rstrip()
    for row in rows
  ]


def say(sentence: object) -> None:
  """Prints a sentence on standard error, on one line and without control characters."""
  print(f"jaxspeed: {printable(str(sentence))}", file=sys.stderr)


def is_quiet() -> bool:
  """Whether --quiet leaves notes out."""
  return "quiet" in flags.FLAGS and bool(flags.FLAGS["quiet"].value)


def note(sentence: object) -> None:
  """Prints a note on standard error, as `say`; nothing if the command is quiet."""
  if not is_quiet():
    say(f"note: {sentence}")


def report(error: BaseException, path: pathlib.Path | None = None) -> None:
  """Writes the traceback of an unexpected exception to a file, and prints a sentence about it.

  The file is one in the temporary folder if `path` is None or cannot be written.
  """
  text = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace")
  first = next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".")
  where = "there is no room for the traceback"
  elsewhere = pathlib.Path(tempfile.gettempdir(), f"jaxspeed_{os.getpid()}.txt")
  for file in [path, elsewhere] if path else [elsewhere]:
    with contextlib.suppress(OSError):
      write_atomically(file, text)
      where = f"the traceback is in {file}"
      break
  name = type(error).__name__ + (f" ({first})" if first else "")
  place = f", in {own}" if (own := own_place(error)) else ""
  say(f"an unexpected error ended this command, {name}{place}: {where}.")


def own_place(error: BaseException) -> str:
  """The last file and line of the user's own in which an error arose; '' if in none."""
  own = [f for f in traceback.extract_tb(error.__traceback__) if not _OTHERS.search(f.filename)]
  return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""
