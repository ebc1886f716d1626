"""Where a result comes from, what its machine counted, and seconds in words."""

import platform
import shutil
import subprocess
import types
from unittest import mock

import jax
import pytest

from jaxspeed.records import meters
from jaxspeed.records.durations import duration
from jaxspeed.records.meters import NetworkMeter, peak_memory
from jaxspeed.records.provenance import commit, cpu_name, describe_device


def test_devices_are_counted_and_named(tmp_path, monkeypatch):
  monkeypatch.setattr("jaxspeed.records.provenance.cpu_name", lambda: "AMD EPYC")
  monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
  for kind, devices, words in (
    ("gpu", 2, "2 x NVIDIA H100 80GB HBM3"),
    ("cpu", 8, "CPU: AMD EPYC (2 cores, 8 devices)"),
  ):
    one = types.SimpleNamespace(platform=kind, device_kind="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(jax, "devices", lambda: [one] * devices)  # noqa: B023
    assert describe_device() == words
  cpuinfo = tmp_path / "cpuinfo"
  cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\nprocessor\t: 1\n")
  assert cpu_name(str(cpuinfo)) == "AMD EPYC 9654"
  monkeypatch.setattr(platform, "processor", lambda: "")
  monkeypatch.setattr(platform, "machine", lambda: "arm64")
  cpuinfo.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
  assert cpu_name(str(cpuinfo)) == cpu_name(str(tmp_path / "none")) == "arm64"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_commit_is_the_head_with_its_changes_asked_once(tmp_path, monkeypatch):
  # A hook that runs these tests names its own repository.
  monkeypatch.delenv("GIT_DIR", raising=False)
  monkeypatch.delenv("GIT_INDEX_FILE", raising=False)

  def git(*arguments):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(tmp_path), *names, *arguments], check=True)

  def asked(folder=tmp_path):
    commit.cache_clear()
    return commit(folder)

  git("init", "-q")
  assert asked() is None  # a repository without a commit
  (tmp_path / "a.py").write_text("1\n")
  git("add", "a.py")
  git("commit", "-q", "-m", "first")
  # Untracked files change no code.
  (tmp_path / "site-packages").mkdir()
  (tmp_path / "site-packages" / "a.txt").touch()
  head = (tmp_path / ".git" / (tmp_path / ".git" / "HEAD").read_text()[5:].strip()).read_text()
  assert asked() == head.strip()
  (tmp_path / "a.py").write_text("2\n")
  assert commit(tmp_path) == head.strip()
  assert asked() == f"{head.strip()}-dirty"
  # As a virtual environment inside somebody else's repository.
  assert asked(tmp_path / "site-packages") is None
  monkeypatch.setenv("PATH", "")
  assert asked() is None  # without git
  commit.cache_clear()


def test_rates_are_gigabits_a_second_since_the_meter_was_made(monkeypatch):
  reads = iter([(5, 7), (5 + 10**9, 7 + 5 * 10**8), (5 + 3 * 10**9, 7 + 5 * 10**8)])
  seconds = iter([100.0, 104.0, 106.0])
  monkeypatch.setattr(meters, "network_bytes", reads.__next__)
  monkeypatch.setattr(meters.time, "monotonic", seconds.__next__)
  meter = NetworkMeter()
  # 8 bits times 10^9 bytes over 4 s, and half as many bytes out.
  assert meter.rates() == pytest.approx({"net_recv_gbit": 2.0, "net_transmit_gbit": 1.0})
  assert meter.rates() == pytest.approx({"net_recv_gbit": 4.0, "net_transmit_gbit": 4 / 6})
  monkeypatch.undo()
  monkeypatch.setattr("psutil.net_io_counters", mock.Mock(side_effect=FileNotFoundError))
  assert NetworkMeter().rates() == {}  # a system that counts no bytes


def test_peak_memory_is_that_of_the_fullest_device_and_unknown_on_a_cpu():
  def device(stats):
    return types.SimpleNamespace(memory_stats=lambda: stats)

  fullest = [device({"peak_bytes_in_use": n, "bytes_in_use": 7e9}) for n in (2 * 10**9, 3 * 10**9)]
  assert peak_memory([*fullest, device(None), device({})]) == {"memory_gb": 3.0}
  assert peak_memory(jax.devices("cpu")) == {}


def test_a_time_is_shown_as_measured_or_as_published():
  seconds = (1.98, 8, 26.04, 6552, 8532, 172_799, 2e8)
  long = ["109 min 12 s", "2.37 h", "48.00 h", "2,314.8 days"]
  assert [*map(duration, seconds)] == ["1.98 s", "8.00 s", "26.0 s", *long]
  published = [duration(each, as_published=True) for each in seconds]
  assert published == ["1.98 s", "8 s", "26.04 s", *long]
