"""Checkpoints: Orbax writes and reads their arrays, a manifest tells what each of them held.

checkpoints/STEP/ holds the carry as Orbax stores it: nested dicts of arrays, named by
flax.serialization.to_state_dict. Its manifest.json, written last, holds the step, the shape and
CRC-32 of every array, the run's clock, and the number of the start that wrote it. A checkpoint that
is being written or removed has a temporary name, so that one rename makes it appear or disappear.

Process 0 writes and reads alone; the others get the arrays over the network. If each wrote a part,
as Orbax does by default, all would wait ten minutes in a barrier when one process's disk is full.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import shutil
import zlib
from collections.abc import Sequence
from concurrent import futures
from typing import Annotated, Any, Literal

import flax.serialization
import jax
import numpy as np
from pydantic import Field

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.cluster.watchdog import heartbeat
from jaxspeed.config.stored import FORMAT
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json, parse_json, sync, write_atomically
from jaxspeed.records.clock import NAMES

MANIFEST = "manifest.json"
_PART = ".part-"  # followed by incarnation and step
_SIGN_OF_LIFE = 2.0  # seconds between two signs to the processes that wait for a save
_log = logging.getLogger("jaxspeed")

_Whole = Annotated[int, Field(ge=0, lt=2**63)]


class CheckpointError(Exception):
  """A checkpoint could not be written; the message says which and why."""


@dataclasses.dataclass
class _Manifest:
  """The fields of a manifest.json; earlier versions stored sizes and CRC-32 of files."""

  format: Annotated[int, Field(ge=1, le=FORMAT)]
  step: Annotated[int, Field(ge=1, lt=2**31)]
  incarnation: _Whole
  clock: dict[Literal[(*NAMES, "process")], Annotated[float, Field(ge=0, lt=1e11)]]  # type: ignore[valid-type]
  images: Annotated[str, Field(max_length=100)] = ""
  arrays: dict[str, tuple[list[_Whole], _Whole]] = dataclasses.field(default_factory=dict)
  files: dict[str, tuple[_Whole, _Whole]] = dataclasses.field(default_factory=dict)
  crc32: _Whole = 0


def _crc_of(manifest: dict[str, Any]) -> int:
  return zlib.crc32(dump_json(manifest, sort_keys=True).encode())


def load_manifest(path: pathlib.Path) -> dict[str, Any]:
  """The manifest in a checkpoint's folder.

  Raises:
    ValueError: it is missing, damaged or of another step than the folder.
  """
  try:
    found = {"arrays": {}, "files": {}, "images": ""} | load_json(path / MANIFEST, _Manifest)
    if not found["files"] and found.pop("crc32", None) != _crc_of(found):
      raise ValueError("its content has changed")
  except FileNotFoundError:
    raise ValueError("there is no finished checkpoint") from None
  except ValueError as error:
    raise ValueError(f"its {MANIFEST} cannot be used ({error})") from None
  if path.name != str(found["step"]):
    raise ValueError(f"its {MANIFEST} is of step {found['step']}")
  return found


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read, with the clock and the checksum of images saved in it."""

  step: int
  tree: Any
  clock: dict[str, float]
  images: str = ""


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
    self._keep, self._incarnation, self._lock, self._images = keep, incarnation, lock, images

  def save(
    self, step: int, tree: Any, clock: dict[str, float], *, best: Sequence[int] = ()
  ) -> None:
    """Writes a checkpoint and waits until it is on the disk; then removes the oldest.

    All processes of a run must call it. However long it takes, no watchdog wakes while process 0
    is alive.

    Args:
      step: the number of steps done.
      tree: what to save, with `state.step` in it.
      clock: the state of the run's clock.
      best: steps from the best to the worst: the first of which there is a checkpoint keeps it.

    Raises:
      CheckpointError: it could not be written; raised in all processes, and older ones stay.
    """
    reason, writing = "", []
    with futures.ThreadPoolExecutor(1, "checkpoint") as pool:
      if processes.is_primary():
        # As NumPy arrays: Orbax refuses the JAX arrays of one process if there are several.
        arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))
        writing = [pool.submit(self._write, step, arrays, clock, best)]
      while processes.gather(len(futures.wait(writing, _SIGN_OF_LIFE).not_done))[0]:
        heartbeat()
    try:
      for each in writing:
        each.result()
    except Exception as error:  # Orbax and tensorstore raise whatever their file systems do
      said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
      reason = " ".join(said.split())[:200] or repr(error)
      if self._lock is not None:
        self._lock.check()
    if any(processes.gather(int(bool(reason)))):
      raise CheckpointError(
        f"the checkpoint of step {step} could not be written to {self._folder} "
        f"({reason or 'process 0 says why'})"
      )

  def _write(self, step: int, arrays: Any, clock: dict[str, float], best: Sequence[int]) -> None:
    self._folder.mkdir(parents=True, exist_ok=True)
    for left in self._folder.glob(f"{_PART}*"):
      _discard(left)
    # Orbax finds a full disk too, but then each of its threads prints a traceback.
    needed = sum(array.nbytes for array in jax.tree.leaves(arrays)) + 2**20
    if shutil.disk_usage(self._folder).free < needed:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    part = self._folder / f"{_PART}{self._incarnation}-{step}"
    try:
      with _checkpointer() as checkpointer:
        checkpointer.save(part, arrays)
      for file in part.rglob("*"):
        if file.is_file():
          sync(file)
      manifest = dict(format=FORMAT, step=step, incarnation=self._incarnation, clock=clock)
      manifest |= {
        "images": self._images,
        "arrays": {name: _checksum(x) for name, x in _named(arrays).items()},
      }
      manifest |= {"files": {}, "crc32": _crc_of(manifest | {"files": {}})}
      write_atomically(part / MANIFEST, dump_json(manifest, indent=1) + "\n")
      with self._lock.writing() if self._lock else contextlib.nullcontext():
        # One already there is broken, or of a signal before the evaluation of its epoch.
        self._remove(step)
        part.rename(self._folder / str(step))
    finally:
      for left in self._folder.glob(f"{part.name}*"):
        _discard(left)
    self._remove_older(step, best)

  def _remove_older(self, step: int, best: Sequence[int]) -> None:
    """Removes checkpoints up to `step` but the newest and the first of `best` that is there."""
    # Foreign folders do not count, or they would push checkpoints out.
    own = [each for each in self.steps() if each <= step]
    kept = {*own[-self._keep :], next((each for each in best if each in own), step)}
    for old in own:
      if old not in kept:
        try:
          self._remove(old)
        except OSError as error:
          _log.warning("%s could not be removed (%s)", self._folder / str(old), error.strerror)

  def _remove(self, step: int) -> None:
    path, aside = self._folder / str(step), self._folder / f"{_PART}{self._incarnation}-{step}-old"
    if os.path.lexists(path):
      # Renamed first: a kill in the middle must not leave half a checkpoint under its name.
      path.rename(aside)
      _discard(aside)

  def steps(self) -> list[int]:
    """The steps of the checkpoints with a valid manifest, in order."""
    found = []
    for path in self._folders():
      with contextlib.suppress(ValueError):
        found.append(load_manifest(path)["step"])
    return found

  def _folders(self) -> list[pathlib.Path]:
    """The folders that are named like a step, in ASCII digits, in order."""
    names = [path.name for path in self._folder.glob("[0-9]*") if path.is_dir()]
    names = [name for name in names if name.isascii() and name.isdecimal()]
    return [self._folder / name for name in sorted(names, key=lambda name: (len(name), name))]

  def restore(self, target: Any, *, step: int | None = None) -> Restored | None:
    """Reads the checkpoint of `step`, or the newest sound one; None if there is none at all.

    All processes of a run must call it. A warning names each one that is passed over.

    Args:
      target: ShapeDtypeStructs on one mesh, in the structure that was saved; an `opt_state` of None
        is not read.
      step: the step to restore; None: that of the newest sound checkpoint.

    Raises:
      UserError: the checkpoint of `step` is missing or damaged, or all are; or it holds another
        model. Raised in all processes.
    """
    wanted = flax.serialization.to_state_dict(target)
    leaves, structure = jax.tree.flatten(wanted)
    arrays, told = [np.zeros(each.shape, each.dtype) for each in leaves], b""
    with processes.all_or_none("reading the checkpoint"):
      if processes.is_primary() and (found := self._find(_named(wanted), step)) is not None:
        arrays = found[1]
        told = dump_json({key: found[0][key] for key in ("step", "clock", "images")}).encode()
    if not (told := processes.gather_bytes(told)[0]):
      return None
    tree = jax.tree.unflatten(structure, processes.broadcast(arrays))
    tree = mesh_lib.replicate(tree, leaves[0].sharding.mesh)
    return Restored(tree=flax.serialization.from_state_dict(target, tree), **parse_json(told))

  def _find(self, wanted: dict[str, Any], step: int | None) -> tuple[Any, list[np.ndarray]] | None:
    """The manifest and the `wanted` arrays of the checkpoint to restore; errors as in `restore`."""
    faults = []
    for path in reversed(self._folders()):
      if step not in (None, int(path.name)):
        continue
      try:
        manifest = load_manifest(path)
        arrays = _read(path, manifest, wanted)
      except ValueError as error:
        faults.append((path, error))
        continue
      for fault in faults:
        _log.warning("checkpoint %s is passed over: %s", *fault)
      return manifest, arrays
    first = f"{faults[0][0]}: {faults[0][1]}" if faults else ""
    if step is not None:
      first = first or f"{self._folder / str(step)}: there is no finished checkpoint"
      others = ", ".join(str(each) for each in self.steps() if each != step) or "none"
      raise UserError(f"{first}; steps there: {others}.")
    if faults:
      advice = f"move {self._folder} away to train afresh"
      raise UserError(f"{first}; there is no other checkpoint that is whole: {advice}.")
    return None


