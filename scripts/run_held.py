"""Runs a Python program unchanged, and pauses it after certain lines of its output.

    python scripts/run_held.py PATTERN SCRIPT.py ARGUMENTS...
    python scripts/run_held.py PATTERN -m MODULE ARGUMENTS...

Before its start, and after each line that matches PATTERN, a regular expression, the program waits
for a line on standard input, and ends when that input ends. So two programs that each make many
runs in one process can take turns on a GPU and compile only once: a program pauses where it prints,
with nothing under way. `bench_cifar.py` uses this script, by `cifar_sides.py`.
"""

import pathlib
import re
import runpy
import sys


class HeldOutput:
  """Standard output that waits for a line of `permissions` after each line matching `pattern`."""

  def __init__(self, output, permissions, pattern: str):
    self._output, self._permissions = output, permissions
    self._pattern, self._line = re.compile(pattern), ""

  def write(self, text: str) -> int:
    self._output.write(text)
    *lines, self._line = re.split(r"[\r\n]", self._line + text)
    if any(self._pattern.match(line) for line in lines):
      self._output.flush()
      if not self._permissions.readline():
        raise SystemExit
    return len(text)

  def __getattr__(self, name):
    return getattr(self._output, name)


def main():
  pattern, *arguments = sys.argv[1:]
  sys.stdout = HeldOutput(sys.stdout, sys.stdin, pattern)
  if not sys.stdin.readline():
    return
  if arguments[0] == "-m":
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    return
  sys.argv = arguments
  sys.path[0] = str(pathlib.Path(arguments[0]).parent)
  runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
  main()
