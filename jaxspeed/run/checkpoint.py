"""Checkpoints: a folder a step, written by Orbax, with a manifest that tells what it holds.

checkpoints/STEP/ has the carry as nested dicts of arrays, named by flax.serialization. Its
manifest.json, written last, has the step, the run's clock, and the shape and CRC-32 of every array:
Orbax does not notice flipped bits. What is being written or removed has a temporary name, so that
one rename makes a checkpoint appear or disappear.

Process 0 writes and reads alone, and the others get the arrays from it: in Orbax's own barriers all
would wait ten minutes when the disk of one is full.
"""

import contextlib
import logging
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
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
  except (OSError, ValueError) as error:
    raise ValueError(f"its {MANIFEST} cannot be used ({error})") from None
  if found.pop("crc32") != _crc_of(found) or path.name != str(found["step"]):
    raise ValueError(f"its {MANIFEST} has changed, or is of another step")
  return found


def steps_of(folder: pathlib.Path) -> list[int]:
  """The steps of a run's checkpoints, in order: the names of their folders."""
  names = [path.name for path in (folder / FOLDER).glob("*")]
  return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))


def ranked(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
  """The rows with a metric of the evaluation, the best first; of equal ones the earlier first.

  `metric` is one of config.checkpoint.keep_best; no row has "none".
  """
  known = [row for row in rows if row.get(f"eval_{metric}") is not None]
  return sorted(known, key=lambda row: row[f"eval_{metric}"], reverse=metric != "loss")


class Checkpoint(NamedTuple):
  """What a checkpoint holds: a tree of arrays after some steps, and what goes with them."""

  tree: Any
  step: int
  clock: dict[str, float]  # the state of the run's clock
  images: str  # the checksum of the run's images


def save(
  folder: pathlib.Path, saved: Checkpoint, keep: int, best: Sequence[int], lock: FolderLock | None
) -> None:
  """Writes a checkpoint, waits until it is on the disk, and removes older ones.

  The `keep` newest stay, and the first of `best`, steps from the best to the worst, that is there.
  If it cannot be written, all stay, with whatever error Orbax or the file system raises.
  """
  # As NumPy arrays: Orbax refuses the JAX arrays of one process if there are several.
  arrays = jax.tree.map(np.asarray, flax.serialization.to_state_dict(saved.tree))
  home = folder.absolute() / FOLDER  # Orbax takes no relative paths
  home.mkdir(parents=True, exist_ok=True)
  for left in home.glob(f"{_PART}*"):  # by a kill
    shutil.rmtree(left, ignore_errors=True)
  # Orbax finds a full disk too, but then each of its threads prints a traceback.
  if shutil.disk_usage(home).free < sum(each.nbytes for each in jax.tree.leaves(arrays)) + 2**20:
    raise OSError("No space left on device")
  # Of a random name, so that no start that was thought dead writes there too.
  with tempfile.TemporaryDirectory(prefix=_PART, dir=home, ignore_cleanup_errors=True) as part:
    new = pathlib.Path(part, "new")
    _checkpointer().save(new, arrays)
    # tensorstore waits until its files are on the disk, but Orbax does not for its own.
    for file in new.glob("_*"):
      write_atomically(file, file.read_bytes())
    sums = {name: _checksum(array) for name, array in _named(arrays).items()}
    manifest = dict(step=saved.step, clock=saved.clock, images=saved.images, arrays=sums)
    write_atomically(new / MANIFEST, dump_json(manifest | {"crc32": _crc_of(manifest)}, indent=1))
    with lock.writing() if lock else contextlib.nullcontext():
      with contextlib.suppress(FileNotFoundError):  # one that is there could not be read
        (home / str(saved.step)).rename(pathlib.Path(part, "old"))
      new.rename(home / str(saved.step))
    # Of later steps are those that could not be read. What has no manifest is nobody's to remove.
    own = [n for n in steps_of(folder) if n <= saved.step and (home / str(n) / MANIFEST).exists()]
    for step in {*own[:-keep]} - {next((each for each in best if each in own), saved.step)}:
      with contextlib.suppress(OSError):  # the next save tries again
        (home / str(step)).rename(pathlib.Path(part, str(step)))


def restore(
  folder: pathlib.Path, target: Any, *, step: int | str | None = None, partial: bool = False
) -> Checkpoint | None:
  """Reads the checkpoint of `step` in a run's folder, or the newest sound one; None without any.

  All processes of a run must call it. A warning names each one that is passed over.

  Args:
    target: ShapeDtypeStructs on one mesh, in the structure that was saved.
    step: the step to restore, a number or a text; None: that of the newest sound one.
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
      about = dump_json({name: found[0][name] for name in ("step", "clock", "images")}).encode()
      arrays = found[1]
  if not (about := processes.gather_bytes(about)[0]):
    return None
  tree = jax.tree.unflatten(structure, processes.broadcast(arrays))
  tree = mesh_lib.replicate(tree, leaves[0].sharding.mesh)
  return Checkpoint(flax.serialization.from_state_dict(target, tree), **parse_json(about))


def _find(
  folder: pathlib.Path, wanted: dict[str, Any], step: int | str | None, partial: bool
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
  """The manifest and the `wanted` arrays of the checkpoint to restore; errors as in `restore`."""
  home = folder.absolute() / FOLDER
  paths = [home / str(each) for each in steps_of(folder)]
  asked = [path for path in paths if step is None or path.name == str(step)]
  fault = "" if step is None else f"{home} has no checkpoint of step {step}"
  for path in reversed(asked):
    try:
      return _read(path, wanted, partial)
    except ValueError as error:
      fault = f"{path}: {error}"
      if step is None:
        _log.warning("checkpoint %s is passed over: %s", path, error)
  if not fault:
    return None
  others = ", ".join(path.name for path in paths if path not in asked)
  advice = f"steps there: {others}" if others else f"move {home} away to train afresh"
  raise UserError(f"{fault}; {advice}.")


def _read(
  path: pathlib.Path, wanted: dict[str, Any], partial: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
  """The manifest of a checkpoint, and its arrays by the names and in the shapes of `wanted`.

  Raises:
    ValueError: they are missing or damaged.
    UserError: they are whole, and of another model.
  """
  manifest = load_manifest(path)
  sums = manifest["arrays"]
  have = {name: str(shape) for name, (shape, _) in sums.items() if name in wanted or not partial}
  want = {name: str([*leaf.shape]) for name, leaf in wanted.items()}
  for name, _ in sorted(have.items() ^ want.items()):
    there, here = have.get(name, "nothing"), want.get(name, "nothing")
    raise UserError(
      f"{path} does not fit the run's model: {name} is of shape {there} there and {here} in the "
      "model; use the version of the code and the config.json that trained it, or move it away."
    )
  try:
    found = _named(jax.tree.map(np.asarray, _checkpointer().restore(path)))
  except Exception as error:  # Orbax raises anything on files that it does not expect
    raise ValueError(f"it cannot be read ({error!r:.300})") from None
  for name, checksum in sums.items():
    if name not in found or _checksum(found[name]) != checksum:
      raise ValueError(f"its array {name[:60]!a} has changed")
  return manifest, [found[name].astype(leaf.dtype, copy=False) for name, leaf in wanted.items()]


def _named(tree: Any) -> dict[str, Any]:
  """The leaves of nested dicts, with their keys joined by dots."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _checksum(array: np.ndarray) -> list[Any]:
  """The shape of an array and the CRC-32 of its bytes, as JSON has them."""
  return [list(array.shape), zlib.crc32(array.tobytes())]


def _checkpointer() -> Any:
  # Imported late: it takes 0.7 s, and the first step need not wait for it.
  import orbax.checkpoint as ocp

  # Without barriers: process 0 writes and reads alone.
  alone = ocp.options.MultiprocessingOptions(active_processes={0})
  handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
  return ocp.Checkpointer(handler, multiprocessing_options=alone)
