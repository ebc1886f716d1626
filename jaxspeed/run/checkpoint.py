"""Checkpoints: a folder a step, written by Orbax, with a manifest that tells what it holds.

checkpoints/STEP/ has the carry as nested dicts of arrays, named by flax.serialization. Its
manifest.json, written last, has the step, the run's clock, and the shape and CRC-32 of every array:
Orbax does not notice flipped bits. What is being written or removed has a temporary name, so that
one rename makes a checkpoint appear or disappear.

Process 0 writes and reads alone; the others get the arrays over the network. If each wrote a part,
as Orbax does by default, all would wait ten minutes in a barrier when one process's disk is full.
"""

import contextlib
import errno
import logging
import os
import pathlib
import re
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.serialization
import jax
import numpy as np
import pydantic

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import FolderLock
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, parse_json, read_bytes, write_atomically

FOLDER = "checkpoints"  # in the run's folder
MANIFEST = "manifest.json"
_PART = ".part-"
_log = logging.getLogger("jaxspeed")


class _Manifest(pydantic.BaseModel):
  """What the manifest of a checkpoint says; of each array its shape and checksum."""

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
  except FileNotFoundError:
    raise ValueError("there is no finished checkpoint") from None
  except ValueError as error:
    raise ValueError(f"its {MANIFEST} cannot be used ({error})") from None
  if found.pop("crc32") != _crc_of(found) or path.name != str(found["step"]):
    raise ValueError(f"its {MANIFEST} has changed, or is of another step")
  return found


def steps_of(folder: pathlib.Path) -> list[int]:
  """The steps of a run's checkpoints with a valid manifest, in order."""
  found = []
  for path in _folders(folder):
    with contextlib.suppress(ValueError):
      found.append(load_manifest(path)["step"])
  return found


def _folders(folder: pathlib.Path) -> list[pathlib.Path]:
  """What is named like a step, in ASCII digits, in a run's `FOLDER`, in order of the steps."""
  # Orbax takes no relative paths.
  found = (folder.absolute() / FOLDER).glob("[0-9]*")
  named = (path for path in found if re.fullmatch("[0-9]+", path.name))
  return sorted(named, key=lambda path: int(path.name))


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
  """Writes a checkpoint, waits until it is on the disk, and removes the oldest.

  It holds `tree` after `step` steps, the state of the run's clock, and the checksum of the run's
  images. The `keep` newest stay, and beside them the first of `best`, steps from the best to the
  worst, of which there is a checkpoint.

  Raises:
    Exception: it could not be written, and older ones stay; Orbax and tensorstore raise whatever
      their file systems do.
  """
  # As NumPy arrays: Orbax refuses the JAX arrays of one process if there are several.
  arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(tree))
  home = folder.absolute() / FOLDER
  home.mkdir(parents=True, exist_ok=True)
  for left in home.glob(f"{_PART}*"):  # by a kill
    shutil.rmtree(left, ignore_errors=True)
  # Orbax finds a full disk too, but then each of its threads prints a traceback.
  needed = sum(array.nbytes for array in jax.tree.leaves(arrays)) + 2**20
  if shutil.disk_usage(home).free < needed:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  # Of a random name, so that no start that was thought dead writes there too.
  with tempfile.TemporaryDirectory(prefix=_PART, dir=home, ignore_cleanup_errors=True) as part:
    new = pathlib.Path(part, "new")
    with _checkpointer() as checkpointer:
      checkpointer.save(new, arrays)
    for file in new.rglob("*"):
      if file.is_file():
        with file.open("rb") as written:
          os.fsync(written.fileno())
    manifest: dict[str, Any] = dict(step=step, clock=clock, images=images)
    manifest["arrays"] = {name: _checksum(array) for name, array in _named(arrays).items()}
    content = dump_json(manifest | {"crc32": _crc_of(manifest)}, indent=1)
    write_atomically(new / MANIFEST, f"{content}\n")
    with lock.writing() if lock else contextlib.nullcontext():
      # One already there is broken, or of a signal before the evaluation of its epoch.
      with contextlib.suppress(FileNotFoundError):
        (home / str(step)).rename(pathlib.Path(part, "old"))
      new.rename(home / str(step))
    # Foreign folders do not count, or they would push checkpoints out.
    own = [each for each in steps_of(folder) if each <= step]
    kept = {*own[-keep:], next((each for each in best if each in own), step)}
    for each in set(own) - kept:
      with contextlib.suppress(OSError):  # the next save tries again
        (home / str(each)).rename(pathlib.Path(part, str(each)))


class Restored(NamedTuple):
  """A checkpoint that was read: what `save` was given."""

  tree: Any
  step: int
  clock: dict[str, float]
  images: str


def restore(
  folder: pathlib.Path, target: Any, *, step: int | str | None = None, partial: bool = False
) -> Restored | None:
  """Reads the checkpoint of `step`, or the newest sound one; None if there is none at all.

  All processes of a run must call it. A warning names each one that is passed over.

  Args:
    folder: the run's folder.
    target: ShapeDtypeStructs on one mesh, in the structure that was saved.
    step: the step to restore, a number or a text; None: that of the newest sound checkpoint.
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
      about = dump_json({key: found[0][key] for key in ("step", "clock", "images")}).encode()
      arrays = found[1]
  if not (about := processes.gather_bytes(about)[0]):
    return None
  tree = jax.tree.unflatten(structure, processes.broadcast(arrays))
  tree = mesh_lib.replicate(tree, leaves[0].sharding.mesh)
  return Restored(flax.serialization.from_state_dict(target, tree), **parse_json(about))


def _find(
  folder: pathlib.Path, wanted: dict[str, Any], step: int | str | None, partial: bool
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
  """The manifest and the `wanted` arrays of the checkpoint to restore; errors as in `restore`."""
  home, faults = folder.absolute() / FOLDER, dict[str, str]()
  for path in reversed(_folders(folder)) if step is None else [home / os.path.basename(str(step))]:
    try:
      found = load_manifest(path)
      return found, _read(path, found["arrays"], wanted, partial)
    except ValueError as error:
      faults[path.name] = f"{path}: {error}"
      if step is None:
        _log.warning("checkpoint %s is passed over: %s", path, error)
  if not faults:
    return None
  others = ", ".join(str(each) for each in steps_of(folder) if str(each) not in faults)
  advice = f"steps there: {others}" if others else f"move {home} away to train afresh"
  raise UserError(f"{faults.popitem()[1]}; {advice}.")


def _read(
  path: pathlib.Path, arrays: dict[str, Any], wanted: dict[str, Any], partial: bool
) -> list[np.ndarray]:
  """The arrays of a checkpoint, by the names and in the shapes of `wanted`.

  Raises:
    ValueError: they are not those of the manifest, `arrays`.
    UserError: they are, and of another model.
  """
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
  return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


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
