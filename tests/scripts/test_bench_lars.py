"""The comparison with optax's LARS runs, and compares the same thing."""

import importlib.util
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from commands import ROOT, environment
from tolerances import rounding


@pytest.fixture
def bench():
  spec = importlib.util.spec_from_file_location("bench_lars", ROOT / "scripts" / "bench_lars.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.slow
def test_the_bench_times_both_and_writes_a_report(tmp_path):
  out = tmp_path / "report.json"
  toy = ["--depth=18", "--width=2", "--steps=2", "--turns=2", f"--out={out}"]
  done = subprocess.run(
    [sys.executable, "scripts/bench_lars.py", *toy],
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  # 17 + 3 convolutions with norms of two arrays, and the head with its bias.
  assert (report["n"], report["tensors"]) == (2, 20 * 3 + 2)
  median = report["median_s"]
  assert all(0 < report["min_s"][name] <= median[name] for name in ("jaxspeed", "optax"))
  ratio = median["jaxspeed"] / median["optax"]
  assert report["ratio_of_medians"] == pytest.approx(ratio)
  assert f"jaxspeed takes {ratio:.2f} x optax's time" in done.stdout


def test_what_is_timed_is_the_same_but_for_the_decay_in_the_ratio(bench, monkeypatch):
  params = bench.make_params(18, 2)
  params = {name: params[name] for name in ("stem", "head")}
  gradients = jax.tree.map(lambda x: 0.01 * x[..., ::-1], params)

  def first_updates():
    both = bench.ours(), bench.optaxs(params)
    return [o.update(gradients, o.init(params), params, learning_rate=1.0)[0] for o in both]

  # |w| is 100 |g| and no more: a decay of 1e-4 is 1 % of a ratio's denominator.
  for ours, theirs in zip(*map(jax.tree.leaves, first_updates()), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=0.03)
  monkeypatch.setattr(bench, "DECAY", 0.0)
  for ours, theirs in zip(*map(jax.tree.leaves, first_updates()), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=rounding(ours.size))
