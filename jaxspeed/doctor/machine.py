"""The host: CPUs, memory and disk."""

import os
import pathlib
from collections.abc import Iterator

import psutil
from rich.filesize import decimal

from jaxspeed.devices.host import usable_cpus
from jaxspeed.doctor.findings import Finding, hint, mend
from jaxspeed.records.provenance import cpu_name

_LITTLE = 2e9
# Threads per core from which measurements suffer: this process wants one core and more itself.
_BUSY = 1.25
# A container's control group, which psutil does not read.
_GROUP = pathlib.Path("/sys/fs/cgroup")


def _limit(name: str, group: pathlib.Path) -> list[str]:
  """The words of a control group's file; [] without a limit."""
  try:
    words = (group / name).read_text().split()
  except OSError:
    return []
  return [] if words[:1] == ["max"] else words


def cpus(group: pathlib.Path = _GROUP) -> float:
  """The CPUs that this process may use, as a number of whole ones."""
  words = _limit("cpu.max", group)
  return min(usable_cpus(), int(words[0]) / int(words[1]) if words else float("inf"))


def host_memory(group: pathlib.Path = _GROUP) -> tuple[int, int]:
  """Bytes of memory that this process may have, and those that are free."""
  memory, limit = psutil.virtual_memory(), _limit("memory.max", group)
  if not limit or int(limit[0]) >= memory.total:
    return memory.total, memory.available
  # Pages of files count as used, but the kernel gives them up when asked.
  used, stat = _limit("memory.current", group), _limit("memory.stat", group)
  cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
  return int(limit[0]), min(memory.available, int(limit[0]) - int(used[0]) + cached)


def check() -> Iterator[Finding]:
  """CPUs, load, memory, and the room on the disk of the current folder."""
  cores, (total, free), load = cpus(), host_memory(), psutil.getloadavg()[0]
  yield Finding(
    f"{cpu_name()}: this process may use {cores:g} of {os.cpu_count()} cores",
    facts={"cpu": cpu_name(), "cores": cores, "load": load},
  )
  if load > _BUSY * cores:
    what = f"The machine is busy, {load:.3g} threads want to run: they slow what is measured."
    yield hint(what, "top")
  yield Finding(
    f"memory: {decimal(total)}, {decimal(free)} of it available",
    facts={"memory_bytes": total, "memory_available_bytes": free},
  )
  room = psutil.disk_usage(os.curdir)
  yield Finding(
    f"disk of the current folder: {decimal(room.total)}, {decimal(room.free)} of it free",
    facts={"disk_bytes": room.total, "disk_free_bytes": room.free},
  )
  if room.free < _LITTLE:
    what = f"{os.getcwd()} has only {decimal(room.free)}; a checkpoint needs up to 1 GB."
    yield mend(what, "df -h .")
