"""PyTorch's scripts that `bench_cifar.py` times: where they are, their images, and their runs."""

import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import benchmarking
import numpy as np

from jaxspeed.errors import UserError

_PEER_SCRIPTS = ("airbench94_muon.py", "cifar10_speedrun.py")
_END_OF_RUN = re.compile(r"\|.*\|\s*eval\s*\|")  # the row that airbench prints after a run
_PEER_IMAGES = """\
import numpy, torch
arrays = numpy.load("arrays.npz")
for split, name in (("train", "train"), ("eval", "test")):
  images, labels = (torch.from_numpy(arrays[f"{split}_{x}"]) for x in ("images", "labels"))
  classes = [str(i) for i in range(int(labels.max()) + 1)]
  torch.save({"images": images, "labels": labels.long(), "classes": classes}, f"{name}.pt")
"""


@dataclasses.dataclass(frozen=True)
class Run:
  """Seconds of one run by airbench's rule, and its accuracy as a fraction."""

  seconds: float
  accuracy: float


class Ended(Exception):
  """A process failed; the message says how."""


def printed_by(arguments: list[str], folder: pathlib.Path) -> Iterator[str]:
  """Yields the lines of a Python process in a folder as they come; to close it ends the process.

  Raises:
    Ended: the process failed.
  """
  command = [sys.executable, "-u", *arguments]
  with (
    tempfile.TemporaryFile("w+") as errors,
    subprocess.Popen(
      command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process,
  ):
    assert process.stdout is not None
    try:
      yield from process.stdout
      if code := process.wait():
        errors.seek(0)
        raise Ended(f"its process ended with code {code}: {benchmarking.last(errors.read())}")
    finally:
      process.kill()


def peer_runs(script: pathlib.Path, folder: pathlib.Path) -> Iterator[Run]:
  """Yields the runs of a script that prints airbench's table; the first one warms up.

  Args:
    script: the file.
    folder: where it runs; cifar10/ inside it holds its images.

  Raises:
    Ended: it failed, or its table lacks a column.
  """
  columns: list[str] = []
  for line in printed_by([str(script.resolve())], folder):
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    columns = cells if "time_seconds" in cells else columns
    if _END_OF_RUN.match(line):
      row = dict(zip(columns, cells, strict=False))
      try:
        run = Run(float(row["time_seconds"]), float(row["tta_val_acc"]))
      except (KeyError, ValueError):
        raise Ended(f"its table has no number time_seconds or tta_val_acc: {row}") from None
      yield run


def find_peers(paths: list[str]) -> dict[str, pathlib.Path]:
  """The peers' scripts by name: files as given, and the known scripts of each folder.

  Raises:
    UserError: a path does not exist, or a folder has none of the known scripts.
  """
  found: dict[str, pathlib.Path] = {}
  for path in map(pathlib.Path, paths):
    # A script in the folder itself comes before a copy in a subfolder.
    copies = [sorted(path.rglob(name), key=lambda file: len(file.parts)) for name in _PEER_SCRIPTS]
    scripts = [path] if path.is_file() else [each[0] for each in copies if each]
    if not scripts:
      raise UserError(
        f"--peer={path}: there is no such file, nor a folder with {' or '.join(_PEER_SCRIPTS)}."
      )
    for script in scripts:
      found[str(script) if script.stem in found else script.stem] = script
  return found


def write_peer_images(arrays: Any, folder: pathlib.Path) -> str | None:
  """Writes our images where the peers' loaders look, so that both sides train on the same ones.

  Runs in its own process, because two frameworks in one share neither GPU nor libraries well.
  Returns what went wrong (most often, PyTorch is missing), or None.
  """
  folder.mkdir(parents=True)
  names = ("train_images", "train_labels", "eval_images", "eval_labels")
  np.savez(folder / "arrays.npz", **{name: getattr(arrays, name) for name in names})
  command = [sys.executable, "-c", _PEER_IMAGES]
  done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
  return benchmarking.last(done.stderr) if done.returncode else None
