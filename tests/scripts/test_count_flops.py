"""FLOPs of whole runs beside the published ones."""

import json
import subprocess
import sys

import pytest
from commands import ROOT, environment


@pytest.mark.slow
@pytest.mark.parametrize("variant, published", [("94_muon", 290), ("94", 358)])
def test_a_run_computes_what_is_published(variant, published, tmp_path):
  out = tmp_path / "flops.json"
  config = f"--config=configs/cifar10_airbench.py:{variant}"
  done = subprocess.run(
    [sys.executable, "scripts/count_flops.py", config, f"--out={out}"],
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  padded, counted = report["tflop_with_padding"], report["tflop"]
  assert padded["total"] == pytest.approx(published, rel=0.1)
  # Six views of 10,000 images at 236 MFLOP: 3 x 3 maps have most of the padding.
  assert padded["evaluate"] == pytest.approx(6 * 10_000 * 236e6 / 1e12, rel=0.05)
  assert 0.8 * padded["total"] < counted["total"] < padded["total"]
  assert f"{padded['total']:.1f} with the products of padding" in done.stdout
