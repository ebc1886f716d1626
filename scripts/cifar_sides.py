"""What `bench_cifar.py` compares: `jaxspeed.train` and PyTorch's scripts, held between runs."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
import numpy as np

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


# Its runs, one at each `next`; the first one, None, is its warm-up.
Runs = Iterator[Run | None]
# Lets a process go on to its next pause, and returns the lines that it prints until there.
GoOn = Callable[[], list[str]]


class Ended(Exception):
  """A held process ended; the message says how."""


@contextlib.contextmanager
def held(
  arguments: list[str], *, pattern: str, folder: pathlib.Path, **environment: str
) -> Iterator[GoOn]:
  """A process that pauses before its start and after each line of a pattern (`run_held.py`).

  The block gets what lets it go on, which raises `Ended` if it ends before it pauses. The process
  is ended with the block, by force if it is still there after ten seconds.

  Args:
    arguments: what to run: the arguments of run_held.py after the pattern.
    pattern: regular expression of the lines.
    folder: where it runs.
    environment: variables to add.
  """
  with tempfile.TemporaryFile("w+") as errors:
    process = subprocess.Popen(
      [sys.executable, str(_RUN_HELD), pattern, *arguments],
      cwd=folder,
      env=os.environ | environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    said, permit, pauses = process.stdout, process.stdin, re.compile(pattern)

    def go_on() -> list[str]:
      with contextlib.suppress(OSError):  # it has ended, which is said below
        permit.write("\n")
        permit.flush()
      lines = []
      for line in said:
        lines.append(line.rstrip("\n"))
        if pauses.match(line):
          return lines
      code = process.wait()
      errors.seek(0)
      raise Ended(f"its process ended with code {code}: {benchmarking.last(errors.read())}")

    try:
      yield go_on
    finally:
      with contextlib.suppress(OSError):
        permit.close()
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
      process.kill()
      process.wait()


@contextlib.contextmanager
def peer(script: pathlib.Path, folder: pathlib.Path) -> Iterator[Runs]:
  """A script that prints airbench's table; its first run, on random labels, warms up.

  Args:
    script: the file.
    folder: where it runs; cifar10/ inside it holds its images.

  Raises:
    Ended: in the block: it ended, or its table lacks a column.
  """

  def runs(go_on: GoOn) -> Runs:
    go_on_to, columns = go_on(), list[str]()
    for number in itertools.count():
      for line in go_on_to:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        columns = cells if "time_seconds" in cells else columns
      row = dict(zip(columns, cells, strict=False))
      try:
        yield Run(float(row["time_seconds"]), float(row["tta_val_acc"])) if number else None
      except (KeyError, ValueError):
        raise Ended(f"its table has no number time_seconds or tta_val_acc: {row}") from None
      go_on_to = go_on()

  with held([str(script.resolve())], pattern=_END_OF_RUN, folder=folder) as go_on:
    yield runs(go_on)


@contextlib.contextmanager
def ours(
  train: list[str], runs: int, workdir: pathlib.Path, about: dict[str, Any], *, alone: bool
) -> Iterator[Runs]:
  """`jaxspeed.train` with many seeds and one compilation.

  Args:
    train: the arguments of Python for a run of it, without runs and --workdir.
    runs: how many runs will be asked for.
    workdir: a folder that is not there yet.
    about: gets the device of the last run, and its peak memory, None where that is not known.
    alone: whether it may take most of the device's memory, as JAX does by default.

  Raises:
    UserError: in the block: it ended.
  """
  # One run more than wanted: the process is held before that run, and ends there.
  arguments = [*train, f"--config.runs={runs + 1}", f"--workdir={workdir}"]
  more = {} if alone else {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}

  def take(go_on: GoOn) -> Runs:
    try:
      go_on()
      yield None
      for number in range(runs):
        go_on()
        folder = workdir / f"run_{number:03d}"
        result = json.loads((folder / "result.json").read_text())
        about["device"] = result["device"]
        about["memory_gb"] = read_metrics(folder)[-1].get("memory_gb")
        shutil.rmtree(folder)
        yield Run(result["seconds"]["train"], result["top1"])
    except Ended as error:
      raise UserError(f"jaxspeed.train: {error}") from None

  with held(arguments, pattern=_START_OF_RUN, folder=pathlib.Path.cwd(), **more) as go_on:
    yield take(go_on)


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
