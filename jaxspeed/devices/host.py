"""The host's CPUs, and its folder of compiled programs. Nothing here imports JAX."""

import os
import pathlib
from collections.abc import Mapping

DEFAULT_CACHE = "~/.cache/jaxspeed/programs"


def usable_cpus() -> int:
  """The number of CPUs that this process may run on: its affinity, if the system supports it."""
  if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def program_folder(folder: str = "", environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """The folder of the cache of programs: `folder`, JAXSPEED_COMPILE_CACHE, or the default one."""
  return pathlib.Path(folder or environment.get("JAXSPEED_COMPILE_CACHE") or DEFAULT_CACHE)
