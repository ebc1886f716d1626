"""Checkpoints: a folder a step, written by Orbax, with a manifest that tells what it holds.

checkpoints/STEP/ has the carry as nested dicts of arrays, named by flax.serialization. Its
manifest.json, written last, has the step, the run's clock, and the shape and CRC-32 of every array:
Orbax does not notice flipped bits. What is being written or removed has a temporary name, so that
one rename makes a checkpoint appear or disappear.

Process 0 writes and reads alone; the others get the arrays over the network. If each wrote a part,
as Orbax does by default, all would wait ten minutes in a barrier when one process's disk is full.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import pathlib
import secrets
import shutil
import zlib
from collections.abc import Sequence
from concurrent import futures
from typing import Annotated, Any

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
from jaxspeed.files import dump_json, parse_json, read_bytes, sync, write_atomically

FOLDER = "checkpoints"  # in the run's folder
MANIFEST = "manifest.json"
_PART = ".part-"
# How the names of arrays began in earlier versions, and how they begin now.
_RENAMED = {"state.average.": "state.ema.", "state.slow.": "state.lookahead."}
_SIGN_OF_LIFE = 2.0  # seconds between two signs to the processes that wait for a save
_log = logging.getLogger("jaxspeed")


class CheckpointError(Exception):
  """A checkpoint could not be written; the message says which and why."""


@dataclasses.dataclass
class _Manifest:
  """The fields of a manifest.json; an array's are its shape and the CRC-32 of its bytes."""

  format: Annotated[int, Field(le=FORMAT)]
  step: int
  clock: dict[str, float]
  images: str
  arrays: dict[str, tuple[list[int], int]]
  crc32: int


def _crc_of(manifest: dict[str, Any]) -> int:
  return zlib.crc32(dump_json(manifest, sort_keys=True).encode())


def load_manifest(path: pathlib.Path) -> dict[str, Any]:
  """The manifest in the folder of a step.

  Raises:
    ValueError: it is missing, damaged or of another step than the folder.
  """
  try:
    found = parse_json(read_bytes(path / MANIFEST), _Manifest)
    if found.pop("crc32") != _crc_of(found):
      raise ValueError("its content has changed")
    if path.name != str(found["step"]):
      raise ValueError(f"it is of step {found['step']}")
  except FileNotFoundError:
    raise ValueError("there is no finished checkpoint") from None
  except ValueError as error:
    raise ValueError(f"its {MANIFEST} cannot be used ({error})") from None
  return found


def steps_of(folder: pathlib.Path) -> list[int]:
  """The steps of a run's checkpoints with a valid manifest, in order."""
  found = []
  for path in _folders(folder):
    with contextlib.suppress(ValueError):
      found.append(load_manifest(path)["step"])
  return found


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folders in a run's `FOLDER` that are named like a step, in ASCII digits, in order."""
  # Orbax takes no relative paths.
  found = [path for path in (folder.absolute() / FOLDER).glob("[0-9]*") if path.is_dir()]
  found = [path for path in found if path.name.isascii() and path.name.isdecimal()]
  return sorted(found, key=lambda path: int(path.name))