def _read(path: pathlib.Path, manifest: dict[str, Any], wanted: dict[str, Any]) -> list[np.ndarray]:
  """The arrays of a checkpoint, by the names and in the shapes of `wanted`.

  Raises:
    ValueError: the checkpoint is damaged.
    UserError: it is whole, and of another model.
  """
  files = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
  for name, (size, checksum) in manifest["files"].items():
    content = files[name].read_bytes() if name in files else b""
    if (len(content), zlib.crc32(content)) != (size, checksum):
      raise ValueError(f"its file {ascii(name)[:60]} is missing or has changed")
  shapes = {name: tuple(shape) for name, (shape, _) in manifest["arrays"].items()}
  try:
    with _checkpointer() as checkpointer:
      if (about := checkpointer.metadata(path).item_metadata) is None:
        raise ValueError("Orbax's metadata are missing or damaged")
      tree = about.tree
      _check_fit(path, shapes or _shapes(_named(tree)), wanted)
      tree = checkpointer.restore(path, jax.tree.map(lambda x: np.empty(x.shape, x.dtype), tree))
  except UserError:
    raise
  except Exception as error:  # Orbax raises anything on files that it does not expect
    reason = next(iter(str(error).strip().splitlines()), "")[:300]
    raise ValueError(f"it cannot be read ({reason or type(error).__name__})") from None
  arrays = _named(tree)
  for name, checksum in manifest["arrays"].items():
    if name not in arrays or _checksum(arrays[name]) != checksum:
      raise ValueError(f"its array {ascii(name)[:60]} has changed")
  if (counted := int(arrays["state.step"])) != manifest["step"]:
    raise ValueError(f"it holds a state of step {counted}, and its {MANIFEST} is of another one")
  return [arrays[name].astype(leaf.dtype, copy=False) for name, leaf in wanted.items()]


