"""The folder of the scripts is on the path, as for a script that is run; calls of scripts, and a
GPU's day with parts of one's own.
"""

import importlib
import json
import subprocess
import sys

import in_process
import pytest
from commands import ROOT, environment

sys.path.insert(0, str(ROOT / "scripts"))
from fake_gpu_day import H100, SCRIPT  # noqa: E402


@pytest.fixture
def script(monkeypatch):
  """Calls a script's `main` in the checkout's folder: the exit code and what it printed."""
  monkeypatch.chdir(ROOT)
  return lambda name, *words: in_process.call(
    importlib.import_module(name).main, f"scripts/{name}.py", *words
  )


@pytest.fixture
def report_of(tmp_path):
  """Calls a script in a process of its own, as a user does; returns its report."""

  def report_of(name, *words):
    out = tmp_path / "report.json"
    command = [sys.executable, f"scripts/{name}.py", *words, f"--out={out}"]
    pipes = dict(capture_output=True, text=True, timeout=300)
    done = subprocess.run(command, cwd=ROOT, env=environment(), **pipes)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())

  return report_of


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  import gpu_day
  import gpu_parts

  fake = tmp_path / "bench_fake.py"
  fake.write_text(SCRIPT)
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: H100)

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, command=f"{fake} {first}", **{"most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))
    monkeypatch.setattr(gpu_parts, "TOYS", {str(fake): ""})

  return set_parts


@pytest.fixture
def day(tmp_path, script):
  """A day on a GPU: the exit code, the states of the parts' files, and both outputs."""
  import gpu_parts

  def day(*words):
    done = script("gpu_day", f"--out={tmp_path}/out", *words)
    reports = gpu_parts.read(tmp_path / "out")
    states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
    return done.returncode, states, done.stdout, done.stderr

  return day
