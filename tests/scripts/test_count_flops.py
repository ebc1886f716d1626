"""FLOPs of whole runs beside the published ones."""

import json
import subprocess
import sys

import pytest
from commands import ROOT, environment

# Multiplications of an image in the convolutions, last those before the pools. There the published
# net computes 31, 15 and 7 pixels a side, of which the pools drop the last row and column.
_OTHERS = 31**2 * 12 * 24 + 9 * (15**2 * 64 * 64 + 7**2 * 256 * 256 + 3**2 * 256 * 256)
_PUBLISHED = 9 * (31**2 * 24 * 64 + 15**2 * 64 * 256 + 7**2 * 256 * 256) + _OTHERS
_OURS = 9 * (30**2 * 24 * 64 + 14**2 * 64 * 256 + 6**2 * 256 * 256) + _OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("variant, published", [("94_muon", 290), ("94", 358)])
def test_a_run_computes_what_is_published_without_what_pools_drop(variant, published, tmp_path):
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
  padded = report["tflop_with_padding"]
  assert padded["total"] == pytest.approx(published * _OURS / _PUBLISHED, rel=0.1)
  assert padded["total"] < published
  # Six views of 10,000 images: 3 x 3 maps have most of the padding.
  assert 2 * _PUBLISHED == pytest.approx(236e6, rel=0.01)
  assert padded["evaluate"] == pytest.approx(6 * 10_000 * 2 * _OURS / 1e12, rel=0.05)
  assert f"{padded['total']:.1f} TFLOP" in done.stdout
