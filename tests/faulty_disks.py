"""Faults of disks, made for real on runs of jaxspeed.train (`faulty_runs.py`)."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from faulty_runs import (
  START,
  WITHIN,
  FaultyRun,
  Lab,
  Row,
  resumed_from,
  sentence,
)
from local_cluster import wait_until

from jaxspeed.errors import DONE, MISTAKE
from jaxspeed.run.checkpoint import MANIFEST


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


def fill(folder: pathlib.Path) -> pathlib.Path:
  """Takes all that is left of a disk."""
  filler = folder / "filler"
  with filler.open("ab", buffering=0) as file:
    for size in (1 << 16, 1 << 10, 1):
      with contextlib.suppress(OSError):
        while file.write(b"\0" * size):
          pass
  return filler


def fill_disk(lab: Lab, count: int, on_error: str) -> Row:
  """The disk of a run is full for a while."""
  run = lab.new_run("resident", f"--config.checkpoint.on_error={on_error}")
  with small_disk(run.workdir) as disk:
    with run.started(count) as group:
      run.wait_for_save(group)
      filler = fill(disk)
      begun = time.monotonic()
      if on_error == "stop":
        ended = group.wait(WITHIN)
        seconds = time.monotonic() - begun
        assert [e.code for e in ended] == [MISTAKE] * count
        printed = sentence(ended[0].err, "could not be written")
        assert "the run stops, the last whole checkpoint is of step" in printed
      else:
        group[0].wait_for("could not be written", WITHIN)
        seconds = time.monotonic() - begun
        time.sleep(1.0)  # of some epochs' rows
      kept = run.whole()
      filler.unlink()
      if on_error == "continue":
        ended = group.wait(START)
        assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
        printed = sentence(ended[0].out, "the run continues")
        assert "(No space left on device)" in printed
        kept_in_words = f"step {kept} stayed; the run went on to its end"
    if on_error == "stop":
      assert resumed_from(run.finish(count)) == kept
      kept_in_words = f"step {kept} stayed; with room, the same command went on from it"
    assert not run.is_saving()
    run.assert_as_undisturbed(count)
  fault = f"disk full, {count} process{'es' * (count > 1)}, checkpoint.on_error={on_error}"
  return Row(fault, printed, tuple(e.code for e in ended), seconds, kept_in_words)


def make_unwritable(lab: Lab, count: int) -> Row:
  """The folder of the checkpoints turns read-only, and later back."""
  run = lab.new_run("resident")
  with small_disk(run.workdir / "checkpoints") as disk:

    def remount(mode: str) -> bool:
      command = ["mount", "-o", f"remount,{mode}", str(disk)]
      return subprocess.run(command, capture_output=True).returncode == 0

    with run.started(count) as group:
      run.wait_for_save(group)
      wait_until(lambda: remount("ro"), 30, "a moment in which nothing is written")
      begun = time.monotonic()
      group[0].wait_for("could not be written", WITHIN)
      seconds = time.monotonic() - begun
      kept = run.whole()
      assert remount("rw")
      ended = group.wait(START)
      assert [e.code for e in ended] == [DONE] * count, [e.err for e in ended]
      printed = sentence(ended[0].out, "the run continues")
    run.assert_as_undisturbed(count)
  fault = f"the folder turns read-only, {count} process{'es' * (count > 1)}"
  after = f"step {kept} stayed; the run went on to its end"
  return Row(fault, printed, tuple(e.code for e in ended), seconds, after)


def damage(run: FaultyRun, kind: str, count: int = 2) -> Row:
  """What is in the folder of a run that was asked to end is damaged; the same command goes on."""
  folder = run.workdir / "checkpoints"
  newest = run.saved()
  if kind == "truncated file":
    files = [p for p in (folder / str(newest)).rglob("d/*") if p.is_file()]
    file = max(files, key=lambda p: p.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])  # Orbax may not read the last byte
    words, at = "cannot be read", newest
  elif kind == "missing manifest":
    (folder / str(newest) / MANIFEST).unlink()
    words, at = "there is no finished checkpoint", newest
  else:
    at = 999_999
    (folder / str(at)).mkdir()
    (folder / str(at) / "notes.txt").write_text("mine\n")
    words = "there is no finished checkpoint"
  expected = run.saved() if kind != "truncated file" else _older(folder, newest)
  with run.started(count) as group:
    begun = time.monotonic()
    group[0].wait_for("starting ", START)
    seconds = time.monotonic() - begun
    run.wait_for_save(group)
    group[0].signal(signal.SIGTERM)
    ended = group.wait(WITHIN)
    assert [e.code for e in ended] == [DONE] * count
  printed = sentence(ended[0].err, "is passed over")
  assert f"checkpoints/{at} is passed over" in printed and words in printed
  assert resumed_from(ended[0].out) == expected, ended[0].out
  if at == 999_999:
    assert (folder / str(at) / "notes.txt").exists()  # not ours to remove
    shutil.rmtree(folder / str(at))
  codes = tuple(e.code for e in ended)
  return Row(f"{kind} in a checkpoint", printed, codes, seconds, f"went on from step {expected}")


def _older(folder: pathlib.Path, step: int) -> int:
  steps = [int(p.parent.name) for p in folder.glob(f"*/{MANIFEST}")]
  return max(s for s in steps if s < step)
