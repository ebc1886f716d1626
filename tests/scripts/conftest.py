"""The folder of the scripts is on the path, as for a script that is run; what tests of the GPU day
share.
"""

import sys

import pytest
from commands import ROOT
from fake_gpu_day import H100, SCRIPT
from in_process import fresh_flags

sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def parts(tmp_path, monkeypatch):
  """Sets the parts: their names, each with what it does and other fields."""
  import gpu_day
  import gpu_parts

  script = tmp_path / "bench_fake.py"
  script.write_text(SCRIPT)
  monkeypatch.setattr(gpu_day, "probe", lambda dry_run: H100)

  def set_parts(**does):
    made = [
      gpu_parts.Part(name, command=f"{script} {first}", **{"most": 1} | more)
      for name, (first, more) in does.items()
    ]
    monkeypatch.setattr(gpu_parts, "PARTS", tuple(made))
    monkeypatch.setattr(gpu_parts, "TOYS", {str(script): ""})

  return set_parts


@pytest.fixture
def call(tmp_path, capsys, monkeypatch):
  """Calls it; returns the exit code, the states of the parts' files, and both outputs."""
  import gpu_day
  import gpu_parts

  def call(*arguments):
    out = [] if any(each.startswith("--out=") for each in arguments) else [f"--out={tmp_path}/out"]
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", *arguments, *out])
    code = 0
    with fresh_flags():
      try:
        gpu_day.main()
      except SystemExit as ended:
        code = ended.code
    reports = gpu_parts.read(tmp_path / "out")
    said = capsys.readouterr()
    states = {name: report["gpu_day"]["state"] for name, report in reports.items()}
    return code, states, said.out, said.err

  return call
