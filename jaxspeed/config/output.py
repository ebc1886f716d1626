"""Standard output and error that never end a command, even closed, full or in a narrow encoding."""

import contextlib
import errno
import io
import os
import pathlib
import re
import select
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, TextIO, cast

from jaxspeed.errors import printable
from jaxspeed.files import dump_json, write_atomically


class _Descriptor(io.RawIOBase):
  """The lowest layer of a stream, which drops all output after the first failed write.

  Args:
    descriptor: the number of an open file, pipe or terminal.
    failure: why nothing can be written from the start; None: it can.

  Attributes:
    failure: why a write failed first; None: everything was written.
  """

  def __init__(self, descriptor: int, failure: OSError | None = None) -> None:
    self._descriptor = descriptor
    self.failure = failure

  def fileno(self) -> int:
    return self._descriptor

  def isatty(self) -> bool:
    return os.isatty(self._descriptor)

  def writable(self) -> bool:
    return True

  def write(self, data: Any) -> int:
    while self.failure is None:
      try:
        return os.write(self._descriptor, data)
      except BlockingIOError:  # another program made the shared descriptor non-blocking
        select.select([], [self._descriptor], [])
      except OSError as error:
        self.failure = error
    return len(data)


def guard() -> None:
  """Replaces sys.stdout and sys.stderr by streams that never raise, and opens closed descriptors.

  If descriptor 1 is closed, the next file would get its number and libraries would print into it.
  Characters that the encoding lacks become escapes. A stream that a test has put there stays.
  """
  missing = [number for number in range(3) if not _is_open(number)]
  for number in missing:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
      os.dup2(opened, number)
      os.close(opened)
  for name, number in (("stdout", 1), ("stderr", 2)):
    stream = getattr(sys, name)
    if stream is None or stream is getattr(sys, f"__{name}__"):
      if number == 2:
        number = _Own.error = os.dup(2)
      closed = OSError(errno.EBADF, "it is closed") if stream is None else None
      setattr(sys, name, _make_stream(stream, _Descriptor(number, closed)))


class _Own:
  """The descriptor to which this package writes errors: a copy, which `held` does not silence."""

  error = 2


def is_guarded() -> bool:
  """Whether `guard` gave sys.stderr a descriptor of its own, as in every command."""
  return _Own.error != 2


