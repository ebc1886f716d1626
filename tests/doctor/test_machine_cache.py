"""Memory, CPUs and disks from made files; the state of the cache of programs."""

import dataclasses
import os
import pathlib
from types import SimpleNamespace

import pytest

from jaxspeed.devices.program_folder import program_folder
from jaxspeed.doctor import cache, machine

MOUNTS = (
  "/dev/vda / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
  "x /mnt/my\\040disk fuse.sshfs rw 0 0\nbad\n"
)


def write(root, **files):
  for name, text in files.items():
    path = root / name.replace("__", "/").replace("_DOT_", ".")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


MEMINFO = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:   8000 kB\n"


def test_memory_is_the_machine_s_or_the_container_s(tmp_path):
  assert machine.host_memory(tmp_path) == (0, 0)
  write(tmp_path, proc__meminfo=MEMINFO)
  assert machine.host_memory(tmp_path) == (16000 * 1024, 8000 * 1024)
  write(tmp_path, sys__fs__cgroup__memory_DOT_max="max\n", sys__fs__cgroup__memory_DOT_current="5")
  assert machine.host_memory(tmp_path) == (16000 * 1024, 8000 * 1024)
  write(tmp_path, sys__fs__cgroup__memory_DOT_max="4096000\n")
  assert machine.host_memory(tmp_path) == (4096000, 4095995)
  # A container that has read many files: what they take in memory is free.
  write(
    tmp_path,
    sys__fs__cgroup__memory_DOT_current="4096000\n",
    sys__fs__cgroup__memory_DOT_stat="anon 96000\ninactive_file 3000000\nactive_file 1000000\n",
  )
  assert machine.host_memory(tmp_path) == (4096000, 3000000)


def test_cpus_of_a_container(tmp_path):
  assert machine.cpu_quota(tmp_path) is None
  write(tmp_path, sys__fs__cgroup__cpu_DOT_max="max 100000\n")
  assert machine.cpu_quota(tmp_path) is None
  write(tmp_path, sys__fs__cgroup__cpu_DOT_max="150000 100000\n")
  assert machine.cpu_quota(tmp_path) == 1.5


@pytest.mark.parametrize(
  "path, kind, remote",
  [
    ("/tmp/x", "ext4", False),
    ("/home/me/.cache", "nfs4", True),
    ("/homes", "ext4", False),
    ("/dev/shm/a", "tmpfs", False),
    ("/mnt/my disk/a", "fuse.sshfs", True),
  ],
)
def test_the_file_system_of_a_path(path, kind, remote):
  assert machine.file_system(pathlib.Path(path), MOUNTS) == kind
  assert machine.is_remote(kind) is remote


def test_this_machine():
  part = machine.examine()
  assert part.facts["cores"] == len(os.sched_getaffinity(0))
  total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  assert 0 < part.facts["memory_available_bytes"] <= part.facts["memory_bytes"] <= total
  stat = os.statvfs(".")
  assert part.facts["disk_bytes"] == stat.f_blocks * stat.f_frsize


def test_load():
  assert machine.busy("27.02 24.38 19.33 3/999 1\n") == 27.02
  assert machine.busy("") is None


def test_owners_that_a_container_hides(tmp_path):
  assert machine.hidden_owner(tmp_path) is None
  write(tmp_path, proc__self__uid_map="0 0 4294967295\n", proc__sys__kernel__overflowuid="65534\n")
  assert machine.hidden_owner(tmp_path) is None
  write(tmp_path, proc__self__uid_map="         0       1000          1\n")
  assert machine.hidden_owner(tmp_path) == 65534


# The cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A cache of one program; what is above the test's own folder counts as root's."""
  path = tmp_path / "programs"
  path.mkdir(mode=0o700)
  for name, size in (("a-cache", 1500), ("a-atime", 8)):
    (path / name).write_bytes(bytes(size))
    (path / name).chmod(0o644)
  tmp_path.chmod(0o755)
  real, above = cache._trust, set(tmp_path.parents)
  monkeypatch.setattr(
    cache, "_trust", lambda way, *rest: real([each for each in way if each not in above], *rest)
  )
  monkeypatch.setattr(cache, "_is_private", lambda *_: False)
  monkeypatch.setattr(cache, "hidden_owner", lambda: None)
  return path


