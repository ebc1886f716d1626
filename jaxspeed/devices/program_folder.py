"""The folder of compiled programs. Nothing here imports JAX."""

import os
import pathlib
from collections.abc import Mapping

DEFAULT_CACHE = "~/.cache/jaxspeed/programs"


def program_folder(folder: str = "", environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """The folder of the cache of programs: `folder`, JAXSPEED_COMPILE_CACHE, or the default one."""
  return pathlib.Path(folder or environment.get("JAXSPEED_COMPILE_CACHE") or DEFAULT_CACHE)
