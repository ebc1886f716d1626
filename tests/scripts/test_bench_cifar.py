"""The benchmark of whole CIFAR-10 runs: it reads its peers' tables and tells what fails.

A dry run of `gpu_day.sh` runs it at toy size: test_gpu_day.py.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import types

import bench_cifar as bench
import benchmarking
import cifar_peers as peers
import numpy as np
import pytest
from commands import ROOT, environment
from fake_gpu_day import PEER
from in_process import fresh_flags
from toy import load_recipe

from jaxspeed.config.checks import to_flags
from jaxspeed.errors import UserError


@pytest.fixture
def peer(tmp_path):
  """Times two runs of a peer of a source text behind ours of two seconds; returns its report."""
  (tmp_path / "images").mkdir()
  out = tmp_path / "out.json"
  ours = bench.summary_of([peers.Run(2.0, 0.94)])
  report = {"config": "toy", "target": 0.94, "peers": {}, "jaxspeed": ours}

  def peer(source):
    script = tmp_path / "peer.py"
    script.write_text(source)
    bench.time_peer("peer", script, 2, report, tmp_path, str(out))
    written = json.loads(out.read_text())
    assert written["peers"] == report["peers"]
    return written["peers"]["peer"], dict(written["said"])

  return peer


def test_a_peer_is_timed_without_its_warm_up_and_ended(peer):
  found, said = peer(PEER)
  assert [run["seconds"] for run in found["runs"]] == [0.5, 1.5] and "failed" not in found
  assert said["peer, seconds of a run"].endswith("; ours takes 2.000 of its time")


@pytest.mark.parametrize(
  "source, runs, message",
  [
    ("raise RuntimeError('no CUDA GPUs')", 0, "ended with code 1: RuntimeError: no CUDA GPUs"),
    ("print('| 1 | eval  |')\nprint('| 2 | eval  |')", 0, "no number time_seconds or tta_val_acc"),
    (PEER.replace("range(200)", "range(1)"), 1, "ended after 1 of 2 runs"),
  ],
)
def test_a_peer_that_fails_says_why_and_keeps_its_runs(peer, source, runs, message, capsys):
  found, said = peer(source)
  assert message in found["failed"] and message in said["peer"]
  assert len(found.get("runs", ())) == runs and message in capsys.readouterr().out


TOY = {
  "model.width": 2,
  "model.whiten": False,
  "batch_size": 500,
  "average.kind": "none",
  "epochs": 1,
  "target": 0,
}


@pytest.mark.slow
def test_starts_fill_a_cache_of_their_own(tmp_path, monkeypatch):
  # As from a command line: without the virtual devices of the tests.
  for name in os.environ.keys() - environment().keys():
    monkeypatch.delenv(name)
  given = types.SimpleNamespace(cold_starts=1, runs=1, peer=[], out="")
  config = load_recipe("quickstart.py")
  config.update_from_flattened_dict(TOY)
  recipe = [f"--config={ROOT / 'configs/quickstart.py'}", *to_flags(TOY)]
  report = bench.bench(config, recipe, given, tmp_path)
  first, second = report["starts"]
  # Programs of this recipe in the user's cache do not count: the first start compiles all of them.
  assert any((tmp_path / "programs").iterdir())
  assert first["compile_s"]["cold"] > 0 and not second["compile_s"]["cold"]
  assert report["n"] == 1 and report["tflop"] > 0


def test_peers_are_found_by_name_or_named(tmp_path):
  for name in ("a/airbench94_muon.py", "b/cifar10_speedrun.py", "b/logging/cifar10_speedrun.py"):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("")
  a, b = tmp_path / "a" / "airbench94_muon.py", tmp_path / "b" / "cifar10_speedrun.py"
  both = {"airbench94_muon": a, "cifar10_speedrun": b}
  assert peers.find_peers([str(tmp_path)]) == both
  assert peers.find_peers([str(tmp_path / "b"), str(a)]) == both
  copy = b.parent / "logging" / b.name
  assert peers.find_peers([str(b), str(copy)]) == {b.stem: b, str(copy): copy}
  with pytest.raises(UserError, match="--peer=.*nowhere: there is no such file, nor a folder with"):
    peers.find_peers([str(tmp_path / "nowhere")])


def test_peers_train_on_our_images(tmp_path):
  torch = pytest.importorskip("torch")
  rng = np.random.default_rng(0)

  class arrays:
    train_images = rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    train_labels = np.arange(5, dtype=np.int32)
    eval_images, eval_labels = train_images[:2], train_labels[:2]

  assert peers.write_peer_images(arrays, tmp_path / "cifar10") is None
  for split, images in (("train", arrays.train_images), ("test", arrays.eval_images)):
    # As airbench's loader reads it.
    data = torch.load(tmp_path / "cifar10" / f"{split}.pt")
    np.testing.assert_array_equal(data["images"].numpy(), images)
    assert data["labels"].tolist() == list(range(len(images)))
    assert data["images"].dtype == torch.uint8 and len(data["classes"]) == len(images)


def test_sides_take_turns_and_the_interval_is_students():
  # Of 1 ... 5: sd sqrt(2.5), and t of 4 degrees is 2.776 (any table).
  assert benchmarking.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == {
    "mean": 3.0,
    "sd": pytest.approx(2.5**0.5),
    "ci95": pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3),
    "min": 1.0,
    "n": 5,
  }
  assert benchmarking.interval([2.0])["ci95"] is None
  assert [side for _, side in benchmarking.turns("abc", 3)] == list("abccbaabc")
  ratio = benchmarking.ratio_of_rounds([2.0, 3.0, 9.0], [1.0, 2.0])
  assert (ratio["mean"], ratio["n"]) == ((2.0 + 1.5) / 2, 2)


def test_sigterm_leaves_no_folder(tmp_path, monkeypatch):
  def stopped(config, recipe, given, scratch):
    pathlib.Path(scratch, "programs").mkdir()
    signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setattr(sys, "argv", ["bench_cifar.py", f"--config={ROOT / 'configs/cifar10.py'}"])
  monkeypatch.setattr(bench, "bench", stopped)
  with fresh_flags(), pytest.raises(SystemExit) as ended:
    bench.main()
  assert ended.value.code == 143 and list(tmp_path.iterdir()) == []
