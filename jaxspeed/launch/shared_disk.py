"""Whether the machines of a cluster see a folder of this one, as far as that can be found out."""

import ipaddress
import os
import pathlib
import re
import socket
from collections.abc import Sequence

from jaxspeed.errors import UserError

# File systems on a disk or in the memory of one machine; others, such as nfs, lustre, gpfs, beegfs
# and those of FUSE, are shared, or not known here.
_LOCAL = {"tmpfs", "ramfs", "overlay", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}
_MEMORY = {"tmpfs", "ramfs", "overlay"}
_MOUNTS = pathlib.Path("/proc/self/mounts")
_EXPORTS = (pathlib.Path("/etc/exports"), pathlib.Path("/var/lib/nfs/etab"))


def check(
  folder: pathlib.Path,
  hosts: Sequence[str],
  *,
  escape: str,
  mounts: pathlib.Path = _MOUNTS,
  exports: Sequence[pathlib.Path] = _EXPORTS,
) -> None:
  """Refuses a folder that other machines do not see.

  Args:
    folder: an absolute path; it need not exist.
    hosts: names or addresses of the machines.
    escape: what to write where this function is wrong.
    mounts: Linux's table of mounted file systems.
    exports: what this machine exports by NFS.

  Raises:
    UserError: the folder lies on a disk of this machine, does not export it, and one of the hosts
      is another machine.
  """
  kind = file_system(folder, mounts)
  if kind not in _LOCAL or all(map(_is_here, hosts)):
    return
  if kind not in _MEMORY and any(folder.is_relative_to(path) for path in _exported(exports)):
    return
  raise UserError(
    f"root {folder} lies on a {kind} file system of this machine alone, which the nodes do not "
    f"see: choose a folder on a disk that they share, or, if they do see it, write {escape}."
  )


def file_system(folder: pathlib.Path, mounts: pathlib.Path = _MOUNTS) -> str:
  """The kind of the file system on which a folder lies or would be created; '' if not known."""
  try:
    rows = [line.split(" ") for line in mounts.read_text().splitlines()]
  except OSError:  # not Linux
    return ""
  real = pathlib.Path(os.path.realpath(folder))
  found = ""
  longest = -1
  for _, point, kind, *_ in (row for row in rows if len(row) >= 3):
    # Spaces and the like are \040 in the table.
    point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
    # Of several file systems at one place, the last one covers the others.
    if real.is_relative_to(point) and len(point) >= longest:
      found, longest = kind, len(point)
  return found


def _exported(files: Sequence[pathlib.Path]) -> list[str]:
  paths = []
  for file in files:
    try:
      lines = file.read_text().splitlines()
    except OSError:
      continue
    paths += [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
  return [path for path in paths if path.startswith("/")]


def _is_here(host: str) -> bool:
  """Whether a name or an address is this machine's; False for a name that does not resolve."""
  names = {socket.gethostname(), socket.getfqdn(), "localhost"}
  if host in names or host.partition(".")[0] == socket.gethostname().partition(".")[0]:
    return True
  try:
    address = socket.gethostbyname(host)
  except OSError:
    return False
  return ipaddress.ip_address(address).is_loopback or _is_own(address)


def _is_own(address: str) -> bool:
  """Whether this machine has an address, which is when a socket can be bound to it."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.bind((address, 0))
    except OSError:
      return False
  return True
