"""The comparison with PyTorch runs, and compares the same thing."""

import json
import subprocess
import sys

import pytest
from commands import ROOT

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_bench_times_both_and_writes_a_report(tmp_path):
  out = tmp_path / "report.json"
  command = [sys.executable, "scripts/bench_cpu.py", "--batch=32", "--width=4", "--steps=2"]
  done = subprocess.run(
    [*command, f"--out={out}"], cwd=ROOT, capture_output=True, text=True, timeout=120
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  assert (report["batch"], report["width"], report["n"]) == (32, 4, 2)
  assert set(report["median_s"]) == set(report["versions"]) & {"torch"} | {"jaxspeed"}
  assert all(0 < report["min_s"][name] <= report["median_s"][name] for name in report["median_s"])
  ratio = report["median_s"]["jaxspeed"] / report["median_s"]["torch"]
  assert report["ratio_of_medians"] == pytest.approx(ratio)
  # What is timed is the same step: the first losses of both, from the same first weights.
  ours, theirs = report["first_losses"]["jaxspeed"], report["first_losses"]["torch"]
  assert ours == pytest.approx(theirs, rel=1e-3)
  assert f"jaxspeed takes {ratio:.2f} x torch's time" in done.stdout
