"""A checkpoint's manifest: written last, it holds the size and CRC-32 of every file."""

import dataclasses
import os
import pathlib
import zlib
from typing import Annotated, Any

from pydantic import Field

from jaxspeed.config.stored import FORMAT
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json, sync, write_atomically
from jaxspeed.records.clock import NAMES

MANIFEST = "manifest.json"


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
  images: Annotated[str, Field(max_length=100)] = ""


def write_manifest(
  folder: pathlib.Path, *, step: int, incarnation: int, clock: dict[str, float], images: str = ""
) -> None:
  """Writes the manifest of the files in a checkpoint's folder, once they are on the disk.

  Args:
    folder: the checkpoint's folder.
    step: the checkpoint's step.
    incarnation: the number of the start that wrote it.
    clock: the state of the run's clock.
    images: the checksum of the run's images (`Feed.fingerprint`).
  """
  files = sorted(p for p in folder.rglob("*") if p.is_file() and MANIFEST not in p.name)
  for file in files:
    sync(file)
  manifest = {
    "format": FORMAT,
    "step": step,
    "incarnation": incarnation,
    "clock": clock,
    "images": images,
    "files": {str(p.relative_to(folder)): (p.stat().st_size, _crc(p)) for p in files},
  }
  write_atomically(folder / MANIFEST, dump_json(manifest, indent=1) + "\n")


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


def manifest_fault(path: pathlib.Path) -> str:
  """Why the checkpoint in a folder cannot be used, or that it is of another step."""
  try:
    other = load_manifest(path)["step"]
  except ValueError as error:
    return str(error)
  return f"its {MANIFEST} is of step {other}"


def content_fault(path: pathlib.Path) -> str | None:
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


def _crc(file: pathlib.Path) -> int:
  checksum = 0
  with file.open("rb") as stream:
    while block := stream.read(1 << 20):
      checksum = zlib.crc32(block, checksum)
  return checksum
