"""What `bench_cifar.py` compares: `jaxspeed.train` and PyTorch's scripts, held between runs."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
from held_processes import Ended, Held, last_line
from ml_collections import ConfigDict

from jaxspeed.config import stored as stored_lib
from jaxspeed.errors import UserError
from jaxspeed.records.writer import read_metrics

_PEER_SCRIPTS = ("airbench94_muon.py", "cifar10_speedrun.py")
_RECIPE = """\
import pathlib
from jaxspeed.config import stored
def get_config():
  return stored.load(pathlib.Path({path!r}))
"""
# The row that airbench prints after a run; the line that `jaxspeed.train` prints before one.
_END_OF_RUN = r"\|.*\|\s*eval\s*\|"
_START_OF_RUN = r"run \d+ of \d+, seed"
_MOST_SECONDS = 600.0  # for our compilation, or one of our runs
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


class Peer:
  """A script that prints airbench's table, held between its runs; its first run warms up.

  Args:
    script: the file.
    folder: where it runs; cifar10/ inside it holds its images.
    seconds: the longest time for a run, compiling included.
  """

  def __init__(self, script: pathlib.Path, folder: pathlib.Path, *, seconds: float) -> None:
    self._columns: list[str] = []
    self._held = Held([str(script.resolve())], pattern=_END_OF_RUN, folder=folder, seconds=seconds)
    self.close = self._held.close

  def warm_up(self) -> None:
    """Waits for its first run, on random labels, which compiles.

    Raises:
      Ended: it failed.
    """
    self._read_row()

  def run(self, number: int) -> Run:
    """Lets it do one more run.

    Raises:
      Ended: it failed, or does not print airbench's table.
    """
    self._held.resume()
    row = self._read_row()
    try:
      return Run(float(row["time_seconds"]), float(row["tta_val_acc"]))
    except (KeyError, ValueError):
      raise Ended(f"its table has no number time_seconds or tta_val_acc: {row}") from None

  def _read_row(self) -> dict[str, str]:
    """Returns the row printed after a run, by column."""
    for line in self._held.wait():
      cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
      if "time_seconds" in cells:
        self._columns = cells
    return dict(zip(self._columns, cells, strict=False))


class Ours:
  """`jaxspeed.train` with many seeds and one compilation, held between the runs.

  Args:
    config: of the runs.
    runs: how many runs will be asked for.
    folder: new; the runs' own folders are made in it.
    alone: whether it may take most of the device's memory, as JAX does by default.
  """

  def __init__(self, config: ConfigDict, runs: int, folder: pathlib.Path, *, alone: bool) -> None:
    folder.mkdir()
    config = config.copy_and_resolve_references()
    # One run more than wanted: the process is held before that run, and ends there.
    config.runs = runs + 1
    recipe, self._workdir = write_recipe(config, folder / "recipe.py"), folder / "runs"
    self._held = Held(
      ["-m", "jaxspeed.train", f"--config={recipe}", f"--workdir={self._workdir}"],
      pattern=_START_OF_RUN,
      folder=pathlib.Path.cwd(),
      seconds=_MOST_SECONDS,
      environment={} if alone else {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"},
    )
    self.close = self._held.close
    self.config = config
    self.result: dict[str, Any] = {}
    self.memory_gb: float | None = None

  def warm_up(self) -> None:
    """Waits until everything is compiled and warmed up, and sets `config` to that of the runs.

    Raises:
      Ended: it failed.
    """
    self._held.wait()
    self.config = stored_lib.load(self._workdir / "config.json")

  def run(self, number: int) -> Run:
    """Lets it do run `number`, counted from 0, and sets `result` and `memory_gb` to those of it.

    Raises:
      Ended: it failed.
    """
    self._held.resume()
    self._held.wait()
    folder = self._workdir / f"run_{number:03d}"
    self.result = json.loads((folder / "result.json").read_text())
    self.memory_gb = read_metrics(folder)[-1].get("memory_gb")
    shutil.rmtree(folder)
    return Run(self.result["seconds"]["train"], self.result["top1"])


def find_peers(paths: list[str]) -> dict[str, pathlib.Path]:
  """Returns the peers' scripts by name: files as given, and the known scripts of each folder.

  Raises:
    UserError: a path does not exist, or a folder has none of the known scripts.
  """
  found: list[pathlib.Path] = []
  for path in map(pathlib.Path, paths):
    if path.is_file():
      found.append(path)
      continue
    # Scripts in the folder itself come before copies in its subfolders.
    scripts = [
      next(iter([*path.glob(name), *sorted(path.glob(f"*/{name}"))]), None)
      for name in _PEER_SCRIPTS
    ]
    if not any(scripts):
      raise UserError(
        f"--peer={path}: there is no such file, nor a folder with {' or '.join(_PEER_SCRIPTS)}."
      )
    found += [script for script in scripts if script]
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
  return last_line(done.stderr) if done.returncode else None


def write_recipe(config: ConfigDict, path: pathlib.Path) -> pathlib.Path:
  """Writes a config with its overrides as a recipe, for commands in other processes."""
  stored = path.with_suffix(".json").resolve()
  stored_lib.save(config, stored)
  path.write_text(_RECIPE.format(path=str(stored)))
  return path
