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
import zlib
from collections.abc import Iterable
from typing import Annotated, Any

import flax.serialization
import jax
import numpy as np
from pydantic import Field

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.config.stored import FORMAT
from jaxspeed.errors import UserError
from jaxspeed.files import create, dump_json, load_json, sync, write_atomically
from jaxspeed.records.clock import NAMES
from jaxspeed.run.stored_optimizer import with_optimizers

MANIFEST = "manifest.json"
_PART = ".part-"  # followed by incarnation and step
_log = logging.getLogger("jaxspeed")


class CheckpointError(Exception):
  """A checkpoint could not be written; the message says which and why."""


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read: its step, its tree, and the clock saved with it."""

  step: int
  tree: Any
  clock: dict[str, float]

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


class Checkpoints:
  """The checkpoints of one run.

  Args:
    folder: the folder of all checkpoints, created with the first one.
    keep: the number of newest checkpoints to keep.
    incarnation: the number of this start of the run.
    lock: the lock of the run's folder; None except in process 0.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    keep: int = 2,
    incarnation: int = 0,
    lock: FolderLock | None = None,
  ) -> None:
    self._folder = folder.absolute()
    self._keep = keep
    self._incarnation = incarnation
    self._lock = lock

  def save(self, step: int, tree: Any, clock: dict[str, float]) -> None:
    """Writes a checkpoint, waits until it is whole on disk, then removes the oldest.

    All processes of a run must call it.

    Raises:
      CheckpointError: it could not be written; raised in all processes, and older ones stay.
    """
    reason = ""
    if processes.is_primary():
      try:
        self._write(step, tree, clock)
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
    manifest = {
      "format": FORMAT,
      "step": step,
      "incarnation": self._incarnation,
      "clock": clock,
      "files": _fingerprints(part),
    }
    write_atomically(part / MANIFEST, dump_json(manifest, indent=1) + "\n")
    with self._lock.writing() if self._lock else contextlib.nullcontext():
      # A checkpoint already there is broken: this start would have restored a whole one.
      self._remove(step)
      part.rename(self._folder / str(step))
    # Foreign folders and renamed copies do not count, or they would push checkpoints out.
    own = [step for step, path in self._found() if path.name == str(step)]
    for old in [each for each in own if each <= step][: -self._keep]:
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
      fault = _content_fault(path)
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
    tree = _read_tree(path, target)
    return Restored(step=step, tree=tree, clock=load_json(path / MANIFEST, _Manifest)["clock"])

  def _path_of(self, step: int) -> pathlib.Path:
    """The folder of the whole checkpoint of `step`.

    Raises:
      UserError: there is none.
    """
    found = self._found()
    paths = [path for each, path in found if each == step]
    faults = {path: _content_fault(path) for path in paths}
    for path in reversed(paths):
      if faults[path] is None:
        return path
    have = ", ".join(str(each) for each in dict.fromkeys(each for each, _ in found)) or "none"
    path = self._folder / str(step)
    fault = next(iter(faults.values()), None) or _manifest_fault(path)
    raise UserError(f"{path}: {fault}; steps there: {have}.")

  def _found(self, notes: list[str] | None = None) -> list[tuple[int, pathlib.Path]]:
    """The step and folder of each valid manifest, by step; an original comes after its copies.

    Args:
      notes: gets a sentence on each folder that is named like a step but has no valid manifest.
    """
    if not self._folder.is_dir():
      return []
    found = []
    # ASCII digits, as Python writes a step.
    paths = [p for p in self._folder.iterdir() if p.name.isascii() and p.name.isdecimal()]
    for path in sorted(filter(pathlib.Path.is_dir, paths), key=_by_number, reverse=True):
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


@dataclasses.dataclass
class _Manifest:
  """The fields of a manifest.json."""

  format: Annotated[int, Field(ge=FORMAT, le=FORMAT)]
  step: Annotated[int, Field(ge=1, lt=2**31)]
  incarnation: Annotated[int, Field(ge=0)]
  clock: dict[str, Annotated[float, Field(ge=0, lt=1e11)]]
  files: Annotated[
    dict[str, tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0, lt=2**32)]]],
    Field(min_length=1),
  ]


def load_manifest(path: pathlib.Path) -> dict[str, Any]:
  """The manifest in a checkpoint's folder.

  Raises:
    ValueError: it is missing or damaged; the message says what is wrong with the checkpoint.
    UserError: a later version of jaxspeed wrote it: the checkpoint must not be passed over.
  """
  try:
    stored = load_json(path / MANIFEST)
    if isinstance(stored, dict) and isinstance(stored.get("format"), int):
      if stored["format"] > FORMAT:
        raise UserError(
          f"{path / MANIFEST} is of format {stored['format']}, and this version of jaxspeed reads "
          f"{FORMAT}: use the version that wrote it, or move that checkpoint away."
        )
    manifest = load_json(path / MANIFEST, _Manifest)
    if unknown := sorted(manifest["clock"].keys() - {*NAMES, "process"}):
      raise ValueError(f"clock: {ascii(unknown[0])[:60]} is no time of a run")
    if missing := sorted({"init", "train", "process"} - manifest["clock"].keys()):
      raise ValueError(f"clock: {missing[0]} is missing")
    for name in manifest["files"]:
      if not name or pathlib.PurePath(name).is_absolute() or ".." in pathlib.PurePath(name).parts:
        raise ValueError(f"files: {ascii(name)[:60]} lies outside")
  except FileNotFoundError:
    raise ValueError("there is no finished checkpoint") from None
  except ValueError as error:
    raise ValueError(f"its {MANIFEST} cannot be used ({error})") from None
  return manifest


def _manifest_fault(path: pathlib.Path) -> str:
  try:
    other = load_manifest(path)["step"]
  except ValueError as error:
    return str(error)
  return f"its {MANIFEST} is of step {other}"


def _content_fault(path: pathlib.Path) -> str | None:
  """What happened to a checkpoint's files since its manifest was written; None: nothing."""
  for name, (size, checksum) in load_manifest(path)["files"].items():
    file = path / name
    if not os.path.isfile(file):  # also for names that no file can have
      return f"its file {name} is missing"
    if file.stat().st_size != size:
      return f"its file {name} has {file.stat().st_size} bytes, not {size}"
    try:
      if _crc(file) != checksum:
        return f"the content of its file {name} has changed"
    except OSError as error:
      return f"its file {name} cannot be read ({error.strerror or error})"
  return None


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


def _read_tree(path: pathlib.Path, target: Any) -> Any:
  """A checkpoint's arrays in the structure of `target`; a UserError where they do not fit."""
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
    raise UserError(
      f"{path} cannot be read ({type(error).__name__}: {_reason(error)}): move it away, and the "
      "checkpoint before it is the newest."
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


def _crc(file: pathlib.Path) -> int:
  checksum = 0
  with file.open("rb") as stream:
    while block := stream.read(1 << 20):
      checksum = zlib.crc32(block, checksum)
  return checksum


def _fingerprints(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  files = sorted(p for p in folder.rglob("*") if p.is_file() and MANIFEST not in p.name)
  for file in files:
    sync(file)
  return {str(p.relative_to(folder)): (p.stat().st_size, _crc(p)) for p in files}
