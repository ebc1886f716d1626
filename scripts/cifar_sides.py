"""What `bench_cifar.py` compares: `jaxspeed.train` and PyTorch's scripts, held between runs."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import benchmarking
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config import stored as stored_lib
from jaxspeed.errors import UserError
from jaxspeed.records.writer import read_metrics

_RUN_HELD = pathlib.Path(__file__).resolve().with_name("run_held.py")
_PEER_SCRIPTS = ("airbench94_muon.py", "cifar10_speedrun.py")
# The row that airbench prints after a run; the line that `jaxspeed.train` prints before one.
_END_OF_RUN = r"\|.*\|\s*eval\s*\|"
_START_OF_RUN = r"run \d+ of \d+, seed"
_PEER_IMAGES = """\
import numpy, torch
for split in ("train", "test"):
  images, labels = (torch.from_numpy(numpy.load(f"{split}_{x}.npy")) for x in ("images", "labels"))
  classes = [str(i) for i in range(int(labels.max()) + 1)]
  torch.save({"images": images, "labels": labels.long(), "classes": classes}, f"{split}.pt")
"""


@dataclasses.dataclass(frozen=True)
class Run:
  """Seconds of one run by airbench's rule, and its accuracy as a fraction."""

  seconds: float
  accuracy: float


class Ended(Exception):
  """A held process ended; the message says how."""


class Side:
  """A process that makes many runs, and pauses after each line of a pattern (`run_held.py`).

  Args:
    arguments: what to run: the arguments of run_held.py after the pattern.
    pattern: regular expression of the lines.
    folder: where it runs.
    environment: variables to add.

  Attributes:
    runs: its runs so far.
  """

  def __init__(
    self,
    arguments: list[str],
    *,
    pattern: str,
    folder: pathlib.Path,
    **environment: str,
  ) -> None:
    self.runs: list[Run] = []
    self._pattern = re.compile(pattern)
    self._errors = tempfile.TemporaryFile("w+")
    self._process = subprocess.Popen(
      [sys.executable, str(_RUN_HELD), pattern, *arguments],
      cwd=folder,
      env=os.environ | environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
    )

  def run(self) -> None:
    """Lets it do its next run, and adds that to `runs`.

    Raises:
      Ended: it failed.
    """
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):  # `wait` says why it has ended
      self._process.stdin.write("\n")
      self._process.stdin.flush()
    self.runs.append(self._read_run(self.wait()))

  def _read_run(self, lines: list[str]) -> Run:
    """The run that has ended, after which it printed these lines."""
    raise NotImplementedError

  def wait(self) -> list[str]:
    """The lines that it has printed, once it pauses after the last of them.

    Raises:
      Ended: it ended.
    """
    assert self._process.stdout is not None
    lines = []
    for line in self._process.stdout:
      lines.append(line.rstrip("\n"))
      if self._pattern.match(line):
        return lines
    code = self._process.wait()
    self._errors.seek(0)
    raise Ended(f"its process ended with code {code}: {benchmarking.last(self._errors.read())}")

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


class Peer(Side):
  """A script that prints airbench's table; its first run, on random labels, warms up.

  Args:
    script: the file.
    folder: where it runs; cifar10/ inside it holds its images.
  """

  def __init__(self, script: pathlib.Path, folder: pathlib.Path) -> None:
    super().__init__([str(script.resolve())], pattern=_END_OF_RUN, folder=folder)
    self._columns: list[str] = []

  def wait(self) -> list[str]:
    """The cells of the row after a run."""
    for line in super().wait():
      cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
      if "time_seconds" in cells:
        self._columns = cells
    return cells

  def _read_run(self, lines: list[str]) -> Run:
    row = dict(zip(self._columns, lines, strict=False))
    try:
      return Run(float(row["time_seconds"]), float(row["tta_val_acc"]))
    except (KeyError, ValueError):
      raise Ended(f"its table has no number time_seconds or tta_val_acc: {row}") from None


class Ours(Side):
  """`jaxspeed.train` with many seeds and one compilation.

  Args:
    train: the arguments of Python for a run of it, without runs and --workdir.
    runs: how many runs will be asked for.
    scratch: a folder; the runs' own are made in it.
    alone: whether it may take most of the device's memory, as JAX does by default.

  Attributes:
    config: after `warm_up`, as the runs have resolved it.
    result: the result.json of the last run.
    memory_gb: the peak memory of the last run; None: not known.

  Raises:
    UserError: in its methods: it failed.
  """

  config: ConfigDict

  result: dict[str, Any] = {}
  memory_gb: float | None = None

  def __init__(self, train: list[str], runs: int, scratch: pathlib.Path, *, alone: bool) -> None:
    self._workdir = scratch / "runs"
    super().__init__(
      # One run more than wanted: the process is held before that run, and ends there.
      [*train, f"--config.runs={runs + 1}", f"--workdir={self._workdir}"],
      pattern=_START_OF_RUN,
      folder=pathlib.Path.cwd(),
      **({} if alone else {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}),
    )

  def warm_up(self) -> None:
    """Waits until it has compiled and pauses before its first run."""
    self.wait()
    self.config = stored_lib.load(self._workdir / "config.json")

  def wait(self) -> list[str]:
    try:
      return super().wait()
    except Ended as error:
      raise UserError(f"jaxspeed.train: {error}") from None

  def _read_run(self, lines: list[str]) -> Run:
    folder = self._workdir / f"run_{len(self.runs):03d}"
    self.result = json.loads((folder / "result.json").read_text())
    self.memory_gb = read_metrics(folder)[-1].get("memory_gb")
    shutil.rmtree(folder)
    return Run(self.result["seconds"]["train"], self.result["top1"])


def find_peers(paths: list[str]) -> dict[str, pathlib.Path]:
  """The peers' scripts by name: files as given, and the known scripts of each folder.

  Raises:
    UserError: a path does not exist, or a folder has none of the known scripts.
  """
  found: list[pathlib.Path] = []
  for path in map(pathlib.Path, paths):
    # Scripts in the folder itself come before copies in its subfolders.
    scripts = [[*path.glob(name), *sorted(path.glob(f"*/{name}"))][:1] for name in _PEER_SCRIPTS]
    known = [path] if path.is_file() else [script for each in scripts for script in each]
    if not known:
      raise UserError(
        f"--peer={path}: there is no such file, nor a folder with {' or '.join(_PEER_SCRIPTS)}."
      )
    found += known
  stems = [script.stem for script in found]
  return {s.stem if stems.count(s.stem) == 1 else str(s): s for s in found}


def write_peer_images(arrays: Any, folder: pathlib.Path) -> str | None:
  """Writes our images where the peers' loaders look, so that both sides train on the same ones.

  Runs in its own process, because two frameworks in one share neither GPU nor libraries well.
  Returns what went wrong (most often, PyTorch is missing), or None.
  """
  folder.mkdir(parents=True)
  for split, images, labels in (
    ("train", arrays.train_images, arrays.train_labels),
    ("test", arrays.eval_images, arrays.eval_labels),
  ):
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", labels)
  command = [sys.executable, "-c", _PEER_IMAGES]
  done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
  return benchmarking.last(done.stderr) if done.returncode else None
