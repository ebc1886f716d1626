"""The process of a part of a day on a GPU (`gpu_day.py`), and the GPU's clocks while it runs."""

import contextlib
import os
import pathlib
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import benchmarking

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLOCKS = ("sm_mhz", "memory_mhz", "watts", "degrees_c")
_POLL_S, _CLOCK_S = 0.1, 5.0


def sample_clocks() -> list[float] | None:
  """`CLOCKS` of the first GPU now; None where they are unknown."""
  query = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu"
  command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
  try:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5)
    return [float(cell) for cell in done.stdout.splitlines()[0].split(",")]
  except (OSError, subprocess.SubprocessError, ValueError, IndexError):
    return None


class PartProcess:
  """A part's process, its output in a file.

  Args:
    command: its words.
    log: the file.
    environment: its variables.
    lock: a descriptor that it inherits, so that the folder stays locked while it runs.
  """

  def __init__(
    self, command: list[str], log: pathlib.Path, environment: Mapping[str, str], lock: int
  ) -> None:
    self._log = log
    self._clocks: list[list[float]] = []
    with log.open("w") as output:
      self._process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(lock,),
      )

  def wait(self, seconds: float) -> tuple[str, str]:
    """Waits for its end, at most some seconds; "done", "cut off" or "failed", and why."""
    deadline, next_sample = time.monotonic() + seconds, time.monotonic() + _CLOCK_S
    while (code := self._process.poll()) is None:
      if time.monotonic() > deadline:
        return "cut off", f"after {seconds / 60:.1f} min"
      time.sleep(_POLL_S)
      if time.monotonic() > next_sample:
        next_sample += _CLOCK_S
        self._clocks += [sample] if (sample := sample_clocks()) else []
    said = benchmarking.last(self._log.read_text(errors="replace"))
    return ("failed", f"code {code}: {said}") if code else ("done", "")

  def clocks(self) -> dict[str, Any]:
    """The least, the median and the greatest of each of `CLOCKS` so far; {} if unknown."""
    return {
      kind: {"min": min(each), "median": statistics.median(each), "max": max(each)}
      for kind, *each in zip(CLOCKS, *self._clocks, strict=True)
      if each
    }

  def stop(self) -> None:
    """Ends it and its children: by Ctrl-C, so that they tidy up, then by force."""
    # Force is for its children too, when it has ended before them.
    for number, seconds in ((signal.SIGINT, 8), (signal.SIGKILL, 5)):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self._process.pid, number)
      with contextlib.suppress(subprocess.TimeoutExpired):
        self._process.wait(seconds)
