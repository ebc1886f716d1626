"""nvidia-smi that answers, fails, hangs or prints garbage; GPUs that only files name."""

import time

import pytest

from jaxspeed.doctor import nvidia

ROW = "0, NVIDIA H100 80GB HBM3, 9.0, 580.65.06, 81559, 4, 345, 1980, 31, 68.50, 700.00"


@pytest.fixture
def smi(tmp_path, monkeypatch):
  """A function that puts a shell script in the place of nvidia-smi."""

  def install(script):
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

  return install


def test_gpus_are_read(smi, tmp_path):
  smi(f"echo '{ROW}'; echo '1, Tesla V100-SXM2-16GB, 7.0, 580.65.06, 16384, [N/A], , x, , , '")
  found = nvidia.look(tmp_path)
  assert found.smi == "" and found.driver == "580.65.06"
  first, second = found.gpus
  assert first == nvidia.Gpu(
    "NVIDIA H100 80GB HBM3", (9, 0), "580.65.06", 81559, 4, 345, 1980, 31, 68.5, 700
  )
  assert second.capability == (7, 0) and second.used_mib is None and second.clock_mhz is None


@pytest.mark.parametrize(
  "script, reason",
  [
    ("echo 'NVIDIA-SMI has failed'; exit 9", "ended with code 9: NVIDIA-SMI has failed"),
    ("exit 1", "ended with code 1"),
    ("head -c 4000 /dev/urandom", "printed no GPU that can be read"),
    ("echo", "printed no GPU that can be read"),
    ("head -c 200000 /dev/zero | tr '\\0' a", "printed no GPU that can be read"),
    (f"yes '{ROW}' | head -c 20000 | tail -c 100; printf '\\033[31m'; exit 2", "ended with code 2"),
  ],
)
def test_a_broken_nvidia_smi_is_a_sentence(smi, tmp_path, script, reason):
  smi(script)
  found = nvidia.look(tmp_path)
  assert reason in found.smi and found.gpus == () and found.smi.isprintable()


def test_one_that_hangs_is_killed_with_its_children(smi):
  smi("sleep 60 & sleep 60")
  start = time.monotonic()
  text, problem = nvidia.ask([], seconds=0.3)
  assert (text, problem) == ("", "nvidia-smi did not answer in 0.3 s")
  assert time.monotonic() - start < 30


def test_none_at_all(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  found = nvidia.look(tmp_path)
  assert found.smi.startswith("nvidia-smi is not installed") and not found.present


def test_one_that_cannot_be_started(smi, tmp_path):
  smi("exit 0")
  (tmp_path / "nvidia-smi").write_text("no script")
  _, problem = nvidia.ask([])
  assert problem.startswith("nvidia-smi cannot be started (")


def test_a_gpu_without_a_driver_is_on_the_bus(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path / "none"))
  for name, vendor, kind in (
    ("0000:00:01.0", "0x10de", "0x040300"),  # its sound
    ("0000:00:02.0", "0x10de", "0x030200"),
    ("0000:00:03.0", "0x1af4", "0x030000"),
  ):
    folder = tmp_path / "sys/bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")
  found = nvidia.look(tmp_path)
  assert found.present and found.nodes == ("/sys/bus/pci/devices/0000:00:02.0",)


def test_files_name_gpus_and_the_driver(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path / "none"))
  (tmp_path / "dev").mkdir()
  for name in ("nvidia0", "nvidia1", "nvidiactl", "null"):
    (tmp_path / "dev" / name).touch()
  (tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0").mkdir(parents=True)
  (tmp_path / "proc/driver/nvidia/version").write_text(
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    "GCC version: gcc version 11.4.0\n"
  )
  found = nvidia.look(tmp_path)
  assert found.nodes == ("/dev/nvidia0", "/dev/nvidia1") and found.driver == "580.65.06"
  assert found.present and found.gpus == ()


def test_reasons_by_their_new_and_old_names(smi):
  smi('case "$1" in *event*) echo "Field is not valid"; exit 2;; *) echo 0x0000000000000044;; esac')
  assert nvidia.throttling() == ([0x44], "")
  smi("echo 0x1; echo 0x0")
  assert nvidia.throttling() == ([1, 0], "")
  smi("echo '[N/A]'")
  assert nvidia.throttling() == ([], "nvidia-smi states no reasons")
  smi("exit 3")
  assert nvidia.throttling() == ([], "nvidia-smi ended with code 3")
