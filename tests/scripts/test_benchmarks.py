"""Benchmarks beside PyTorch and tf.data, of a start and of a run's operations, and their frame.

A dry run of `gpu_day.sh` runs bench_cifar.py and bench_resnet50.py at toy size: test_gpu_day.py.
"""

import json
import os
import sys
import tempfile
import time
from multiprocessing.pool import ThreadPool

import bench_cifar as bench
import bench_resnet50
import bench_startup
import benchmarking
import cifar_peers as peers
import numpy as np
import PIL.Image
import pytest
import resnet50_steps
import side_by_side
from commands import environment
from fake_gpu_day import PEER
from fake_jobs import program
from toy import toy_arrays, toy_config

from jaxspeed.records.clock import Clock


def test_sides_take_turns_and_ratios_are_of_rounds():
  assert [side for _, side in benchmarking.turns("abc", 3)] == list("abccbaabc")
  ratio = benchmarking.ratio_of_rounds([2.0, 3.0, 9.0], [1.0, 2.0])
  assert (ratio["mean"], ratio["n"]) == ((2.0 + 1.5) / 2, 2)
  assert benchmarking.interval([2.0])["ci95"] is None


@pytest.mark.slow
def test_pytorch_takes_the_same_step_on_a_cpu(report_of):
  pytest.importorskip("torch")
  report = report_of("bench_cpu", "--batch=16", "--width=4", "--steps=2")
  # From the same first weights; float32 rounds each of some dozen layers.
  losses = report["first_losses"].values()
  assert len(losses) == 3 and max(losses) == pytest.approx(min(losses), rel=1e-3)
  medians, ratio = report["median_s"], report["ratio_of_medians"]["torch"]
  assert ratio == pytest.approx(medians["jaxspeed"] / medians["torch"])


# Multiplications of an image in the convolutions, last those before the pools. There the published
# net computes 31, 15 and 7 pixels a side, of which the pools drop the last row and column.
_OTHERS = 31**2 * 12 * 24 + 9 * (15**2 * 64 * 64 + 7**2 * 256 * 256 + 3**2 * 256 * 256)
_PUBLISHED = 9 * (31**2 * 24 * 64 + 15**2 * 64 * 256 + 7**2 * 256 * 256) + _OTHERS
_OURS = 9 * (30**2 * 24 * 64 + 14**2 * 64 * 256 + 6**2 * 256 * 256) + _OTHERS


@pytest.mark.parametrize("variant, published", [("94_muon", 290), ("94", 358)])
def test_a_run_computes_what_is_published_without_what_pools_drop(
  variant, published, script, tmp_path
):
  out = tmp_path / "flops.json"
  done = script("count_flops", f"--config=configs/cifar10_airbench.py:{variant}", f"--out={out}")
  assert done.returncode == 0, done.stderr
  padded = json.loads(out.read_text())["tflop_with_padding"]
  assert padded["total"] == pytest.approx(published * _OURS / _PUBLISHED, rel=0.1)
  assert padded["total"] < published
  # Six views of 10,000 images: 3 x 3 maps have most of the padding.
  assert 2 * _PUBLISHED == pytest.approx(236e6, rel=0.01)
  assert padded["evaluate"] == pytest.approx(6 * 10_000 * 2 * _OURS / 1e12, rel=0.05)


# bench_input.py


