"""Another program, run for a limited time, whatever it does."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from jaxspeed.errors import printable
from jaxspeed.files import parse_json

# A program that prints without end fills no memory here.
_MOST_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a program ended: its exit code, None if it was killed after its time, and its output."""

  code: int | None
  lines: list[dict[str, Any]]
  error: str

  @property
  def reason(self) -> str:
    """The line of its standard error that most likely says why it failed."""
    lines = [line for line in self.error.splitlines() if line.strip(" *~^")]
    # XLA's sentence on a flag comes before its help, an exception's after its traceback.
    flag = [line for line in lines if "XLA_FLAGS" in line or " for flag " in line][:1]
    errors = [line for line in lines if "rror" in line]
    telling = (flag or errors or lines or [f"exit code {self.code}"])[-1]
    words = telling.split("] ")[-1].strip()  # without abseil's time and place
    return printable(words.removeprefix("jaxspeed.errors.UserError: ")[:300])


def run(module: str, *arguments: str, seconds: float, **variables: str) -> Ended:
  """Runs a module, and kills it when its time is over.

  Its output goes to nameless files: with pipes, a grandchild that lives on could hold them open.

  Args:
    module: its name; it prints a JSON object a line.
    arguments: what it is given.
    seconds: its time.
    variables: of its environment, beside this process's.
  """
  # What is imported here is imported there; nothing is cached, and no memory taken ahead.
  variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
  variables |= {"JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  words = [sys.executable, "-m", module, *arguments]
  with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
    process = subprocess.Popen(
      words, stdout=out, stderr=error, start_new_session=True, env=os.environ | variables
    )
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
      try:
        code = process.wait(timeout=seconds)
      finally:
        with contextlib.suppress(OSError):
          os.killpg(process.pid, signal.SIGKILL)
        if code is None:
          process.wait(timeout=0.5)  # longer, and it hangs in the kernel
    texts = []
    for file in (out, error):
      file.seek(0)
      texts.append(file.read(_MOST_BYTES).decode(errors="replace"))
  found = []
  for line in texts[0].splitlines():
    with contextlib.suppress(ValueError):  # what libraries print
      found.append(parse_json(line, dict[str, Any]))
  return Ended(code, found, texts[1])
