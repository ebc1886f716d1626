"""Another program, run for a limited time, whatever it does."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a program ended: its exit code, None if it was killed after its time, and its output."""

  code: int | None
  out: str
  error: str


# A program that prints without end fills no memory here.
_MOST_BYTES = 1 << 20


def run(
  command: Sequence[str],
  *,
  seconds: float,
  text: str = "",
  environment: Mapping[str, str] | None = None,
) -> Ended:
  """Runs a program and kills it, with all that it started, when its time is over.

  Its output goes to nameless files: with pipes, a grandchild that lives on could hold them open.

  Args:
    command: the program and its arguments.
    seconds: its time.
    text: its standard input.
    environment: its environment; None: this process's.

  Raises:
    OSError: it cannot be started.
  """
  with contextlib.ExitStack() as stack:
    given, out, error = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
    given.write(text.encode())
    given.seek(0)
    process = subprocess.Popen(
      command, stdin=given, stdout=out, stderr=error, start_new_session=True, env=environment
    )
    code: int | None
    try:
      code = process.wait(timeout=max(0.1, seconds))
    except subprocess.TimeoutExpired:
      code = None
    finally:
      with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)  # longer, and it hangs in the kernel
    texts = []
    for file in (out, error):
      file.seek(0)
      texts.append(file.read(_MOST_BYTES).decode(errors="replace"))
    return Ended(code, *texts)
