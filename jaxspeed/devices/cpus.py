"""The host's CPUs. Nothing here imports JAX."""

import os


def usable_cpus() -> int:
  """The CPUs that this process may run on: those of its affinity, where the system has one."""
  if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
