"""Checkpoints: Orbax writes and reads them, a manifest says which are whole.

checkpoints/STEP/ holds the carry as Orbax stores it (nested dicts of arrays, named by
flax.serialization.to_state_dict). Its `manifest.json`, written last, holds the step, every file's
size and CRC-32, the run's clock, and the number of the start that wrote it. A checkpoint that is
being written or removed has a temporary name, so that one rename makes it appear or disappear. A
folder without a valid manifest is no checkpoint; a renamed or copied one keeps its manifest's step.

Every process has the whole carry, so process 0 writes it alone. If each wrote a part, as Orbax does
by default, all would wait ten minutes in a barrier when one process's disk is full.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import flax.serialization
import jax
import numpy as np

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.errors import UserError
from jaxspeed.files import create
from jaxspeed.run.manifest import (
  MANIFEST,
  content_fault,
  load_manifest,
  manifest_fault,
  write_manifest,
)
from jaxspeed.run.stored_optimizer import with_optimizers

_PART = ".part-"  # followed by incarnation and step
_log = logging.getLogger("jaxspeed")


class CheckpointError(Exception):
  """A checkpoint could not be written; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read: its step, its tree, and the clock and checksum saved with it."""

  step: int
  tree: Any
  clock: dict[str, float]
  images: str = ""

  def check_state(self) -> None:
    """Makes sure that the state and the manifest are of the same step.

    Raises:
      UserError: they are not: the manifest was edited, or belongs to another checkpoint.
    """
    if (counted := int(self.tree.state.step)) != self.step:
      raise UserError(
        f"the checkpoint of step {self.step} holds a state of step {counted}: its {MANIFEST} "
        "belongs to another checkpoint; move this one away."
      )

  def check_images(self, fingerprint: str) -> None:
    """Makes sure that the run goes on with the images that it began with (`Feed.fingerprint`).

    Checksums of two kinds, as of files and of shards made of them, cannot be compared.

    Raises:
      UserError: they are others: among those held out may be some that were trained on.
    """
    then, now = self.images.partition(" "), fingerprint.partition(" ")
    if then[0] == now[0] and then != now:
      # In memory they have no names.
      what = "pixels" if now[0] == "arrays" else "names"
      raise UserError(
        f"the images of this run have changed since its checkpoint of step {self.step} (their "
        f"{what}, their labels, or which are held out): put them back, or choose another --workdir."
      )


class Checkpoints:
  """The checkpoints of one run.

  Args:
    folder: the folder of all checkpoints, created with the first one.
    keep: the number of newest checkpoints to keep; `save` may keep another.
    incarnation: the number of this start of the run.
    lock: the lock of the run's folder; None except in process 0.
    images: the checksum of the run's images, which is saved too.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    incarnation: int = 0,
    lock: FolderLock | None = None,
    images: str = "",
  ) -> None:
    self._folder = folder.absolute()
    self._keep = keep
    self._incarnation = incarnation
    self._lock, self._images = lock, images

  def save(
    self, step: int, tree: Any, clock: dict[str, float], *, best: Sequence[int] = ()
  ) -> None:
    """Writes a checkpoint, waits until it is whole on disk, then removes the oldest.

    All processes of a run must call it.

    Args:
      step: the number of steps done.
      tree: what to save.
      clock: the state of the run's clock.
      best: steps from the best to the worst: the first of which there is a checkpoint keeps it.

    Raises:
      CheckpointError: it could not be written; raised in all processes, and older ones stay.
    """
    reason = ""
    if processes.is_primary():
      try:
        self._write(step, tree, clock)
        self._remove_older(step, best)
      except Exception as error:  # Orbax and tensorstore raise whatever their file systems do
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = " ".join(said.split())[:200] or repr(error)
        if self._lock is not None:
          self._lock.check()
        self.remove_parts()
    if any(processes.gather(int(bool(reason)))):
      raise CheckpointError(
        f"the checkpoint of step {step} could not be written to {self._folder} "
        f"({reason or 'process 0 says why'})"
      )

  def remove_parts(self) -> None:
    """Removes what earlier starts of the run left half-written or half-removed."""
    for path in self._folder.glob(f"{_PART}*"):
      if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
      else:
        shutil.rmtree(path, ignore_errors=True)

  def _write(self, step: int, tree: Any, clock: dict[str, float]) -> None:
    part = self._part(step)
    # As NumPy arrays: Orbax refuses the JAX arrays of one process if there are several processes.
    arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))
    self._folder.mkdir(parents=True, exist_ok=True)
    _ensure_room(part, sum(array.nbytes for array in jax.tree.leaves(arrays)))
    with _checkpointer() as checkpointer:
      checkpointer.save(part, arrays, force=True)
    write_manifest(part, step=step, incarnation=self._incarnation, clock=clock, images=self._images)
    with self._lock.writing() if self._lock else contextlib.nullcontext():
      # One already there is broken, or of a signal before the evaluation of its epoch.
      self._remove(step)
      part.rename(self._folder / str(step))

  def _remove_older(self, step: int, best: Sequence[int]) -> None:
    """Removes checkpoints up to `step` but the newest and the first of `best` that is there."""
    # Foreign folders and renamed copies do not count, or they would push checkpoints out.
    own = [each for each, path in self._found() if path.name == str(each) and each <= step]
    kept = {*own[-self._keep :], next((each for each in best if each in own), step)}
    for old in own:
      if old not in kept:
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
    """The step of the newest whole checkpoint, or None; logs each one that is passed over."""
    step, notes = self.find_newest()
    log(notes)
    return step

  def find_newest(self) -> tuple[int | None, list[str]]:
    """The step of the newest whole checkpoint, or None; a sentence on each one passed over."""
    notes: list[str] = []
    for step, path in reversed(self._found(notes)):
      fault = content_fault(path)
      if fault is None:
        if path.name != str(step):
          notes.append(f"checkpoint {path} is of step {step}, as its {MANIFEST} says")
        return step, notes
      notes.append(f"checkpoint {path} is passed over: {fault}")
    return None, notes

  def restore(self, target: Any, *, step: int | None = None) -> Restored | None:
    """Reads the checkpoint of `step`, or the newest whole one; None if there is none.

    Args:
      target: ShapeDtypeStructs with shardings, in the structure that was saved.
      step: the step to restore; None: that of the newest whole checkpoint.

    Raises:
      UserError: the checkpoint of `step` is missing or damaged, or it holds another model.
    """
    if step is None and (step := self.newest()) is None:
      return None
    path = self._path_of(step)
    tree = _read_tree(path, target, earlier=self.has_before(step))
    manifest = load_manifest(path)
    return Restored(step, tree, manifest["clock"], manifest.get("images", ""))

  def has_before(self, step: int) -> bool:
    """Whether there is a checkpoint of an earlier step."""
    return any(each < step for each, _ in self._found())

  def _path_of(self, step: int) -> pathlib.Path:
    """The folder of the whole checkpoint of `step`.

    Raises:
      UserError: there is none.
    """
    found = self._found()
    paths = [path for each, path in found if each == step]
    faults = {path: content_fault(path) for path in paths}
    for path in reversed(paths):
      if faults[path] is None:
        return path
    there = dict.fromkeys(each for each, path in found if path not in faults)
    have = ", ".join(map(str, there)) or "none"
    path = self._folder / str(step)
    fault = next(iter(faults.values()), None) or manifest_fault(path)
    raise UserError(f"{path}: {fault}; steps there: {have}.")

  def latest_name(self) -> int:
    """The largest step that a folder is named by, whole or not; 0 without any."""
    return max((int(path.name) for path in self._named()), default=0)

  def _named(self) -> list[pathlib.Path]:
    """The folders that are named like a step."""
    if not self._folder.is_dir():
      return []
    # ASCII digits, as Python writes a step.
    paths = [p for p in self._folder.iterdir() if p.name.isascii() and p.name.isdecimal()]
    return [path for path in paths if path.is_dir()]

  def _found(self, notes: list[str] | None = None) -> list[tuple[int, pathlib.Path]]:
    """The step and folder of each valid manifest, by step; an original comes after its copies.

    Args:
      notes: gets a sentence on each folder that is named like a step but has no valid manifest.
    """
    found = []
    for path in sorted(self._named(), key=_by_number, reverse=True):
      try:
        found.append((load_manifest(path)["step"], path))
      except ValueError as error:
        if notes is not None:
          notes.append(f"checkpoint {path} is passed over: {error}")
    return sorted(found, key=lambda each: (each[0], each[1].name == str(each[0]), each[1].name))


