"""A file that grows during a run, also while its disk is full."""

import pathlib


class AppendedFile:
  """A file whose ends are written at once; what the disk has no room for waits.

  Args:
    path: the file, created if needed.
  """

  def __init__(self, path: pathlib.Path) -> None:
    self._file = open(path, "ab", buffering=0)
    self._waiting = b""

  def append(self, content: bytes = b"") -> str:
    """Writes what waits, and `content`; returns why it failed, or ''."""
    self._waiting += content
    try:
      while self._waiting:
        self._waiting = self._waiting[self._file.write(self._waiting) :]
    except OSError as error:
      return f"{self._file.name} could not be written ({error.strerror or error})"
    return ""

  def close(self) -> None:
    """Closes the file; what still waits is lost."""
    self.append()
    self._file.close()
