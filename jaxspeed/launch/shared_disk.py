"""Whether the machines of a cluster see a folder of this one, as far as that can be found out."""

import ipaddress
import os
import pathlib
import socket
from collections.abc import Sequence

import psutil

from jaxspeed.errors import UserError

# File systems on a disk or in the memory of one machine; others, such as nfs, lustre, gpfs, beegfs
# and those of FUSE, are shared, or not known here.
_LOCAL = {"tmpfs", "ramfs", "overlay", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"}


def check(folder: pathlib.Path, hosts: Sequence[str], *, escape: str) -> None:
  """Refuses a folder that other machines do not see.

  Args:
    folder: an absolute path; it need not exist.
    hosts: names or addresses of the machines.
    escape: what to write where this function is wrong.

  Raises:
    UserError: the folder lies on a disk of this machine, and one of the hosts is another machine.
  """
  kind = file_system(folder)
  if kind not in _LOCAL or all(map(_is_here, hosts)):
    return
  raise UserError(
    f"root {folder} lies on a {kind} file system of this machine alone, which the nodes do not "
    f"see: choose a folder on a disk that they share, or, if they do see it, write {escape}."
  )


def file_system(folder: pathlib.Path) -> str:
  """The kind of the file system on which a folder lies or would be created; '' if not known."""
  real = pathlib.Path(os.path.realpath(folder))
  try:
    places = psutil.disk_partitions(all=True)
  except (OSError, psutil.Error):
    return ""
  own = [place for place in places if real.is_relative_to(place.mountpoint)]
  # Of several at one place, the last one covers the others.
  return max(reversed(own), key=lambda place: len(place.mountpoint)).fstype if own else ""


def _is_here(host: str) -> bool:
  """Whether a name or an address is this machine's; False for a name that does not resolve."""
  names = {socket.gethostname(), socket.getfqdn(), "localhost"}
  if host in names or host.partition(".")[0] == socket.gethostname().partition(".")[0]:
    return True
  try:
    address = socket.gethostbyname(host)
  except OSError:
    return False
  own = {each.address for several in psutil.net_if_addrs().values() for each in several}
  return ipaddress.ip_address(address).is_loopback or address in own
