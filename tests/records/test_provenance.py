import platform
import shutil
import subprocess
import types

import jax
import pytest

from jaxspeed.records.provenance import commit, cpu_name, describe_device


@pytest.mark.parametrize(
  "platform, devices, cores, words",
  [
    ("gpu", 2, 2, "2 x NVIDIA H100 80GB HBM3"),
    ("cpu", 1, 2, "CPU: AMD EPYC (2 cores)"),
    ("cpu", 8, 2, "CPU: AMD EPYC (2 cores, 8 devices)"),
    ("cpu", 1, 1, "CPU: AMD EPYC (1 core)"),
  ],
)
def test_devices_are_counted_and_named(monkeypatch, platform, devices, cores, words):
  one = types.SimpleNamespace(platform=platform, device_kind="NVIDIA H100 80GB HBM3")
  monkeypatch.setattr(jax, "devices", lambda: [one] * devices)
  monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(cores)}, raising=False)
  monkeypatch.setattr("jaxspeed.records.provenance.cpu_name", lambda: "AMD EPYC")
  assert describe_device() == words


def test_cpu_name_comes_from_cpuinfo_where_there_is_one(tmp_path, monkeypatch):
  cpuinfo = tmp_path / "cpuinfo"
  cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\n")
  assert cpu_name(str(cpuinfo)) == "AMD EPYC 9654"
  monkeypatch.setattr(platform, "processor", lambda: "")
  monkeypatch.setattr(platform, "machine", lambda: "arm64")
  cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
  assert cpu_name(str(cpuinfo)) == "arm64"
  assert cpu_name(str(tmp_path / "none")) == "arm64"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
  if shutil.which("git") is None:
    pytest.skip("needs git")
  # A hook that runs these tests names its own repository.
  monkeypatch.delenv("GIT_DIR", raising=False)
  monkeypatch.delenv("GIT_INDEX_FILE", raising=False)
  git(tmp_path, "init")
  (tmp_path / "a.py").write_text("1\n")
  git(tmp_path, "add", "a.py")
  git(tmp_path, "commit", "-m", "first")
  yield tmp_path
  commit.cache_clear()


def git(folder, *arguments):
  names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
  command = ["git", "-C", str(folder), *names, *arguments]
  return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_commit_is_the_head_with_its_changes_asked_once(checkout):
  (checkout / "notes.txt").write_text("untracked files change no code\n")
  head = git(checkout, "rev-parse", "HEAD")
  assert len(head) == 40 and commit(checkout) == head
  (checkout / "a.py").write_text("2\n")
  assert commit(checkout) == head
  for staged in (False, True):
    if staged:
      git(checkout, "add", "a.py")
    commit.cache_clear()
    assert commit(checkout) == f"{head}-dirty"


def test_no_commit_where_there_is_none_of_ones_own(checkout, tmp_path_factory, monkeypatch):
  # As site-packages of a virtual environment inside somebody else's repository.
  (checkout / "site-packages").mkdir()
  assert commit(checkout / "site-packages") is None
  empty = tmp_path_factory.mktemp("empty")
  git(empty, "init")
  assert commit(empty) is None
  monkeypatch.setenv("PATH", "")
  assert commit(checkout) is None  # without git