def _check_fit(path: pathlib.Path, have: dict[str, Any], wanted: dict[str, Any]) -> None:
  """Raises a UserError if names or shapes differ: before any array is read."""
  want = _shapes(wanted)
  if not any(".opt_state." in name for name in want):
    have = {name: shape for name, shape in have.items() if ".opt_state." not in name}
  for name in sorted(want.keys() ^ have.keys()) + sorted(want.keys() & have.keys()):
    if have.get(name) != want.get(name):
      there, here = have.get(name, "nothing"), want.get(name, "nothing")
      raise UserError(
        f"{path} does not fit the run's model: {name} is of shape {there} there and {here} in the "
        "model; use the version of the code and the config.json that trained it, or move it away."
      )


def _named(tree: Any) -> dict[str, Any]:
  """The leaves of nested dicts, with their keys joined by dots."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {".".join(str(getattr(key, "key", key)) for key in path): leaf for path, leaf in leaves}


def _shapes(arrays: dict[str, Any]) -> dict[str, tuple[int, ...]]:
  return {name: tuple(array.shape) for name, array in arrays.items()}


def _checksum(array: np.ndarray) -> list[Any]:
  """The shape of an array and the CRC-32 of its bytes, as JSON has them."""
  return [
    list(array.shape),
    zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data),
  ]


def _discard(path: pathlib.Path) -> None:
  if path.is_symlink() or not path.is_dir():
    path.unlink(missing_ok=True)
  else:
    shutil.rmtree(path, ignore_errors=True)


def _checkpointer() -> Any:
  # Imported late: it takes 0.7 s, and the first step need not wait for it.
  import orbax.checkpoint as ocp

  own = jax.process_index()
  # No barriers between processes: they agree through `processes.gather` instead.
  alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
  # If a folder cannot be created in the background, the writers wait ten minutes for it.
  beside = ocp.options.AsyncOptions(create_directories_asynchronously=False)
  return ocp.StandardCheckpointer(multiprocessing_options=alone, async_options=beside)
