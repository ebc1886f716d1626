"""The command, in this process and beside a broken or hanging runtime in another."""

import dataclasses
import json
import os
import subprocess
import sys
import time

import pytest
from commands import ROOT, environment
from in_process import command, mistake
from test_doctor_checks import ON_CPU

from jaxspeed.doctor import child, devices, machine, rules
from jaxspeed.doctor.findings import Finding, hint, mend

FACTS = dataclasses.replace(ON_CPU, kinds=("cpu",) * 8, environment="jax: 1")


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
  """A probed CPU, an own cache, and a quiet machine."""
  monkeypatch.setenv("JAXSPEED_COMPILE_CACHE", str(tmp_path / "programs"))
  monkeypatch.setattr(devices, "probe", lambda _: FACTS)
  monkeypatch.setattr(rules, "check_software", lambda: [Finding("Python 3")])
  monkeypatch.setattr(machine, "check", lambda: [Finding("2 cores")])


def test_the_report_and_its_json(tmp_path):
  recipe = "--config=configs/cifar10_resnet9.py"
  done = command("doctor", recipe)
  assert done.returncode == 0, done.stdout + done.stderr
  names = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
  expected = ["software", "machine", "devices", "ceilings", "recipe"]
  assert names[:-1] == [*expected, "nothing to mend"] and names[-1].startswith("examined in ")
  assert "JAX sees 8 x cpu" in done.stdout
  assert "GB per device" in done.stdout and "cores per host" not in done.stdout  # data in memory
  found = json.loads(command("doctor", recipe, "--json").stdout)
  assert found["well"] is True and found["environment"] == "jax: 1"
  assert list(found["checks"]) == [*expected[:-1], "data", "recipe"]
  assert found["checks"]["ceilings"][0]["facts"]["tflops"] == 0.2
  assert found["checks"]["recipe"][0]["facts"]["seconds"] > 0
  assert not (tmp_path / "programs").exists()


def test_levels_exit_codes_and_a_check_that_fails(monkeypatch):
  line = f"pip install {'x' * 100}"
  monkeypatch.setattr(rules, "check_software", lambda: [hint("It is old\x1b.", line)])
  done = command("doctor")
  assert done.returncode == 0 and f"  hint: It is old\\x1b.\n      {line}\n" in done.stdout
  monkeypatch.setattr(rules, "check_software", lambda: [mend("a", "b"), mend("c", "d")])
  monkeypatch.setattr(machine, "check", lambda: 1 / 0)
  done = command("doctor")
  assert done.returncode == 1 and "3 things to mend: software, machine\n" in done.stdout
  assert "machine could not be examined: ZeroDivisionError: " in done.stdout
  assert "ceilings" in done.stdout
  for flag, words in (
    ("--data=/none", "--data=/none does not exist: "),
    (f"--data={__file__}", "is not a folder"),
    ("--config=imagenet19", "there is no"),
  ):
    assert words in mistake("doctor", flag)


def doctor(tmp_path, plugin, *arguments, **variables):
  """Runs the doctor beside a plugin of JAX, in another folder and with a read-only home."""
  folder = tmp_path / "path/jax_plugins/odd"
  folder.mkdir(parents=True)
  (folder / "__init__.py").write_text(plugin)
  env = environment() | {"PYTHONPATH": f"{tmp_path / 'path'}{os.pathsep}{ROOT}", "HOME": "/proc"}
  env.pop("JAXSPEED_COMPILE_CACHE", None)
  done = subprocess.run(
    [sys.executable, "-m", "jaxspeed.doctor", *arguments],
    cwd=tmp_path, env=env | variables, capture_output=True, text=True, timeout=300,
  )  # fmt: skip
  assert done.stderr == "" and "Traceback" not in done.stdout
  assert {path.name for path in tmp_path.iterdir()} <= {"path", "images"}
  return done.returncode, " ".join(done.stdout.split())


def test_a_plugin_that_fails_on_a_machine_without_tensorflow_and_home(tmp_path):
  lacking = tmp_path / "path/tensorflow"
  lacking.mkdir(parents=True)
  (lacking / "__init__.py").write_text("raise ImportError('no TensorFlow')\n")
  (tmp_path / "images/a").mkdir(parents=True)
  for name in ("x", "y"):
    (tmp_path / f"images/a/{name}.jpg").write_bytes(b"\xff\xd8\xff broken")
  code, out = doctor(
    tmp_path, "def initialize():\n  raise RuntimeError('no libcuda')\n", "--data=images"
  )
  assert code == 1 and "JAX's plugin odd failed: RuntimeError: no libcuda" in out
  assert "python -c 'import jax_plugins.odd as plugin; plugin.initialize()'" in out
  assert "TFLOP/s" in out and " things to mend: devices, data " in out


@pytest.mark.parametrize(
  "plugin, variables, words",
  [
    ("raise SystemExit(3)", {}, "JAX found no device: exit code 3"),
    ("import os; os.abort()", {}, "JAX found no device: exit code -6"),
    ("", {"XLA_FLAGS": "--xla_nope=1"}, "Unknown flag in XLA_FLAGS: --xla_nope=1 unset XLA_FLAGS"),
  ],
)
def test_a_runtime_that_raises_or_dies_is_a_finding(tmp_path, plugin, variables, words):
  code, out = doctor(tmp_path, plugin, "--json", **variables)
  found = json.loads(out)["checks"]["devices"]
  assert code == 1 and any(words in f"{each['what']} {each['advice']}" for each in found), found


def test_a_runtime_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
  (tmp_path / "hangs.py").write_text(
    "import subprocess, sys, time\n"
    "print(sys.argv[1], 'noise', sep='\\n', flush=True)\n"
    "subprocess.Popen(['sleep', '60']).wait()\n"
  )
  monkeypatch.syspath_prepend(str(tmp_path))
  start = time.monotonic()
  ended = child.run("hangs", '{"a": 1}', seconds=3.0)
  assert (ended.code, ended.lines) == (None, [{"a": 1}]) and time.monotonic() - start < 30
