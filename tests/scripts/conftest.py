"""The folder of the scripts is on the path, as for a script that is run; what tests of the GPU day
share.
"""

import sys
import time

import pytest
from commands import ROOT
from fake_gpu_day import H100, SCRIPT

sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  import gpu_machine
  import gpu_parts

  script = tmp_path / "bench_allreduce.py"
  script.write_text(SCRIPT)
  monkeypatch.setattr(gpu_machine, "probe", lambda dry_run: H100)

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, f"part {name}", str(script), (first,), **{"least": 0, "most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))

  return set_parts


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
  """Calls it; returns the exit code, the states of the parts' files, and both outputs."""
  import gpu_day
  import gpu_tables

  def call(*arguments):
    # The clock of a script starts when it is imported: here perhaps long before this test.
    monkeypatch.setattr(gpu_day, "_STARTED", time.monotonic())
    code = gpu_day.main([*arguments, f"--out={tmp_path / 'out'}"])
    reports, _ = gpu_tables.read(tmp_path / "out")
    out, err = capsys.readouterr()
    return code, {name: report["gpu_day"]["state"] for name, report in reports.items()}, out, err

  return call
