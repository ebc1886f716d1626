"""Counts of the warnings that image decoders print for damaged images that they could decode.

libjpeg writes "Corrupt JPEG data: ..." to descriptor 2 for an image with surplus or missing bytes,
without its name, and has no setting against it. A separate process reads descriptor 2, collects
such lines and passes all others on, so that the last words of a crashing process are not lost.
"""

import collections
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping

from jaxspeed.config import output

# First words of the warnings of libjpeg (jerror.h) and libpng.
_BEGINNINGS = (
  "Corrupt JPEG data",
  "Premature end of JPEG file",
  "Inconsistent progression sequence",
  "Invalid SOS parameters",
  "Unknown Adobe color transform",
  "Warning: unknown JFIF revision",
  "libpng warning",
)
# Prefix of the lines that this process writes so that `take` knows when it has read enough.
_MARK = f"jaxspeed-{os.urandom(8).hex()} "
_WAIT_SECONDS = 2.0
# The largest number of different warnings named in a message.
_NAMED = 3
_PROGRAM = """
import os, signal, sys
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
  signal.signal(each, signal.SIG_IGN)
counted = tuple(map(os.fsencode, sys.argv[1:]))
for line in sys.stdin.buffer:
  try:
    os.write(1 if line.startswith(counted) else 2, line)
  except OSError:
    pass
"""


class _Filter:
  """The process that reads descriptor 2, and the file in which it collects decoders' lines."""

  def __init__(self) -> None:
    """Starts the process.

    Raises:
      OSError: the file or the process cannot be created.
    """
    self._file = tempfile.TemporaryFile()
    self._read, self._marks = 0, 0
    reading, writing = os.pipe()
    try:
      self._process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, *_BEGINNINGS, _MARK],
        stdin=reading,
        stdout=self._file,
        stderr=output.error_descriptor(),
        start_new_session=True,  # so that a terminal's signals do not reach it
      )
      os.dup2(writing, 2)
    finally:
      os.close(reading)
      os.close(writing)
    self._pipe = _identity()

  def is_read(self) -> bool:
    """Whether the process is alive and descriptor 2 is still its input."""
    return _identity() == self._pipe and self._process.poll() is None

  def take(self) -> collections.Counter[str]:
    """The lines since the last call, including those written just now."""
    self._marks += 1
    mark = f"{_MARK}{self._marks}"
    if self.is_read():
      with contextlib.suppress(OSError):
        os.write(2, f"{mark}\n".encode())
    content, end = b"", time.monotonic() + _WAIT_SECONDS
    while True:
      more = os.pread(self._file.fileno(), 1 << 20, self._read)
      self._read += len(more)
      content += more
      if f"{mark}\n".encode() in content or not self.is_read() or time.monotonic() > end:
        break
      if not more:
        time.sleep(0.002)
    lines = content.decode(errors="replace").splitlines()
    return collections.Counter(line for line in lines if not line.startswith(_MARK))


def _identity() -> tuple[int, int] | None:
  try:
    stat = os.fstat(2)
  except OSError:
    return None
  return stat.st_dev, stat.st_ino


_filter: _Filter | None = None
_STARTING = threading.Lock()


def catch() -> None:
  """Starts to count decoders' lines; does nothing outside a command (`output.guard`)."""
  global _filter
  with _STARTING:
    if not output.is_guarded() or (_filter is not None and _filter.is_read()):
      return
    with contextlib.suppress(OSError):  # the lines are printed then
      _filter = _Filter()


def take() -> collections.Counter[str]:
  """Decoders' lines since the last call, with their counts; empty if `catch` has no effect."""
  return _filter.take() if _filter is not None else collections.Counter()


def describe(lines: Mapping[str, int], total: int) -> str:
  """A sentence on the lines that `take` returned.

  Args:
    lines: the lines of this process, with their counts.
    total: the number of lines in all processes.
  """
  common = collections.Counter(lines).most_common(_NAMED)
  more = f" and {len(lines) - _NAMED:,} other warnings" if len(lines) > _NAMED else ""
  named = ", ".join(f'"{line}" ({count:,})' for line, count in common)
  return (
    f"the decoder warned {total:,} times of damaged images, which it decoded all the same"
    f"{f': {named}{more}' if named else ''}"
  )
