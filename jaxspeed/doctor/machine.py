"""The host: CPUs, memory and disk, as /proc and the control group of a container state them."""

import os
import pathlib
import platform
import re
import shutil

from jaxspeed.devices.cpus import usable_cpus
from jaxspeed.doctor.part import Advice, Part, amount
from jaxspeed.records.provenance import cpu_name

_LITTLE = 2e9
# Threads per core from which measurements suffer: this process wants one core and more itself.
_BUSY = 1.25


def _text(path: pathlib.Path) -> str:
  try:
    return path.read_text(errors="replace")
  except OSError:
    return ""


def cpu_quota(root: pathlib.Path = pathlib.Path("/")) -> float | None:
  """The CPUs that the control group allows, as a number of whole ones; None: all."""
  group = root / "sys/fs/cgroup"
  words = _text(group / "cpu.max").split()
  if not words:
    words = [_text(group / f"cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
  if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
    return int(words[0]) / int(words[1])
  return None


def host_memory(root: pathlib.Path = pathlib.Path("/")) -> tuple[int, int]:
  """Bytes of memory that this process may have, and of those that are free now; 0: unknown.

  A container's limit counts where it is lower than the machine's memory.
  """
  values = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
  total, free = (1024 * int(values.get(name, 0)) for name in ("MemTotal", "MemAvailable"))
  group = root / "sys/fs/cgroup"
  for limit, used, parts, cached in (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
      "memory/memory.limit_in_bytes",
      "memory/memory.usage_in_bytes",
      "memory/memory.stat",
      "total_inactive_file",
    ),
  ):
    most, now = (_text(group / name).strip() for name in (limit, used))
    if most.isdecimal() and (not total or int(most) < total):
      total = int(most)
      # Pages of files that were read count as used, but the kernel gives them up when asked.
      given_up = re.search(rf"^{cached} (\d+)$", _text(group / parts), re.MULTILINE)
      taken = (int(now) if now.isdecimal() else 0) - (int(given_up[1]) if given_up else 0)
      free = min(free or total, total - min(total, max(0, taken)))
  return total, free


def file_system(path: pathlib.Path, mounts: str) -> str:
  """The type of the file system that holds an absolute path; "" if unknown.

  Args:
    path: the path; links are not followed.
    mounts: the content of /proc/mounts.
  """
  best, found = -1, ""
  for line in mounts.splitlines():
    words = line.split()
    if len(words) < 3:
      continue
    # Spaces are written as \040.
    place = pathlib.PurePath(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[1]))
    if path.is_relative_to(place) and len(place.parts) >= best:
      best, found = len(place.parts), words[2]
  return found


# File systems of other machines, over a network.
_NETWORK = re.compile(
  r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs|ceph|glusterfs|9p|afs|fuse\.(?!overlayfs|fuse-).*"
)


def is_remote(kind: str) -> bool:
  """Whether a type of file system lies on another machine."""
  return bool(_NETWORK.fullmatch(kind))


def hidden_owner(root: pathlib.Path = pathlib.Path("/")) -> int | None:
  """The number that stands for every owner whom a container does not show; None if it shows all.

  Source: user_namespaces(7), "Unmapped user and group IDs".
  """
  # First number inside, first number outside, and how many; outside of containers all 2**32 - 1.
  words = _text(root / "proc/self/uid_map").split()
  number = _text(root / "proc/sys/kernel/overflowuid").strip()
  if not words or words == ["0", "0", str(2**32 - 1)] or not number.isdecimal():
    return None
  return int(number)


def busy(loadavg: str) -> float | None:
  """The load of the last minute, from the content of /proc/loadavg; None without it."""
  found = re.match(r"(\d+\.\d+) ", loadavg)
  return float(found[1]) if found else None


def examine(folder: str | os.PathLike[str] = ".") -> Part:
  """CPUs, memory, and the room on the disk of a folder."""
  cores, quota = usable_cpus(), cpu_quota()
  total, free = host_memory()
  limit = f", and the container allows {quota:g}" if quota and quota < cores else ""
  lines = [
    f"{cpu_name()}: this process may use {cores} of {os.cpu_count()} cores{limit}",
    f"memory: {amount(total)}, {amount(free)} of it available",
  ]
  load = busy(_text(pathlib.Path("/proc/loadavg")))
  advice = []
  if load is not None:
    lines.append(f"load: {load:g} on average over the last minute")
  if load is not None and load > _BUSY * cores:
    what = (
      f"The machine is busy: {load:g} threads want its {cores} cores, so what is measured here is "
      "what they leave."
    )
    advice.append(Advice(what, "top", mend=False))
  facts = {
    "load": load,
    "system": platform.platform(),
    "cpu": cpu_name(),
    "cores": cores,
    "cpu_quota": quota,
    "memory_bytes": total,
    "memory_available_bytes": free,
  }
  try:
    here = pathlib.Path(folder).absolute()
    room = shutil.disk_usage(here)
  except OSError as error:
    lines.append(f"disk of the current folder: unknown ({error.strerror or error})")
    return Part("machine", lines, facts, advice)
  kind = file_system(here, _text(pathlib.Path("/proc/mounts")))
  lines.append(
    f"disk of the current folder: {amount(room.total)}, {amount(room.free)} of it available"
    f"{f' ({kind})' if kind else ''}"
  )
  if room.free < _LITTLE:
    advice.append(
      Advice(f"{here} has only {amount(room.free)} left; a checkpoint needs up to 1 GB.", "df -h .")
    )
  facts |= {"disk_bytes": room.total, "disk_free_bytes": room.free, "file_system": kind}
  return Part("machine", lines, facts, advice)
