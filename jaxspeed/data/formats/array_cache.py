"""A cache of data sets as plain arrays on disk, checked by checksum, so that runs start at once.

An entry is a folder of .npy files and a manifest.json with the shape, dtype and CRC-32 of each
array, facts about the arrays, and a fingerprint of the files that they were made from. It appears
whole or not at all (a rename of a finished folder), and never changes afterwards.
"""

import logging
import math
import os
import pathlib
import shutil
import uuid
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from jaxspeed.files import dump_json, new_folder, parse_json

_log = logging.getLogger("jaxspeed")

DEFAULT_CACHE = "~/.cache/jaxspeed/data"
_MANIFEST = "manifest.json"
# Increase this when a reader makes different arrays from the same files.
_FORMAT = 1


def fingerprint(path: pathlib.Path, files: Sequence[pathlib.Path]) -> dict[str, Any]:
  """Return sizes and times of a source's files, to tell later whether it has changed."""
  stats = [(file, file.stat()) for file in files]
  return {
    "path": str(path.resolve()),
    "files": [[file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats],
  }


def is_current(stored: Mapping[str, Any]) -> bool:
  """Return whether the source of a `fingerprint` is unchanged.

  Raises:
    OSError: a file is missing, or its size and time cannot be read.
  """
  path = pathlib.Path(stored["path"])
  files = [path if path.is_file() else path / name for name, _, _ in stored["files"]]
  return fingerprint(path, files)["files"] == stored["files"]


def entry_of(cache: pathlib.Path, name: str, path: pathlib.Path) -> pathlib.Path:
  """Return the folder of the entry for the source at `path`."""
  return cache / f"{name}-{sha256(os.fsencode(path.resolve())).hexdigest()[:16]}"


def entries(cache: pathlib.Path, name: str) -> list[pathlib.Path]:
  """Return the folders of all entries of `name`, newest first."""
  manifests = [(file.stat().st_mtime_ns, file) for file in cache.glob(f"{name}-*/{_MANIFEST}")]
  return [file.parent for _, file in sorted(manifests, reverse=True)]


def load(
  folder: pathlib.Path, expected: Mapping[str, Any] | None, *, mapped: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
  """Return the arrays of an entry and the facts stored with them, or None if it is not usable.

  An entry that does not fit its checksums or the fingerprint is removed, with a warning.

  Args:
    folder: the entry's folder.
    expected: the fingerprint that the entry must have; None when the source is not known.
    mapped: whether the arrays are the files, mapped into memory read-only, and not copies.
  """
  if not folder.is_dir():
    return None
  try:
    return read(folder, expected, mapped=mapped)
  except ValueError as error:
    _log.warning("the cache %s is not used and will be made again: %s", folder, error)
    remove(folder)
    return None


def read(
  folder: pathlib.Path, expected: Mapping[str, Any] | None, *, mapped: bool = False
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Read an existing entry as `load` does, but never remove it.

  Raises:
    ValueError: the entry must not be used; the message says why.
  """
  try:
    manifest = _read_manifest(folder / _MANIFEST)
    if expected is not None and manifest["fingerprint"] != expected:
      raise ValueError("the files that it was made from have changed")
    arrays = {
      name: _read_array(folder / f"{name}.npy", mapped=mapped, **about)
      for name, about in manifest["arrays"].items()
    }
    return arrays, manifest["about"]
  except (OSError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{type(error).__name__}: {error}") from error


def read_about(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
  """Return the facts stored with an entry and its fingerprint, without reading the arrays.

  Raises:
    ValueError: the entry must not be used; the message says why.
  """
  try:
    manifest = _read_manifest(folder / _MANIFEST)
    return dict(manifest["about"]), dict(manifest["fingerprint"])
  except (OSError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{type(error).__name__}: {error}") from error


def store(
  folder: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  about: Mapping[str, Any],
  source: Mapping[str, Any],
) -> None:
  """Write an entry as `write` does, but warn when that fails.

  If another process has stored the entry in the meantime, its entry stays.
  """
  try:
    write(folder, arrays, about, source)
  except OSError as error:
    if not folder.is_dir():
      _log.warning(
        "%s cannot be written (%s), so every run will read the data again: "
        "set --config.data.cache to a writable folder.",
        folder,
        error.strerror or error,
      )


def write(
  folder: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  about: Mapping[str, Any],
  source: Mapping[str, Any],
) -> None:
  """Write an entry with the fingerprint `source`.

  Raises:
    OSError: it cannot be written, or already exists.
  """
  manifest: dict[str, Any] = {
    "format": _FORMAT,
    "about": dict(about),
    "fingerprint": dict(source),
    "arrays": {
      name: {"shape": array.shape, "dtype": array.dtype.name, "crc32": zlib.crc32(array.data)}
      for name, array in arrays.items()
    },
  }
  manifest["crc32"] = _crc32_of(manifest)
  with new_folder(folder) as partial:
    for name, array in arrays.items():
      np.save(partial / f"{name}.npy", array, allow_pickle=False)
    (partial / _MANIFEST).write_text(dump_json(manifest, indent=2), encoding="utf-8")


def _crc32_of(manifest: Mapping[str, Any]) -> int:
  content = {key: value for key, value in manifest.items() if key != "crc32"}
  return zlib.crc32(dump_json(content, sort_keys=True).encode())


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  # Without a `kind`: pydantic refuses the escapes of names that are not UTF-8.
  manifest = parse_json(path.read_bytes())
  if manifest["crc32"] != _crc32_of(manifest):
    raise ValueError(f"{path.name} does not fit its checksum")
  if manifest["format"] != _FORMAT:
    raise ValueError(f"it has format {manifest['format']}, and this version writes {_FORMAT}")
  return manifest


def _read_array(
  path: pathlib.Path, *, shape: list[int], dtype: str, crc32: int, mapped: bool
) -> np.ndarray:
  """Read or map the data at the end of a file; shape and dtype come from the manifest.

  A file of an entry never changes, and can still be read once the entry is removed.
  """
  count = math.prod(shape)
  start = path.stat().st_size - count * np.dtype(dtype).itemsize
  if start < 0:
    raise ValueError(f"{path.name} is cut off")
  if mapped and count:
    array = np.asarray(np.memmap(path, dtype, "r", offset=start, shape=tuple(shape)))
  else:
    array = np.fromfile(path, dtype, count, offset=start).reshape(shape)
  if zlib.crc32(array.data) != crc32:
    raise ValueError(f"{path.name} does not fit its checksum")
  return array


def remove(folder: pathlib.Path) -> None:
  """Remove an entry, at once for other processes (by a rename); stay silent where that fails."""
  aside = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
  try:
    os.replace(folder, aside)
  except OSError:
    return  # another process has removed it, or the folder is not ours to write
  shutil.rmtree(aside, ignore_errors=True)
