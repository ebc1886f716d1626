"""Faults of disks, made for real on runs of jaxspeed.train (`faulty_runs.py`)."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from faulty_runs import START, WITHIN, Lab, came_to, resumed_from, sentence
from local_cluster import wait_until

from jaxspeed.errors import DONE, MISTAKE


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, megabytes: int = 8) -> Iterator[pathlib.Path]:
  """A file system of its own; skips the test where none can be mounted."""
  if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
    pytest.skip("a small disk is mounted by root on Linux")
  folder.mkdir(parents=True, exist_ok=True)
  options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
  if subprocess.run(["mount", *options], capture_output=True).returncode:
    pytest.skip("tmpfs cannot be mounted")
  try:
    yield folder
  finally:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


Mend = Callable[[], object]


def fill(folder: pathlib.Path) -> Mend:
  """Takes all that is left of a disk; returns what gives it back."""
  filler = folder / "filler"
  with filler.open("ab", buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      with contextlib.suppress(OSError):
        while file.write(b"\0" * size):
          pass
  return filler.unlink


def make_read_only(folder: pathlib.Path) -> Mend:
  """Lets nobody write to a disk; returns what lets them again."""

  def remount(mode: str) -> bool:
    command = ["mount", "-o", f"remount,{mode}", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0

  wait_until(lambda: remount("ro"), 30, "a moment in which nothing is written")
  return lambda: remount("rw")


def break_disk(lab: Lab, count: int, fault: str, on_error: str) -> str:
  """The disk of a run is full for a while, or that of its checkpoints read-only."""
  run = lab.new_run("resident", f"--config.checkpoint.on_error={on_error}")
  full, stops = fault == "full", on_error == "stop"
  with small_disk(run.workdir if full else run.workdir / "checkpoints") as disk:
    with run.started(count) as group:
      run.wait_for_save(group)
      mend = (fill if full else make_read_only)(disk)
      begun = time.monotonic()
      if stops:
        ended = group.wait(WITHIN)
        assert [e.code for e in ended] == [MISTAKE] * count
        seen = came_to(begun, sentence(ended[0].err, "could not be written"))
        assert "the run stops, the last whole checkpoint is of step" in seen
      else:
        group[0].wait_for("could not be written", WITHIN)
        seen = came_to(begun, "")
        time.sleep(1.0)  # of some epochs' rows
      kept = run.whole()
      mend()
      if not stops:
        ended = group.wait(START)
        assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
        seen += sentence(ended[0].out, "the run continues")
        assert not full or "(No space left on device)" in seen
    if stops:  # with room, the same command resumes
      assert resumed_from(run.finish(count)) == kept
    assert not run.is_saving()
    run.assert_as_undisturbed(count)
  return seen
