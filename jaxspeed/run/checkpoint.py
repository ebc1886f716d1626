"""Checkpoints: Orbax writes and reads them, a manifest says which of them are whole.

checkpoints/STEP/ is Orbax's folder of the carry (nested dicts of arrays, as
flax.serialization.to_state_dict names them); its `manifest.json`, written last, holds every file's
size and CRC-32, the run's clock, and which of its starts wrote it. What is being written or removed
has a name of that start, so that a rename decides. A folder without a fitting manifest is no
checkpoint.

Every process has the whole carry, so process 0 writes it alone: Orbax's own way, a part from each,
has barriers in which all wait ten minutes for one whose disk is full.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import zlib
from typing import Any

import flax.serialization
import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import Fence
from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically

MANIFEST = "manifest.json"
_PART = ".part-"  # and incarnation and step
_log = logging.getLogger("jaxspeed")


class CheckpointError(Exception):
  """A checkpoint could not be written; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read: its step, the tree, and the clock that was saved with it."""

  step: int
  tree: Any
  clock: dict[str, float]


class Checkpoints:
  """The checkpoints of one run.

  Args:
    folder: made when the first one is saved.
    keep: how many of the newest stay.
    incarnation: which start of the run this is.
    fence: of process 0, where the run's folder is fenced.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    incarnation: int = 0,
    fence: Fence | None = None,
  ) -> None:
    self._folder = folder.absolute()
    self._keep = keep
    self._incarnation = incarnation
    self._fence = fence

  def save(self, step: int, tree: Any, clock: dict[str, float]) -> None:
    """Writes a checkpoint, waits until it is whole on disk, then removes the oldest.

    Every process of a run calls it, and learns how it went.

    Raises:
      CheckpointError: it could not be written; the earlier ones stay.
    """
    reason = ""
    if processes.is_primary():
      try:
        self._write(step, tree, clock)
      except Exception as error:  # Orbax and tensorstore raise whatever their file systems do
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(said.split())[:200] or repr(error)
        if self._fence is not None:
          self._fence.check()
        self.remove_parts()
    if any(processes.gather(int(bool(reason)))):
      raise CheckpointError(
        f"the checkpoint of step {step} could not be written to {self._folder} "
        f"({reason or 'process 0 says why'})"
      )

  def remove_parts(self) -> None:
    """Removes what earlier starts of the run left half-written or half-removed."""
    for path in self._folder.glob(f"{_PART}*"):
      shutil.rmtree(path, ignore_errors=True)

  def _write(self, step: int, tree: Any, clock: dict[str, float]) -> None:
    part = self._part(step)
    # Of a run of several processes Orbax takes no array that is this process's alone.
    arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))
    self._folder.mkdir(parents=True, exist_ok=True)
    _ensure_room(part, sum(array.nbytes for array in jax.tree.leaves(arrays)))
    with _checkpointer() as checkpointer:
      checkpointer.save(part, arrays, force=True)
    manifest = {
      "step": step,
      "incarnation": self._incarnation,
      "clock": clock,
      "files": _fingerprints(part),
    }
    write_atomically(part / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    with self._fence.writing() if self._fence else contextlib.nullcontext():
      # What is there was found broken by this start, or it would have been restored.
      self._remove(step)
      part.rename(self._folder / str(step))
    # Only what is a checkpoint counts as one, or folders of other makings would push it out.
    whole = [s for s in self._steps() if s <= step and (self._folder / str(s) / MANIFEST).exists()]
    for old in whole[: -self._keep]:
      self._remove(old)

  def _remove(self, step: int) -> None:
    path, aside = self._folder / str(step), self._folder / f"{self._part(step).name}-old"
    if path.is_dir():
      # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
      path.rename(aside)
      shutil.rmtree(aside, ignore_errors=True)
    else:
      path.unlink(missing_ok=True)

  def _part(self, step: int) -> pathlib.Path:
    return self._folder / f"{_PART}{self._incarnation}-{step}"

  def newest(self) -> int | None:
    """Step of the newest whole checkpoint; a sentence is logged for each that is passed over."""
    for step in reversed(self._steps()):
      fault = self._fault(step)
      if fault is None:
        return step
      _log.warning("checkpoint %s is passed over: %s", self._folder / str(step), fault)
    return None

  def restore(self, target: Any, *, step: int | None = None) -> Restored | None:
    """Reads the checkpoint of `step`, or the newest whole one; None when there is none.

    Args:
      target: ShapeDtypeStructs with shardings, in the structure that was saved.
      step: of the one wanted.

    Raises:
      UserError: `step` is not there or not whole, or it holds another model.
    """
    if step is None:
      step = self.newest()
      if step is None:
        return None
    else:
      fault = self._fault(step)
      if fault is not None:
        have = ", ".join(map(str, self._steps())) or "none"
        raise UserError(f"{self._folder / str(step)}: {fault}; steps there: {have}.")
    path = self._folder / str(step)
    wanted = flax.serialization.to_state_dict(target)
    try:
      with _checkpointer() as checkpointer:
        state_dict = checkpointer.restore(path, wanted)
    except (ValueError, KeyError, TypeError) as error:
      reason = str(error).strip().splitlines()[0]
      raise UserError(f"{path} does not fit the run's model: {reason}") from error
    manifest = json.loads((path / MANIFEST).read_text())
    tree = flax.serialization.from_state_dict(target, state_dict)
    return Restored(step=step, tree=tree, clock=manifest["clock"])

  def _steps(self) -> list[int]:
    if not self._folder.is_dir():
      return []
    return sorted(int(p.name) for p in self._folder.iterdir() if p.name.isdecimal() and p.is_dir())

  def _fault(self, step: int) -> str | None:
    """Why the folder of this step is no whole checkpoint; None when it is one."""
    path = self._folder / str(step)
    try:
      manifest = json.loads((path / MANIFEST).read_text())
      files = manifest["files"]
    except FileNotFoundError:
      return "there is no finished checkpoint"
    except (OSError, ValueError, KeyError, TypeError):
      return f"its {MANIFEST} cannot be read"
    for name, (size, checksum) in files.items():
      file = path / name
      if not file.is_file():
        return f"its file {name} is missing"
      if file.stat().st_size != size:
        return f"its file {name} has {file.stat().st_size} bytes, not {size}"
      if _crc(file) != checksum:
        return f"the content of its file {name} has changed"
    return None


def _checkpointer() -> Any:
  # Imported late: orbax.checkpoint takes 0.7 s, and a first step need not wait for it.
  import orbax.checkpoint as ocp

  own = jax.process_index()
  # Nobody waits for the others here: what they must agree on, they say by `processes.gather`.
  alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
  # Where a folder made beside the writing cannot be made, the writers wait for it ten minutes.
  beside = ocp.options.AsyncOptions(create_directories_asynchronously=False)
  return ocp.StandardCheckpointer(multiprocessing_options=alone, async_options=beside)


def _ensure_room(path: pathlib.Path, size: int) -> None:
  """Takes and gives back room for a file of `size` bytes, and a megabyte for what describes it.

  Where Orbax itself finds a disk full, each of its threads prints its own traceback.

  Raises:
    OSError: there is no room, or the folder cannot be written.
  """
  try:
    with path.open("wb") as file:
      if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(file.fileno(), 0, size + 2**20)
  finally:
    path.unlink(missing_ok=True)


def _crc(file: pathlib.Path) -> int:
  checksum = 0
  with file.open("rb") as stream:
    while block := stream.read(1 << 20):
      checksum = zlib.crc32(block, checksum)
  return checksum


def _fingerprints(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  files = sorted(p for p in folder.rglob("*") if p.is_file() and MANIFEST not in p.name)
  return {str(p.relative_to(folder)): (p.stat().st_size, _crc(p)) for p in files}
