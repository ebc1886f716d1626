"""The command: in this process with small sizes, and beside a broken plugin in another."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading

import pytest
from commands import ROOT, environment
from in_process import command, mistake

from jaxspeed.doctor import cache, ceilings, jax_devices, nvidia, part, report
from jaxspeed.doctor import command as doctor
from jaxspeed.errors import INTERRUPTED, UserError


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
  """Small sizes, an own cache, and no nvidia-smi."""
  tiny = dataclasses.replace(ceilings.CPU, side=64, megabytes=1, reduced=1, seconds=0.0)
  monkeypatch.setattr(ceilings, "CPU", tiny)
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "programs"))
  monkeypatch.setattr(nvidia, "look", lambda *_: nvidia.Nvidia("nvidia-smi is not installed"))
  monkeypatch.setattr(jax_devices, "prepare", lambda: None)
  monkeypatch.setattr(jax_devices, "_import", lambda: None)
  monkeypatch.setattr(cache, "_trust", lambda *_: {})


def test_the_report_and_its_json(tmp_path):
  recipe = "--config=configs/cifar10_resnet9.py"
  before = sorted(os.listdir(ROOT))
  done = command("doctor", recipe)
  assert done.returncode == 0, done.stdout + done.stderr
  names = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
  assert names[:9] == [
    "software", "machine", "compile cache", "devices", "all-reduce", "ceilings", "clocks",
    "recipe", "nothing to mend",
  ]  # fmt: skip
  assert "JAX sees CPU: 8 x cpu" in done.stdout and "predicted" in done.stdout
  # The machine's memory and the recipe's are in one unit.
  assert not re.search(r"\b[KMGT]iB\b", done.stdout)
  found = json.loads(command("doctor", recipe, "--json").stdout)
  assert found["well"] is True and list(found["parts"]) == names[:8]
  assert found["parts"]["devices"]["devices"] == ["cpu"] * 8
  assert found["parts"]["recipe"]["seconds"] > 0
  for name, each in found["parts"].items():
    assert each["lines"], name
  assert not (tmp_path / "programs").exists() and sorted(os.listdir(ROOT)) == before


def test_the_seconds_are_those_of_the_process(monkeypatch):
  """Imports count, which take seconds."""
  monkeypatch.setattr(doctor, "process_age", lambda: 12.34)
  assert command("doctor").stdout.endswith("\nexamined in 12.3 s\n")
  assert json.loads(command("doctor", "--json").stdout)["seconds"] == 12.34


def test_what_is_to_mend_ends_with_1(tmp_path):
  (tmp_path / "programs").write_text("")
  (tmp_path / "empty").mkdir()
  done = command("doctor", f"--data={tmp_path / 'empty'}")
  # Without TensorFlow, that is to mend too.
  to_mend = re.search(r"^to mend: ([23])$", done.stdout, flags=re.MULTILINE)
  assert done.returncode == 1 and to_mend
  assert "programs: it is no folder" in done.stdout and "holds no image" in done.stdout


def test_mistakes_in_flags(tmp_path):
  missing = tmp_path / "none"
  assert mistake("doctor", f"--data={missing}").startswith(f"--data={missing} does not exist: ")
  assert "is no folder" in mistake("doctor", f"--data={__file__}")
  assert "is not a flag" in mistake("doctor", "imagenet18")
  assert "there is no" in mistake("doctor", "--config=imagenet19")
  recipe = ("--config=configs/cifar10.py", f"--config.data.path={missing}")
  assert mistake("doctor", *recipe).startswith(f"config.data.path={missing} does not exist: ")


def test_data_that_are_not_streamed_from_a_folder_are_not_timed(tmp_path):
  (tmp_path / "cifar-10-batches-bin").mkdir()
  (tmp_path / "photos.csv").touch()
  for recipe, name in (("cifar10", "cifar-10-batches-bin"), ("imagenette", "photos.csv")):
    path = f"--config.data.path={tmp_path / name}"
    done = command("doctor", f"--config=configs/{recipe}.py", path)
    assert done.returncode in (0, 1) and "\ndata\n" not in done.stdout
    assert "\nrecipe\n" in done.stdout and "holds no image" not in done.stdout


def test_a_part_that_fails_is_told_and_the_others_follow(monkeypatch):
  def fail(*_, **__):
    raise ValueError("a\nb")

  monkeypatch.setattr(ceilings, "measure", fail)
  done = command("doctor")
  assert done.returncode == 1
  assert "ceilings could not be examined: ValueError: a\n" in done.stdout
  refused = doctor._failed("recipe", UserError("set it."))
  assert refused.lines == ["recipe could not be examined: set it."]


def test_an_interrupt_does_not_wait_for_a_driver(monkeypatch, capsys):
  over, codes = threading.Event(), []

  def hang(**_):
    thread = threading.Thread(target=over.wait, name=jax_devices.THREAD, daemon=True)
    thread.start()
    hanging.append(thread)
    raise KeyboardInterrupt

  hanging = []
  monkeypatch.setattr(jax_devices, "find", hang)
  monkeypatch.setattr(os, "_exit", codes.append)
  try:
    with pytest.raises(SystemExit):  # what follows where a test holds os._exit
      doctor.main(doctor.Wish())
  finally:
    over.set()
    hanging[0].join()
  assert codes == [INTERRUPTED] and "stopped by Ctrl-C." in capsys.readouterr().err
  monkeypatch.setattr(doctor, "run", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
  with pytest.raises(KeyboardInterrupt):  # nothing hangs
    doctor.main(doctor.Wish())


def test_clocks_are_asked_while_a_device_works(monkeypatch):
  """Before its first product it is compiled for seconds, with the GPU idle."""
  gpu = nvidia.Gpu("NVIDIA H100 80GB HBM3", (9, 0), "580.1", clock_mhz=900.0, most_mhz=1980.0)
  events, asked, real = [], threading.Event(), ceilings.best_seconds

  def timed(call, *, seconds, begun=lambda: None):
    def then():
      events.append("works")
      begun()
      assert asked.wait(60)

    return real(call, seconds=seconds, begun=then)

  def throttling():
    events.append("asked")
    asked.set()
    return [0x40], ""

  monkeypatch.setattr(nvidia, "look", lambda *_: nvidia.Nvidia("", (gpu,), "580.1"))
  monkeypatch.setattr(ceilings, "best_seconds", timed)
  monkeypatch.setattr(nvidia, "throttling", throttling)
  found = json.loads(command("doctor", "--json").stdout)
  assert events[:2] == ["works", "asked"]
  # JAX measured the CPU, so the GPU's heat is a hint.
  (hint,) = [each for each in found["advice"] if each["part"] == "clocks"]
  assert not hint["mend"]


def test_libraries_do_not_write_into_the_report(monkeypatch, capfd):
  real = ceilings.examine

  def noisy(found):
    os.write(1, b"[Gloo] Rank 0 is connected\n")
    return real(found)

  monkeypatch.setattr(ceilings, "examine", noisy)
  assert command("doctor", "--json").returncode == 0
  assert "Gloo" not in capfd.readouterr().out


def test_a_hint_is_no_defect():
  hint = part.Part("x", ["y"], {}, [part.Advice("better", "do", mend=False)])
  assert report.is_well([hint]) and report.summary([hint]).splitlines() == [
    "nothing to mend",
    "hints",
    "  better",
    "    do",
  ]


@pytest.mark.parametrize(
  "size, text",
  [
    (0, "0 bytes"),
    (999, "999 bytes"),
    (1500, "1.5 kB"),
    (999.4e6, "999 MB"),
    (999.6e6, "1 GB"),
    (2e9, "2 GB"),
    (3e12, "3 TB"),
  ],
)
def test_amounts(size, text):
  assert part.amount(size) == text


def test_a_broken_plugin_without_tensorflow_and_home(tmp_path):
  """In another folder, with a read-only home, an nvidia-smi that fails, and a closed pipe after."""
  plugin = tmp_path / "path/jax_plugins/broken"
  plugin.mkdir(parents=True)
  (plugin / "__init__.py").write_text("def initialize():\n  raise RuntimeError('no libcuda')\n")
  lacking = tmp_path / "path/tensorflow"
  lacking.mkdir()
  (lacking / "__init__.py").write_text("raise ImportError('no TensorFlow')\n")
  smi = tmp_path / "bin/nvidia-smi"
  smi.parent.mkdir()
  smi.write_text("#!/bin/sh\necho garbage\n")
  smi.chmod(0o755)
  images = tmp_path / "images/a"
  images.mkdir(parents=True)
  (images / "x.jpg").write_bytes(b"\xff\xd8\xff broken")
  env = environment() | {
    "PYTHONPATH": f"{tmp_path / 'path'}{os.pathsep}{ROOT}",
    "PATH": f"{smi.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
    "HOME": "/proc",  # nothing can be written there
  }
  env.pop("JAXSPEED_COMPILE_CACHE", None)
  done = subprocess.run(
    [sys.executable, "-m", "jaxspeed.doctor", f"--data={images.parent}"],
    cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300,
  )  # fmt: skip
  assert done.returncode == 1 and done.stderr == "", done.stderr
  assert "Traceback" not in done.stdout
  assert "A plugin of JAX failed: " in done.stdout and "RuntimeError: no libcuda" in done.stdout
  assert "    python -c 'import jax_plugins.broken as plugin; plugin.initialize()'\n" in done.stdout
  assert "nvidia-smi printed no GPU that can be read" in done.stdout
  assert "/proc/.cache/jaxspeed/programs" in done.stdout
  assert "ceilings" in done.stdout
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {"path", "bin", "images"}