def types(facts):
  return [advice.type for advice in cache.examine(facts).advice]


def owned_by_another(monkeypatch, *paths):
  """Makes files seem another user's."""
  theirs = {path.lstat().st_ino for path in paths}
  monkeypatch.setattr(cache, "_is_foreign", lambda status: status.st_ino in theirs)


def test_a_good_cache(folder):
  facts = cache.look_at(folder, mounts="/dev/vda / ext4 rw 0 0\n")
  assert facts.content == cache.Content(entries=1, size=1508) and facts.writable
  part = cache.examine(facts)
  assert part.advice == [] and part.facts["trusted"] and part.facts["local"]
  assert part.lines[0] == f"{folder} (ext4, local): 1 program, 1.51 kB"


def test_one_that_others_can_write_to(folder):
  folder.chmod(0o777)
  facts = cache.look_at(folder, mounts="")
  assert facts.loose == (str(folder),) and types(facts) == [f"chmod go-w {folder}"]
  folder.chmod(0o1777)  # sticky, as /tmp: others cannot replace what is there, but add programs
  assert str(folder) in cache.look_at(folder, mounts="").loose
  (folder / "own").mkdir(mode=0o700)
  assert str(folder) not in cache.look_at(folder / "own", mounts="").loose
  folder.chmod(0o755)
  folder.parent.chmod(0o775)
  assert str(folder.parent) in cache.look_at(folder, mounts="").loose
  assert str(folder.parent) in cache.look_at(folder.parent / "later", mounts="").loose


def test_a_group_with_the_user_s_name_is_the_user(monkeypatch):
  cache._is_private.cache_clear()
  people = {0: SimpleNamespace(pw_name="root"), 1000: SimpleNamespace(pw_name="me")}
  groups = {
    0: SimpleNamespace(gr_name="root", gr_mem=[]),
    7: SimpleNamespace(gr_name="me", gr_mem=["me"]),
    8: SimpleNamespace(gr_name="me", gr_mem=["me", "you"]),
    9: SimpleNamespace(gr_name="users", gr_mem=[]),
  }
  monkeypatch.setattr("pwd.getpwuid", people.__getitem__)
  monkeypatch.setattr("grp.getgrgid", groups.__getitem__)
  private = [cache._is_private(group, 1000) for group in (0, 7, 8, 9, 10)]
  cache._is_private.cache_clear()
  assert private == [True, True, False, False, False]


def test_one_of_another_user(folder, monkeypatch):
  owned_by_another(monkeypatch, folder)
  part = cache.examine(cache.look_at(folder, mounts=""))
  assert part.advice[0].what.startswith(f"{folder} belongs to user ")
  assert part.advice[0].type.startswith("export JAXSPEED_COMPILE_CACHE=")
  assert not part.facts["trusted"]


def test_one_inside_another_user_s_folder(folder, monkeypatch):
  owned_by_another(monkeypatch, folder.parent)
  for path in (folder, folder.parent / "later"):
    facts = cache.look_at(path, mounts="")
    part = cache.examine(facts)
    assert list(facts.foreign) == [str(folder.parent)] and not part.facts["trusted"]
    (advice,) = part.advice
    assert advice.mend and advice.what.startswith(f"{folder.parent}, on the way to the cache, ")


def test_one_behind_another_user_s_link(folder, monkeypatch):
  link = folder.parent / "link"
  link.symlink_to(folder)
  assert cache.examine(cache.look_at(link, mounts="")).facts["trusted"]
  owned_by_another(monkeypatch, link)
  assert list(cache.look_at(link, mounts="").foreign) == [str(link)]


def test_owners_that_are_hidden_are_a_hint(folder, monkeypatch):
  owned_by_another(monkeypatch, folder.parent)
  monkeypatch.setattr(cache, "hidden_owner", lambda: folder.parent.stat().st_uid)
  part = cache.examine(cache.look_at(folder, mounts=""))
  assert [each.mend for each in part.advice] == [False] and not part.facts["trusted"]