def save(
  folder: pathlib.Path,
  step: int,
  tree: Any,
  clock: dict[str, float],
  *,
  images: str = "",
  keep: int = 2,
  best: Sequence[int] = (),
  lock: FolderLock | None = None,
) -> None:
  """Writes a checkpoint and waits until it is on the disk; then removes the oldest.

  All processes of a run must call it. However long it takes, no watchdog wakes while process 0
  is alive.

  Args:
    folder: the run's folder.
    step: the number of steps done.
    tree: what to save.
    clock: the state of the run's clock.
    images: the checksum of the run's images.
    keep: the number of newest checkpoints to keep.
    best: steps from the best to the worst: the first of which there is a checkpoint keeps it, too.
    lock: the lock of the run's folder; None except in process 0.

  Raises:
    CheckpointError: it could not be written; raised in all processes, and older ones stay.
  """
  writing, reason, home = [], "", folder.absolute() / FOLDER
  with futures.ThreadPoolExecutor(1, "checkpoint") as pool:
    if processes.is_primary():
      # As NumPy arrays: Orbax refuses the JAX arrays of one process if there are several.
      arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))
      manifest = dict(format=FORMAT, step=step, clock=clock, images=images)
      writing = [pool.submit(_write, home, manifest, arrays, lock)]
    while processes.gather(len(futures.wait(writing, _SIGN_OF_LIFE).not_done))[0]:
      heartbeat()
  # Orbax and tensorstore raise whatever their file systems do.
  if writing and (error := writing[0].exception()):
    reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or repr(error)
    if lock is not None:
      lock.check()
  if processes.gather(int(bool(reason)))[0]:
    raise CheckpointError(
      f"the checkpoint of step {step} could not be written to {home} "
      f"({reason[:200] or 'process 0 says why'})"
    )
  if processes.is_primary():
    # Foreign folders do not count, or they would push checkpoints out.
    own = [each for each in steps_of(folder) if each <= step]
    kept = {*own[-keep:], next((each for each in best if each in own), step)}
    for each in set(own) - kept:
      try:
        _set_aside(home / str(each))
      except OSError as error:
        _log.warning("%s could not be removed (%s)", home / str(each), error.strerror or error)
    _sweep(home)


def _write(
  home: pathlib.Path, manifest: dict[str, Any], arrays: Any, lock: FolderLock | None
) -> None:
  """Writes a checkpoint to the run's folder of checkpoints."""
  home.mkdir(parents=True, exist_ok=True)
  _sweep(home)
  # Orbax finds a full disk too, but then each of its threads prints a traceback.
  needed = sum(array.nbytes for array in jax.tree.leaves(arrays)) + 2**20
  if shutil.disk_usage(home).free < needed:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  part = _new_part(home)
  try:
    with _checkpointer() as checkpointer:
      checkpointer.save(part, arrays)
    for file in part.rglob("*"):
      if file.is_file():
        sync(file)
    manifest |= {"arrays": {name: _checksum(array) for name, array in _named(arrays).items()}}
    content = dump_json(manifest | {"crc32": _crc_of(manifest)}, indent=1)
    write_atomically(part / MANIFEST, f"{content}\n")
    with lock.writing() if lock else contextlib.nullcontext():
      # One already there is broken, or of a signal before the evaluation of its epoch.
      _set_aside(final := home / str(manifest["step"]))
      part.rename(final)
  finally:
    _sweep(home)


def _new_part(home: pathlib.Path) -> pathlib.Path:
  # Random, so that no start that was thought dead writes there too.
  return home / f"{_PART}{secrets.token_hex(8)}"


def _set_aside(path: pathlib.Path) -> None:
  """Renames what is at `path`, if anything, for `_sweep`: a kill leaves no half of a checkpoint."""
  with contextlib.suppress(FileNotFoundError):
    path.rename(_new_part(path.parent))