def log(notes: Iterable[str]) -> None:
  """Logs what `Checkpoints.find_newest` found."""
  for note in notes:
    _log.warning("%s", note)


def _by_number(path: pathlib.Path) -> tuple[int, str]:
  return len(path.name), path.name


def _reason(error: Exception) -> str:
  return next(iter(str(error).strip().splitlines()), "")[:300]


def _checkpointer() -> Any:
  # Imported late: it takes 0.7 s, and the first step need not wait for it.
  import orbax.checkpoint as ocp

  own = jax.process_index()
  # No barriers between processes: they agree through `processes.gather` instead.
  alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
  # If a folder cannot be created in the background, the writers wait ten minutes for it.
  beside = ocp.options.AsyncOptions(create_directories_asynchronously=False)
  return ocp.StandardCheckpointer(multiprocessing_options=alone, async_options=beside)


def _read_tree(path: pathlib.Path, target: Any, *, earlier: bool) -> Any:
  """A checkpoint's arrays in the structure of `target`; a UserError where they do not fit.

  Args:
    path: the checkpoint.
    target: as in `Checkpoints.restore`.
    earlier: whether there is an earlier one, for the message.
  """
  wanted = flax.serialization.to_state_dict(target)
  try:
    with _checkpointer() as checkpointer:
      stored = with_optimizers(checkpointer.metadata(path).item_metadata.tree, wanted)
      _check_fit(stored, wanted)
      state_dict = checkpointer.restore(path, wanted)
  except (ValueError, KeyError, TypeError) as error:
    raise UserError(
      f"{path} does not fit the run's model: {_reason(error).rstrip('.')}; use the version of the "
      "code and the config.json that trained it, or move it away."
    ) from error
  except Exception as error:  # Orbax raises anything on files that it does not expect
    advice = "move it away, and the checkpoint before it is the newest"
    if not earlier:
      advice = "there is no earlier one: train afresh in another --workdir"
    raise UserError(
      f"{path} cannot be read ({type(error).__name__}: {_reason(error)}): {advice}."
    ) from error
  return flax.serialization.from_state_dict(target, state_dict)