def test_files_of_others_in_one_s_own_cache(folder, monkeypatch):
  (folder / "a-cache").chmod(0o666)
  facts = cache.look_at(folder, mounts="")
  assert facts.content.odd == 1 and facts.content.example == str(folder / "a-cache")
  assert types(facts) == [f"rm -r {folder}"] and not cache.examine(facts).facts["trusted"]
  (folder / "a-cache").chmod(0o644)
  (folder / "xla").mkdir(mode=0o755)
  (folder / "xla/tuned").write_bytes(b"")
  (folder / "xla/tuned").chmod(0o600)
  owned_by_another(monkeypatch, folder / "xla/tuned", folder / "a-atime")
  (advice,) = cache.examine(cache.look_at(folder, mounts="")).advice
  assert advice.what.startswith("2 files of the cache are of other users")


def test_root_and_this_user_are_no_strangers(monkeypatch):
  monkeypatch.setattr(os, "geteuid", lambda: 1000)
  owners = {owner: cache._is_foreign(SimpleNamespace(st_uid=owner)) for owner in (0, 1000, 1001)}
  assert owners == {0: False, 1000: False, 1001: True}


def test_one_over_the_network_is_a_hint(folder):
  facts = dataclasses.replace(cache.look_at(folder, mounts=""), kind="nfs4")
  part = cache.examine(facts)
  assert [each.mend for each in part.advice] == [False] and part.facts["local"] is False
  assert "on another machine" in part.lines[0]


def test_one_that_is_not_there(folder):
  facts = cache.look_at(folder / "sub/deeper", mounts="")
  assert not facts.exists and facts.writable and types(facts) == []
  assert not (folder / "sub").exists() and len([*folder.iterdir()]) == 2
  assert types(dataclasses.replace(facts, writable=False))[0].startswith("export JAXSPEED_")


def test_a_file_and_an_unreadable_folder(folder, monkeypatch):
  assert cache.look_at(folder / "a-cache", mounts="").problem == "it is no folder"

  def refuse(path):
    raise PermissionError(13, "Permission denied", str(path))

  monkeypatch.setattr(os, "scandir", refuse)
  facts = cache.look_at(folder, mounts="")
  assert facts.problem == "Permission denied"
  assert types(facts)[0].startswith("export JAXSPEED_COMPILE_CACHE=")


def test_a_file_is_no_cache_and_its_mode_is_left_alone(folder):
  file = folder / "a-cache"
  file.chmod(0o666)  # as /dev/null, to which every program writes
  for path, words in ((file, "it is no folder"), (file / "sub", f"{file} is no folder")):
    facts = cache.look_at(path, mounts="")
    part = cache.examine(facts)
    assert facts.problem == words and part.lines == [f"{path}: {words}"]
    assert types(facts) == ["export JAXSPEED_COMPILE_CACHE=DIR"] and not part.facts["trusted"]


def test_a_folder_that_cannot_be_made(folder, monkeypatch):
  def refuse(path, *_):
    raise FileNotFoundError(2, "No such file or directory", str(path))

  monkeypatch.setattr(os, "mkdir", refuse)  # as in /proc
  facts = cache.look_at(folder / "sub/deeper", mounts="")
  part = cache.examine(facts)
  assert part.lines == [f"{facts.path}: it cannot be made (No such file or directory)"]
  assert types(facts) == ["export JAXSPEED_COMPILE_CACHE=DIR"]
  assert types(cache.look_at(folder, mounts=""))[0].startswith("export JAXSPEED_")


def test_no_home(monkeypatch):
  monkeypatch.setattr(pathlib.Path, "expanduser", lambda self: (_ for _ in ()).throw(RuntimeError))
  assert cache.look_at(pathlib.Path("~/x"), mounts="").problem.startswith("it names no folder")


def test_the_folder_of_programs():
  given = {"JAXSPEED_COMPILE_CACHE": "/c"}
  assert program_folder("", given) == pathlib.Path("/c")
  assert program_folder("/a", given) == pathlib.Path("/a")
  assert program_folder("", {}) == pathlib.Path("~/.cache/jaxspeed/programs")


def test_counting_stops_in_time(folder):
  for number in range(50):
    (folder / f"{number}-cache").touch()
  assert not cache.look_at(folder, mounts="", seconds=-1.0).content.counted
