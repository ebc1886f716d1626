"""The comparison with PyTorch runs, and compares the same thing."""

import json
import subprocess
import sys

import pytest
from commands import ROOT

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet9", "94_muon", "resnet18"])
def test_the_bench_times_the_same_step_in_both(model, tmp_path):
  out = tmp_path / "report.json"
  command = [sys.executable, "scripts/bench_cpu.py", f"--model={model}", "--batch=16", "--width=4"]
  done = subprocess.run(
    [*command, "--steps=2", f"--out={out}"], cwd=ROOT, capture_output=True, text=True, timeout=240
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  assert (report["model"], report["batch"], report["width"], report["n"]) == (model, 16, 4, 2)
  # From the same first weights; float32 rounds each of some dozen layers.
  assert len(report["first_losses"]) == 3
  losses = report["first_losses"].values()
  assert max(losses) == pytest.approx(min(losses), rel=1e-3)
  assert all(0 < report["min_s"][name] <= median for name, median in report["median_s"].items())
  ratio = report["ratio_of_medians"]["torch"]
  medians = report["median_s"]
  assert ratio == pytest.approx(medians["jaxspeed"] / medians["torch"])
  assert f"jaxspeed takes {ratio:.2f} of it" in done.stdout