def _sweep(home: pathlib.Path) -> None:
  """Removes what is set aside, and what a kill or a failure left half written."""
  for left in home.glob(f"{_PART}*"):
    if left.is_symlink() or not left.is_dir():
      left.unlink(missing_ok=True)
    else:
      shutil.rmtree(left, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint that was read, with the clock and the checksum of images saved in it."""

  tree: Any
  step: int
  clock: dict[str, float]
  images: str


def restore(
  folder: pathlib.Path, target: Any, *, step: int | None = None, partial: bool = False
) -> Restored | None:
  """Reads the checkpoint of `step`, or the newest sound one; None if there is none at all.

  All processes of a run must call it. A warning names each one that is passed over.

  Args:
    folder: the run's folder.
    target: ShapeDtypeStructs on one mesh, in the structure that was saved.
    step: the step to restore; None: that of the newest sound checkpoint.
    partial: whether the checkpoint may hold more than `target`.

  Raises:
    UserError: the checkpoint of `step` is missing or damaged, or all are; or it holds another
      model. Raised in all processes.
  """
  wanted = flax.serialization.to_state_dict(target)
  leaves, structure = jax.tree.flatten(wanted)
  arrays, about = [np.zeros(each.shape, each.dtype) for each in leaves], b""
  with processes.all_or_none("reading the checkpoint"):
    if processes.is_primary() and (found := _find(folder, _named(wanted), step, partial)):
      arrays = found[1]
      about = dump_json({key: found[0][key] for key in ("step", "clock", "images")}).encode()
  if not (about := processes.gather_bytes(about)[0]):
    return None
  tree = jax.tree.unflatten(structure, processes.broadcast(arrays))
  tree = mesh_lib.replicate(tree, leaves[0].sharding.mesh)
  return Restored(flax.serialization.from_state_dict(target, tree), **parse_json(about))


def _find(
  folder: pathlib.Path, wanted: dict[str, Any], step: int | None, partial: bool
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
  """The manifest and the `wanted` arrays of the checkpoint to restore; errors as in `restore`."""
  home, faults = folder.absolute() / FOLDER, []
  for path in reversed(_folders(folder)):
    if step in (None, int(path.name)):
      try:
        found = load_manifest(path)
        arrays = _read(path, found["arrays"], wanted, partial)
      except ValueError as error:
        faults.append((path, error))
        continue
      for fault in faults:
        _log.warning("checkpoint %s is passed over: %s", *fault)
      return found, arrays
  if step is None and not faults:
    return None
  path, error = [*faults, (home / str(step), "there is no finished checkpoint")][0]
  advice = f"there is no other checkpoint that is whole: move {home} away to train afresh"
  if step is not None:
    others = ", ".join(str(each) for each in steps_of(folder) if each != step) or "none"
    advice = f"steps there: {others}"
  raise UserError(f"{path}: {error}; {advice}.")


def _read(
  path: pathlib.Path, arrays: dict[str, Any], wanted: dict[str, Any], partial: bool
) -> list[np.ndarray]:
  """The arrays of a checkpoint, by the names and in the shapes of `wanted`.

  Raises:
    ValueError: they are not those of the manifest, `arrays`.
    UserError: they are, and of another model.
  """
  arrays = {_todays(name): about for name, about in arrays.items()}
  have = {name: shape for name, (shape, _) in arrays.items() if name in wanted or not partial}
  want = {name: list(leaf.shape) for name, leaf in wanted.items()}
  for name in sorted(want.keys() | have.keys()):
    if have.get(name) != want.get(name):
      there, here = have.get(name, "nothing"), want.get(name, "nothing")
      raise UserError(
        f"{path} does not fit the run's model: {name} is of shape {there} there and {here} in the "
        "model; use the version of the code and the config.json that trained it, or move it away."
      )
  try:
    with _checkpointer() as checkpointer:
      found = _named(jax.tree.map(np.asarray, checkpointer.restore(path)))
  except Exception as error:  # Orbax raises anything on files that it does not expect
    reason = next(iter(str(error).strip().splitlines()), "")[:300]
    raise ValueError(f"it cannot be read ({reason or type(error).__name__})") from None
  for name, checksum in arrays.items():
    if name not in found or _checksum(found[name]) != checksum:
      raise ValueError(f"its array {ascii(name)[:60]} has changed")
  return [found[name].astype(leaf.dtype, copy=False) for name, leaf in wanted.items()]


def _named(tree: Any) -> dict[str, Any]:
  """The leaves of nested dicts, with their keys joined by dots."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
  return {_todays(name): leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _todays(name: str) -> str:
  """The name of an array that a checkpoint may hold under an earlier version's."""
  old = next((each for each in _RENAMED if name.startswith(each)), "")
  return _RENAMED.get(old, "") + name.removeprefix(old)


def _checksum(array: np.ndarray) -> list[Any]:
  """The shape of an array and the CRC-32 of its bytes, as JSON has them."""
  content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
  return [list(array.shape), zlib.crc32(content.data)]


def _checkpointer() -> Any:
  # Imported late: it takes 0.7 s, and the first step need not wait for it.
  import orbax.checkpoint as ocp

  own = jax.process_index()
  # No barriers between processes: they agree through `processes.gather` instead.
  alone = ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
  # If a folder cannot be created in the background, the writers wait ten minutes for it.
  beside = ocp.options.AsyncOptions(create_directories_asynchronously=False)
  return ocp.StandardCheckpointer(multiprocessing_options=alone, async_options=beside)
