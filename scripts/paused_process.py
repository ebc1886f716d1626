"""A process that pauses until it is spoken to, and answers in lines."""

import contextlib
import queue
import subprocess
import threading


class PausedProcess:
  """A process with pipes at its input and output, which a thread reads line by line.

  Args:
    process: the process, started with text pipes.
  """

  def __init__(self, process: "subprocess.Popen[str]") -> None:
    self._process = process
    # Lines without their ends; None once the process has closed its output.
    self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=self._read, daemon=True).start()

  def say(self, line: str) -> None:
    """Writes a line to its input; raises an OSError if it has ended."""
    assert self._process.stdin is not None
    self._process.stdin.write(line + "\n")
    self._process.stdin.flush()

  def close(self) -> None:
    """Ends it, by force if it is still there after ten seconds."""
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    try:
      self._process.wait(10)
    except subprocess.TimeoutExpired:
      self.kill()

  def kill(self) -> None:
    """Ends it by force."""
    self._process.kill()
    self._process.wait()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      self._lines.put(line.rstrip("\n"))
    self._lines.put(None)
