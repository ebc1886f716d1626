"""What tests of the GPU day share."""

import importlib
import sys
import time

import pytest
from commands import ROOT
from fake_gpu_day import H100, SCRIPT

sys.path.insert(0, str(ROOT / "scripts"))
gpu_day = importlib.import_module("gpu_day")
gpu_machine = importlib.import_module("gpu_machine")
gpu_parts = importlib.import_module("gpu_parts")
gpu_summary = importlib.import_module("gpu_summary")


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  script = tmp_path / "bench_allreduce.py"
  script.write_text(SCRIPT)
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: H100)
  # The clock of a script starts when it is imported: here perhaps long before this test.
  monkeypatch.setattr(gpu_day, "_STARTED", time.monotonic())

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, f"part {name}", str(script), (first,), **{"least": 0, "most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))

  return set_parts


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
  """Calls it; returns the exit code, the states, and both outputs."""

  def call(*arguments):
    monkeypatch.setattr(gpu_day, "_STARTED", time.monotonic())
    code = gpu_day.main([*arguments, f"--out={tmp_path / 'out'}"])
    entries = gpu_summary.read(tmp_path / "out").get("parts", {})
    out, err = capsys.readouterr()
    return code, {name: entry["state"] for name, entry in entries.items()}, out, err

  return call
