"""The comparison with PyTorch runs, and compares the same thing."""

import json
import subprocess
import sys

import pytest
from commands import ROOT

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_bench_times_the_same_step_in_both(tmp_path):
  out = tmp_path / "report.json"
  command = [sys.executable, "scripts/bench_cpu.py", "--batch=16", "--width=4", "--steps=2"]
  done = subprocess.run(
    [*command, f"--out={out}"], cwd=ROOT, capture_output=True, text=True, timeout=240
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  # From the same first weights; float32 rounds each of some dozen layers.
  losses = report["first_losses"].values()
  assert len(losses) == 3 and max(losses) == pytest.approx(min(losses), rel=1e-3)
  medians, ratio = report["median_s"], report["ratio_of_medians"]["torch"]
  assert ratio == pytest.approx(medians["jaxspeed"] / medians["torch"])
  assert f"jaxspeed takes {ratio:.2f} of it" in done.stdout
