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
  assert cpu_name(str(cpuinfo)) == cpu_name(str(tmp_path / "none")) == "arm64"


def git(folder, *arguments):
  names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
  command = ["git", "-C", str(folder), *names, *arguments]
  return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_the_head_with_its_changes_asked_once(tmp_path, monkeypatch):
  # A hook that runs these tests names its own repository.
  monkeypatch.delenv("GIT_DIR", raising=False)
  monkeypatch.delenv("GIT_INDEX_FILE", raising=False)
  git(tmp_path, "init")
  commit.cache_clear()
  assert commit(tmp_path) is None  # of a repository without one
  (tmp_path / "a.py").write_text("1\n")
  git(tmp_path, "add", "a.py")
  git(tmp_path, "commit", "-m", "first")
  # Untracked files change no code.
  (tmp_path / "site-packages").mkdir()
  (tmp_path / "site-packages" / "a.txt").touch()
  head = git(tmp_path, "rev-parse", "HEAD")
  commit.cache_clear()
  assert len(head) == 40 and commit(tmp_path) == head
  (tmp_path / "a.py").write_text("2\n")
  assert commit(tmp_path) == head
  commit.cache_clear()
  assert commit(tmp_path) == f"{head}-dirty"
  # As a virtual environment inside somebody else's repository.
  assert commit(tmp_path / "site-packages") is None
  monkeypatch.setenv("PATH", "")
  commit.cache_clear()
  assert commit(tmp_path) is None  # without git
  commit.cache_clear()
