"""Arrays in one .npz file, with facts about them in JSON: the cache, and indices of images.

A file appears whole or not at all, and never changes afterwards. The zip format keeps a checksum of
each array.
"""

import errno
import logging
import os
import pathlib
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from jaxspeed.files import dump_json, new_file, open_regular, parse_json

_log = logging.getLogger("jaxspeed")

DEFAULT_CACHE = "~/.cache/jaxspeed/data"
# The member that holds the facts.
_ABOUT = "about"


def entry_of(cache: pathlib.Path, name: str, path: pathlib.Path) -> pathlib.Path:
  """Return the file in a cache for the source at `path`."""
  return cache / f"{name}-{sha256(os.fsencode(path.resolve())).hexdigest()[:16]}.npz"


def make_folder(path: pathlib.Path) -> None:
  """Make a folder beside what may be a stranger's files.

  Raises:
    OSError: it cannot be made, or is a link, which would lead elsewhere.
  """
  path.mkdir(parents=True, exist_ok=True)
  if path.is_symlink():
    raise OSError(errno.ELOOP, "it is a link", os.fspath(path))


def write(path: pathlib.Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
  """Write a file, replacing an older one.

  Raises:
    OSError: it cannot be written.
  """
  facts = np.frombuffer(dump_json(dict(about)).encode(), np.uint8)
  path.parent.mkdir(parents=True, exist_ok=True)
  with new_file(path) as file:
    members: dict[str, Any] = {**arrays, _ABOUT: facts}
    np.savez(file, **members)


def store(path: pathlib.Path, arrays: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> None:
  """Write a file of the cache as `write` does, but warn when that fails."""
  try:
    write(path, arrays, about)
  except OSError as error:
    _log.warning(
      "%s cannot be written (%s), so every run will read the data again: "
      "set --config.data.cache to a writable folder.",
      path,
      error.strerror or error,
    )


def read(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Return the arrays of a file, and the facts stored with them.

  Raises:
    ValueError: it must not be used; the message says why.
  """
  try:
    with open_regular(path) as file, np.load(file, allow_pickle=False) as found:
      if sum(each.file_size for each in found.zip.infolist()) > path.stat().st_size:
        raise ValueError("it is compressed, which jaxspeed does not do")
      arrays = {name: found[name] for name in found.files}
    return arrays, parse_json(arrays.pop(_ABOUT).tobytes())  # no `kind`: pydantic refuses odd names
  except Exception as error:  # damaged archives raise almost anything
    raise ValueError(f"{type(error).__name__}: {error}") from error
