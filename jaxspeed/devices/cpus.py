"""The host's CPUs. Nothing here imports JAX."""

import os


def usable_cpus() -> int:
  """The number of CPUs that this process may run on: its affinity, if the system supports it."""
  if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