def _check_fit(stored: Any, wanted: Any) -> None:
  """Compares the names and shapes of two trees of arrays, before any array is read.

  Raises:
    ValueError: they differ. Orbax finds that too, but then dozens of its readers print tracebacks.
  """
  have, want = _shapes(stored), _shapes(wanted)
  for names, phrase in (
    (want.keys() - have.keys(), "the model has {} and the checkpoint does not"),
    (have.keys() - want.keys(), "the checkpoint has {} and the model does not"),
  ):
    if names:
      more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
      raise ValueError(phrase.format(f"{min(names)}{more}"))
  for name in sorted(have):
    if have[name] != want[name]:
      raise ValueError(f"{name} has the shape {have[name]} there and {want[name]} in the model")


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path): tuple(leaf.shape)
    for path, leaf in leaves
  }


def _ensure_room(path: pathlib.Path, size: int) -> None:
  """Makes sure that the disk has room for `size` bytes and a megabyte of metadata.

  Orbax finds a full disk too, but then each of its threads prints a traceback.

  Raises:
    OSError: there is no room, or the folder cannot be written.
  """
  descriptor = create(path)
  try:
    if hasattr(os, "posix_fallocate"):  # not on macOS
      os.posix_fallocate(descriptor, 0, size + 2**20)
  finally:
    os.close(descriptor)
    path.unlink(missing_ok=True)