@pytest.mark.slow
def test_both_pipelines_are_timed_on_the_same_images(tmp_path, report_of):
  pytest.importorskip("tensorflow")
  for i in range(9):  # the last two are no RGB and no JPEG, which are left out
    folder = tmp_path / "set" / "train" / "ab"[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    # Noise around (60, 120, 180), so that every crop has nearly the same mean: 120.
    noise = np.random.RandomState(i).randint(-20, 21, (80, 90 + 10 * i, 3))
    image = PIL.Image.fromarray((np.array([60, 120, 180]) + noise).astype(np.uint8))
    image = image.convert("CMYK" if i == 7 else "RGB")
    image.save(folder / f"{i}.JPEG", "PNG" if i == 8 else "JPEG")
  toy = ["--rounds=1", "--batch=4", "--images=10", "--image_size=32"]
  report = report_of("bench_input", f"--data={tmp_path / 'set'}", *toy)
  ours, bare = report["rows"]
  assert (ours["pipeline"], bare["pipeline"]) == ("jaxspeed", "tfdata") and "ratio" not in bare
  rates = [row["images_per_core_s"]["mean"] for row in (ours, bare)]
  assert ours["ratio"]["mean"] == pytest.approx(rates[0] / rates[1]) and min(rates) > 0
  for row in (ours, bare):
    # Both see the same images; the cast to uint8 takes up to a level.
    assert row["image_size"] == 32 and row["mean_pixel"] == pytest.approx(120, abs=2)
  assert [source["files"] for source in report["sources"]] == [7]


# bench_resnet50.py


def test_the_net_is_torchvisions_and_its_operations_are_those_that_pytorch_counts():
  torch = pytest.importorskip("torch")
  from torch.utils.flop_counter import FlopCounterMode

  # The numbers of torchvision's documentation.
  for depth, parameters in ((50, 25_557_032), (18, 11_689_512)):
    with torch.device("meta"):
      net, image = resnet50_steps.make_torch_net(depth, 64), torch.empty(1, 3, 224, 224)
    assert sum(p.numel() for p in net.parameters()) == parameters
    with FlopCounterMode(display=False) as counter:
      net(image)
    shape = resnet50_steps.Shape(size=224, batch=8, depth=depth, width=64, precision="float32")
    # Three passes; the last gradient of the stem, that of the image, counts too.
    assert resnet50_steps.training_flops(shape) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("fits, failed", [(2, []), (1, ["torch"]), (0, ["jaxspeed", "torch"])])
def test_what_has_no_room_beside_the_other_says_so(fits, failed):
  shape, made, kept = resnet50_steps.Shape(32, 8, 18, 2, "float32"), [], []

  def make():
    made.append(1)
    if len(made) > fits:
      raise MemoryError("full")
    cost = {"memory_gb": None, "compile_s": 1.0, "flops": 1e9, "ceiling_tflops": 2.0}
    return lambda steps: 1.0, cost

  timings = side_by_side.time_in_turns(
    {"jaxspeed": make, "torch": make},
    lambda: ThreadPool(1),
    turns=3,
    turn_seconds=1e-5,
    on_ready=lambda timings: kept.append(bench_resnet50.rows_of(shape, timings)),
  )
  # With a first estimate: what is cut off keeps it.
  assert len(kept) == 2 and ("images_per_s" in kept[0][0]) == (fits > 0)
  rows = {row["framework"]: row for row in bench_resnet50.rows_of(shape, timings)}
  for name, row in rows.items():
    assert (name in failed) == (bench_resnet50.said(row) == "failed: MemoryError: full")
    if name not in failed:
      assert row["images_per_s"]["n"] == len(timings[name].step_s) == 3
      rate = row["images_per_s"]["mean"] * 1e9 / 1e12
      assert (row["tflops"], row["share_of_ceiling"]) == pytest.approx((rate, rate / 2))
  assert ("times_torch" in rows["jaxspeed"]) == (not failed)


def fail_at(depth):
  return {}[depth]


def test_a_side_tells_what_went_wrong_and_goes_on(monkeypatch):
  # As from a command line: without the virtual devices of the tests.
  for name in os.environ.keys() - environment().keys():
    monkeypatch.delenv(name)
  with side_by_side.process() as side:
    for _ in range(2):
      with pytest.raises(side_by_side.SideFailed, match="^KeyError: 7"):
        side_by_side.ask(side, fail_at, 7)
    assert side_by_side.ask(side, os.getpid) != os.getpid()
    with pytest.raises(side_by_side.SideFailed, match="no answer within 0.01 s"):
      side_by_side.ask(side, time.sleep, 60, seconds=0.01)
  monkeypatch.setattr(side_by_side._side, "run", lambda steps: float("nan"), raising=False)
  with pytest.raises(ValueError, match="the loss is nan"):
    side_by_side.turn(1)


# bench_startup.py


@pytest.fixture
def start(tmp_path, monkeypatch, capfd, script):
  """Calls it with a program in the place of Python: the exit code and standard error."""
  temporary = tmp_path / "temporary"
  temporary.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(temporary))

  def start(source, *words):
    path = program(tmp_path / "program", f"#!/bin/sh\n{source}\n")
    monkeypatch.setattr(sys, "executable", path)
    done = script("bench_startup", "--config=configs/quickstart.py", *words)
    assert list(temporary.iterdir()) == []
    return done.returncode, capfd.readouterr().err + done.stderr

  return start


def test_parts_of_a_start_are_read_from_a_runs_line_and_said(start, tmp_path):
  clock = Clock()
  clock.add("compile", 2.5)
  assert bench_startup.parts_of(clock.starting())["compile"] == 2.5
  line = "9.5 s after the process began: compile 2.0 (tracing 1.5 in its threads), the rest 7.5"
  parts = {"total": 9.5, "compile": 2.0, "tracing": 1.5, "the rest": 7.5}
  assert bench_startup.parts_of(line) == parts
  event, out = json.dumps({"event": "header", "starting": line}), tmp_path / "out.json"
  assert start(f"echo '{event}'; exec sleep 600", "--warm=2", f"--out={out}")[0] == 0
  report = json.loads(out.read_text())
  assert report["cold"].items() >= parts.items() and len(report["warm"]) == 2
  said = dict(report["said"])
  assert said["total, s"] == "9.5 cold, 9.5 ± 0.0 warm" and "cpu seconds, s" in said


def test_a_start_that_fails_gives_its_code_and_sigterm_leaves_nothing(start):
  sentence = "jaxspeed: a.py is missing.\n"
  assert start(f"printf '{sentence}' >&2; exit 2") == (2, sentence)
  code, said = start("exit 0")
  assert code == 2 and "quickstart" in said and "ended before its first step" in said
  assert start("kill -TERM $PPID; exec sleep 600")[0] == 143


# bench_cifar.py


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
    ("print('| 2 | eval  |')", 0, "no number time_seconds or tta_val_acc"),
    (PEER.replace("range(200)", "range(1)"), 1, "ended after 1 of 2 runs"),
  ],
)
def test_a_peer_that_fails_says_why_and_keeps_its_runs(peer, source, runs, message):
  found, said = peer(source)
  assert message in found["failed"] and message in said["peer"]
  assert len(found.get("runs", ())) == runs


def test_peers_train_on_our_images(tmp_path):
  torch = pytest.importorskip("torch")
  arrays = toy_arrays(toy_config())
  assert peers.write_peer_images(arrays, tmp_path / "cifar10") is None
  for split, images, labels in (
    ("train", arrays.train_images, arrays.train_labels),
    ("test", arrays.eval_images, arrays.eval_labels),
  ):
    data = torch.load(tmp_path / "cifar10" / f"{split}.pt")  # as airbench's loader reads it
    np.testing.assert_array_equal(data["images"].numpy(), images)
    assert data["labels"].tolist() == labels.tolist() and len(data["classes"]) == 10
    assert data["images"].dtype == torch.uint8
