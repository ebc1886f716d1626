"""Roots that other machines do not see, by the tables of mounted and exported folders."""

import os
import socket

import pytest

from jaxspeed.errors import UserError
from jaxspeed.launch import shared_disk

# An address for documentation (RFC 5737), which no machine has.
ELSEWHERE = "192.0.2.7"


@pytest.fixture
def disk(tmp_path):
  """Checks a folder below `tmp_path`, with tables that a test writes."""

  class Disk:
    root = tmp_path.resolve()
    mounts = tmp_path / "mounts"
    exports = (tmp_path / "exports", tmp_path / "none")

    def mount(self, *rows):
      lines = [f"/dev/x {point} {kind} rw 0 0\n" for point, kind in rows]
      self.mounts.write_text("".join(lines))

    def check(self, folder, hosts=(ELSEWHERE,)):
      shared_disk.check(
        folder, hosts, escape="Slurm(shared_root=True)", mounts=self.mounts, exports=self.exports
      )

  return Disk()


def refused(disk, folder, kind, hosts=(ELSEWHERE,)):
  with pytest.raises(UserError) as error:
    disk.check(folder, hosts)
  assert str(error.value) == (
    f"root {folder} lies on a {kind} file system of this machine alone, which the nodes do not "
    "see: choose a folder on a disk that they share, or, if they do see it, write "
    "Slurm(shared_root=True)."
  )
  return True


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"])
def test_a_disk_of_this_machine_is_refused(disk, kind):
  disk.mount(("/", kind))
  assert refused(disk, disk.root / "runs" / "new", kind)
  assert refused(disk, disk.root, kind, ["localhost", ELSEWHERE])
  assert refused(disk, disk.root, kind, ["a-name-that-does-not-resolve.invalid"])


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs", "beegfs", "new"])
def test_shared_and_unknown_file_systems_are_taken(disk, kind):
  disk.mount(("/", "ext4"), (disk.root, kind))
  disk.check(disk.root / "runs")
  assert refused(disk, disk.root.parent, "ext4")


def test_nodes_that_are_this_machine_see_its_disks(disk):
  disk.mount(("/", "ext4"))
  own = ["localhost", "127.0.0.1", "127.0.1.1", socket.gethostname()]
  for host in own:
    disk.check(disk.root, [host])
  disk.check(disk.root, [*own, f"{socket.gethostname().partition('.')[0]}.cluster"])
  disk.check(disk.root, [])


def test_exported_disks_are_seen(disk):
  disk.mount(("/", "ext4"))
  # A name that begins in the same way is another folder.
  disk.exports[0].write_text(f"# all\n\n{disk.root}/a 10.0.0.0/8(rw)\nnothing\n")
  disk.check(disk.root / "a" / "runs")
  assert refused(disk, disk.root / "ab", "ext4")
  # Memory and containers' layers cannot be exported.
  disk.mount(("/", "overlay"))
  assert refused(disk, disk.root / "a" / "runs", "overlay")


def test_the_file_system_of_the_longest_and_last_place_counts(disk):
  place = disk.root / "a b"
  escaped = str(place).replace(" ", "\\040")
  disk.mount(("/", "ext4"), (escaped, "nfs4"), (disk.root, "xfs"))
  kind = shared_disk.file_system
  assert kind(place / "c", disk.mounts) == "nfs4"
  assert kind(disk.root / "a", disk.mounts) == "xfs"
  disk.mount(("/", "ext4"), (escaped, "nfs4"), (escaped, "tmpfs"), ("/", "xfs"))
  assert kind(place, disk.mounts) == "tmpfs"
  assert kind(disk.root, disk.mounts) == "xfs"


def test_links_lead_to_their_file_system(disk):
  disk.mount(("/", "ext4"), (disk.root / "nfs", "nfs4"))
  (disk.root / "nfs").mkdir()
  os.symlink(disk.root / "nfs", disk.root / "link")
  disk.check(disk.root / "link" / "runs")


def test_without_a_table_nothing_is_refused(disk):
  disk.check(disk.root)
  disk.mounts.write_text("damaged\n\n")
  disk.check(disk.root)