def write_error(sentence: str) -> None:
  """Writes "jaxspeed: " and a sentence to standard error, without a lock, from any thread."""
  with contextlib.suppress(OSError):
    os.write(_Own.error, f"jaxspeed: {sentence}\n".encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def held() -> Iterator[None]:
  """Drops what libraries write to descriptor 2 in the block; prints it if the block raises.

  After `guard`, Python's own sys.stderr is not affected. One thread at a time can be in the block.
  """
  try:
    file = tempfile.TemporaryFile()
  except OSError:
    yield
    return
  with _HOLDING, file:
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    failed = True
    try:
      yield
      failed = False
    finally:
      os.dup2(before, 2)
      os.close(before)
      if failed:
        file.seek(0)
        with contextlib.suppress(OSError):
          os.write(2, file.read())


_HOLDING = threading.Lock()


def _is_open(descriptor: int) -> bool:
  try:
    os.fstat(descriptor)
  except OSError:
    return False
  return True


class _Unfailing:
  """A stream that drops what the stream below it cannot write."""

  def __init__(self, stream: TextIO) -> None:
    self._stream = stream

  def write(self, text: str) -> int:
    with contextlib.suppress(OSError, ValueError):
      self._stream.write(text)
    return len(text)

  def flush(self) -> None:
    with contextlib.suppress(OSError, ValueError):
      self._stream.flush()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def unfailing(stream: TextIO | None) -> TextIO:
  """A stream in place of `stream`, which may be closed or full, that never raises.

  Python's own standard output is written past its buffer, so that nothing is left there that would
  fail when Python ends.
  """
  if stream is None or getattr(stream, "closed", False):
    return _make_stream(None, _Descriptor(1, OSError(errno.EBADF, "it is closed")))
  is_pythons = stream is sys.__stdout__
  if is_pythons:
    return _make_stream(stream, _Descriptor(stream.fileno()))
  return cast(TextIO, _Unfailing(stream))


def _make_stream(old: TextIO | None, descriptor: _Descriptor) -> io.TextIOWrapper:
  if old is not None:
    with contextlib.suppress(OSError):
      old.flush()
  return io.TextIOWrapper(
    io.BufferedWriter(descriptor),
    encoding=old.encoding if old is not None else "utf-8",
    errors="backslashreplace",
    line_buffering=True,
  )


def lost() -> str | None:
  """Why output to standard output was lost; None if none was, or the reader closed the pipe."""
  sys.stdout.flush()
  descriptor = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
  failure = descriptor.failure if isinstance(descriptor, _Descriptor) else None
  if failure is None or failure.errno == errno.EPIPE:
    return None
  return failure.strerror or str(failure)


def is_closed() -> bool:
  """Whether nobody can read standard output any more: its pipe is closed, or a write failed."""
  descriptor = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
  return isinstance(descriptor, _Descriptor) and descriptor.failure is not None


def print_json(value: Any) -> None:
  """Prints a value as one line of JSON, in ASCII where standard output's encoding needs it."""
  text = dump_json(value, only_ascii=False)
  try:
    # None: a test's stream of characters.
    text.encode(sys.stdout.encoding or "utf-8")
    is_safe = printable(text) == text
  except UnicodeEncodeError:
    is_safe = False
  print(text if is_safe else dump_json(value))


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


class _Notes:
  """Whether `note` prints; a command's --quiet silences it."""

  quiet = False


def be_quiet(quiet: bool) -> None:
  """Sets whether notes are left out."""
  _Notes.quiet = quiet


def is_quiet() -> bool:
  """Whether notes are left out."""
  return _Notes.quiet


def note(sentence: object) -> None:
  """Prints a note on standard error, as `say`; nothing if the command is quiet."""
  if not _Notes.quiet:
    say(f"note: {sentence}")


def environment_mistake(error: BaseException) -> str:
  """A sentence on the environment variable that JAX refused at import; '' for other errors."""
  found = re.search(r"(?:environment '(JAX_\w+)'|JAX flag (jax_\w+))", str(error))
  name = (found[1] or found[2]).upper() if found and isinstance(error, ValueError) else ""
  if name not in os.environ:
    return ""
  return f"{name}={os.environ[name]} is not a value that JAX takes: set it to another, or unset it."


def report(error: BaseException, folder: pathlib.Path | None, name: str = "traceback.txt") -> None:
  """Writes the traceback of an unexpected exception to a file, and prints a sentence about it.

  Args:
    error: the exception.
    folder: the folder of the file; the temporary folder if None, or if writing fails.
    name: the file's name in `folder`.
  """
  text = "".join(traceback.format_exception(error))
  first = next(iter(str(error).strip().splitlines()), "")[:200].rstrip(".")
  path = _keep(text, folder, name)
  where = f"the traceback is in {path}" if path else "there is no room for the traceback"
  reason = f" ({first})" if first else ""
  say(f"an unexpected error ended this command, {type(error).__name__}{reason}: {where}.")


def _keep(text: str, folder: pathlib.Path | None, name: str) -> pathlib.Path | None:
  """Writes the text and returns its path; None if no file can be written."""
  data = text.encode("utf-8", "backslashreplace").decode()
  if folder is not None:
    try:
      write_atomically(folder / name, data)
      return folder / name
    except OSError:
      pass
  try:
    with tempfile.NamedTemporaryFile(
      "w", encoding="utf-8", prefix="jaxspeed_", suffix=".txt", delete=False
    ) as file:
      file.write(data)
    return pathlib.Path(file.name)
  except OSError:
    return None
