"""Roots that other machines do not see, by the mounted file systems."""

import os
import socket
import types

import psutil
import pytest

from jaxspeed.errors import UserError
from jaxspeed.launch import shared_disk

# An address for documentation (RFC 5737), which no machine has.
ELSEWHERE = "192.0.2.7"


@pytest.fixture
def root(tmp_path):
  return tmp_path.resolve()


@pytest.fixture
def mount(monkeypatch):
  """Lets file systems of some kinds be mounted at some places."""

  def mount(*rows):
    places = [types.SimpleNamespace(mountpoint=str(point), fstype=kind) for point, kind in rows]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: places)

  return mount


def check(folder, *hosts):
  shared_disk.check(folder, hosts or [ELSEWHERE], escape="Slurm(shared_root=True)")


def refused(folder, kind, *hosts):
  with pytest.raises(UserError) as error:
    check(folder, *hosts)
  assert str(error.value) == (
    f"root {folder} lies on a {kind} file system of this machine alone, which the nodes do not "
    "see: choose a folder on a disk that they share, or, if they do see it, write "
    "Slurm(shared_root=True)."
  )
  return True


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"])
def test_a_disk_of_this_machine_is_refused(root, mount, kind):
  mount(("/", kind))
  assert refused(root / "runs" / "new", kind)
  assert refused(root, kind, "localhost", ELSEWHERE)
  assert refused(root, kind, "a-name-that-does-not-resolve.invalid")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs", "beegfs", "new"])
def test_shared_and_unknown_file_systems_are_taken(root, mount, kind):
  mount(("/", "ext4"), (root, kind))
  check(root / "runs")
  assert refused(root.parent, "ext4")


def test_nodes_that_are_this_machine_see_its_disks(root, mount):
  mount(("/", "ext4"))
  own = ["localhost", "127.0.0.1", "127.0.1.1", socket.gethostname()]
  for host in own:
    check(root, host)
  check(root, *own, f"{socket.gethostname().partition('.')[0]}.cluster")
  shared_disk.check(root, [], escape="")


def test_the_file_system_of_the_longest_and_last_place_counts(root, mount):
  place = root / "a b"
  mount(("/", "ext4"), (place, "nfs4"), (root, "xfs"))
  assert shared_disk.file_system(place / "c") == "nfs4"
  assert shared_disk.file_system(root / "a") == "xfs"
  mount(("/", "ext4"), (place, "nfs4"), (place, "tmpfs"), ("/", "xfs"))
  assert (shared_disk.file_system(place), shared_disk.file_system(root)) == ("tmpfs", "xfs")


def test_links_lead_to_their_file_system(root, mount):
  mount(("/", "ext4"), (root / "nfs", "nfs4"))
  (root / "nfs").mkdir()
  os.symlink(root / "nfs", root / "link")
  check(root / "link" / "runs")


def test_without_a_table_nothing_is_refused(root, mount, monkeypatch):
  mount()
  check(root)

  def fail(all):
    raise FileNotFoundError("/proc/filesystems")

  monkeypatch.setattr(psutil, "disk_partitions", fail)
  check(root)
