"""The host's CPUs and TPUs, and its folder of compiled programs. Nothing here imports JAX."""

import os
import pathlib
from collections.abc import Mapping

DEFAULT_CACHE = "~/.cache/jaxspeed/programs"
# Google on the PCI bus, and its TPUs v3, v4, v5p, v5e and v6e, as in JAX's hardware_utils.py.
_TPUS = {f"0x1ae0 0x00{chip}" for chip in ("27", "5e", "62", "63", "6f")}


def usable_cpus() -> int:
  """The number of CPUs that this process may run on: its affinity, if the system supports it."""
  if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def has_tpu(bus: pathlib.Path = pathlib.Path("/sys/bus/pci/devices")) -> bool:
  """Whether the host has TPUs, whatever JAX sees."""
  files = ((vendor, vendor.with_name("device")) for vendor in bus.glob("*/vendor"))
  return any(" ".join(file.read_text().strip() for file in pair) in _TPUS for pair in files)


def program_folder(environment: Mapping[str, str] = os.environ) -> pathlib.Path:
  """The folder of the cache of programs: JAXSPEED_COMPILE_CACHE, or the default one."""
  return pathlib.Path(environment.get("JAXSPEED_COMPILE_CACHE") or DEFAULT_CACHE)
