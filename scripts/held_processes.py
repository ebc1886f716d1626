"""Processes that are held after certain lines of their output (`run_held.py`)."""

import contextlib
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

_RUN_HELD = pathlib.Path(__file__).resolve().with_name("run_held.py")


class Ended(Exception):
  """A held process ended or fell silent; the message says how."""


class Held:
  """A process that pauses after each line that matches a pattern (`run_held.py`).

  Args:
    arguments: what to run: the arguments of run_held.py after the pattern.
    pattern: regular expression of the lines.
    folder: where it runs.
    seconds: the longest time from one such line to the next.
    environment: variables to add.
  """

  def __init__(
    self,
    arguments: list[str],
    *,
    pattern: str,
    folder: pathlib.Path,
    seconds: float,
    environment: dict[str, str] | None = None,
  ) -> None:
    self._pattern, self._seconds = re.compile(pattern), seconds
    self._errors = tempfile.TemporaryFile("w+")
    self._process = subprocess.Popen(
      [sys.executable, str(_RUN_HELD), pattern, *arguments],
      cwd=folder,
      env=os.environ | (environment or {}),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
    )
    # Lines without their ends; None once the process has closed its output.
    self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=self._read, daemon=True).start()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      self._lines.put(line.rstrip("\n"))
    self._lines.put(None)

  def resume(self) -> None:
    """Lets it run to the next matching line.

    Raises:
      Ended: it has ended.
    """
    assert self._process.stdin is not None
    try:
      self._process.stdin.write("\n")
      self._process.stdin.flush()
    except OSError:
      raise Ended(self._last_words()) from None

  def wait(self) -> list[str]:
    """Returns the lines it has printed, once it pauses after the last of them.

    Raises:
      Ended: it ended, or took too long.
    """
    deadline = time.monotonic() + self._seconds
    lines: list[str] = []
    while not lines or not self._pattern.match(lines[-1]):
      try:
        line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
      except queue.Empty:
        self._process.kill()
        raise Ended(f"no run ended within {self._seconds:g} s") from None
      if line is None:
        raise Ended(self._last_words())
      lines.append(line)
    return lines

  def close(self) -> None:
    """Ends it, by force if it is still there after ten seconds."""
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(10)
    self._process.kill()
    self._process.wait()
    self._errors.close()

  def _last_words(self) -> str:
    """Why its process ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(10)
    self._errors.seek(0)
    last = last_line(self._errors.read())
    return f"its process ended with code {self._process.returncode}: {last}"


def last_line(text: str) -> str:
  """The last line of a text that is not blank."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else "it said nothing"
