"""Checkpoints: Orbax writes and reads them, a manifest says which of them are whole.

checkpoints/STEP/ is Orbax's folder of the carry (nested dicts of arrays, as
flax.serialization.to_state_dict names them); its `manifest.json`, written last, holds every file's
size and CRC-32 and the run's clock. A folder without a fitting manifest is no checkpoint.
"""

import dataclasses
import json
import logging
import pathlib
import shutil
import zlib
from typing import Any

import flax.serialization

from jaxspeed.errors import UserError
from jaxspeed.records import write_atomically

MANIFEST = "manifest.json"
_log = logging.getLogger("jaxspeed")


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
  """

  def __init__(self, folder: pathlib.Path, *, keep: int = 2) -> None:
    self._folder = folder.absolute()
    self._keep = keep

  def save(self, step: int, tree: Any, clock: dict[str, float]) -> None:
    """Writes a checkpoint, waits until it is whole on disk, then removes the oldest."""
    path = self._folder / str(step)
    # A checkpoint of this step from an earlier process was found broken, or it would have been
    # restored; force replaces it.
    with _checkpointer() as checkpointer:
      checkpointer.save(path, flax.serialization.to_state_dict(tree), force=True)
    manifest = {"step": step, "clock": clock, "files": _fingerprints(path)}
    write_atomically(path / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    for old in self._steps()[: -self._keep]:
      # The manifest goes first: a kill between the two leaves a folder that is seen to be broken.
      (self._folder / str(old) / MANIFEST).unlink(missing_ok=True)
      shutil.rmtree(self._folder / str(old), ignore_errors=True)

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

  return ocp.StandardCheckpointer()


def _crc(file: pathlib.Path) -> int:
  checksum = 0
  with file.open("rb") as stream:
    while block := stream.read(1 << 20):
      checksum = zlib.crc32(block, checksum)
  return checksum


def _fingerprints(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
  files = sorted(p for p in folder.rglob("*") if p.is_file() and MANIFEST not in p.name)
  return {str(p.relative_to(folder)): (p.stat().st_size, _crc(p)) for p in files}
