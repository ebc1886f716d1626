"""The benchmark of whole CIFAR-10 runs: it holds its peers and tells what fails.

A dry run of `gpu_day.sh` runs it at toy size: test_gpu_day.py.
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import types

import bench_cifar as bench
import benchmarking
import cifar_sides as sides
import numpy as np
import pytest
import run_held
from commands import ROOT, environment
from in_process import fresh_flags
from peer_script import PEER
from toy import load_recipe

from jaxspeed.config.checks import to_flags
from jaxspeed.errors import UserError


@pytest.fixture
def start(tmp_path):
  """A peer of a source text, running; closed at the end."""
  with contextlib.ExitStack() as stack:

    def start(source):
      script = tmp_path / "peer.py"
      script.write_text(source)
      return stack.enter_context(sides.peer(script, tmp_path))

    yield start


def test_a_peer_stands_still_between_its_runs(start, tmp_path):
  log = tmp_path / "log"
  begun = f"def main(run, seconds):\n  open({str(log)!r}, 'a').write(f'{{run}} ')"
  peer = start(PEER.replace("def main(run, seconds):", begun))
  assert next(peer) is None
  for number in range(2):
    assert next(peer) == sides.Run(seconds=0.5 + number, accuracy=0.94)
    # It has had more than the time of a run, and not begun the next.
    time.sleep(0.1)
    assert log.read_text() == "warmup 0 1 "[: len("warmup 0 ") + 2 * number]


@pytest.mark.parametrize(
  "source, message",
  [
    ("raise RuntimeError('no CUDA GPUs')", "ended with code 1: RuntimeError: no CUDA GPUs"),
    ("print('| 1 | eval  |')\nprint('| 2 | eval  |')", "no number time_seconds or tta_val_acc"),
    (PEER.replace("range(200)", "range(0)"), "ended with code 0: it said nothing"),
  ],
)
def test_a_peer_that_fails_says_why(start, source, message):
  peer = start(source)
  with pytest.raises(sides.Ended, match=message):
    next(peer), next(peer)


@pytest.fixture
def beside(tmp_path):
  """Lets our runs, of two seconds, take turns with those of a peer; returns the report."""
  (tmp_path / "images").mkdir()
  out, report = tmp_path / "out.json", {"config": "toy", "target": 0.94, "peers": {}}
  rounds = bench.Rounds(itertools.repeat(sides.Run(2.0, 0.5)), 3, report, str(out))

  def beside(name, source):
    script = tmp_path / f"{name}.py"
    script.write_text(source)
    bench.run_beside(name, script, rounds, report, tmp_path)
    written = json.loads(out.read_text())["peers"][name]
    assert written["runs"] == report["peers"][name]["runs"]
    return report

  return beside


def test_peer_after_peer_is_timed_and_one_that_fails_left_out(beside, capsys):
  beside("ending", PEER.replace("range(200)", "range(1)"))
  assert "ending is left out from here on: its process ended with code 0" in capsys.readouterr().out
  report = beside("staying", PEER)
  ending, staying = report["peers"]["ending"], report["peers"]["staying"]
  assert len(ending["runs"]) == 1 and ending["failed"].startswith("its process ended")
  assert ending["ratio_of_rounds"]["mean"] == 2.0 / 0.5
  # Beside our runs in the same rounds, the second of which goes backwards.
  assert [run["seconds"] for run in staying["runs"]] == [0.5, 1.5, 2.5]
  assert staying["ours"]["n"] == 3 and "failed" not in staying
  ratios = [2.0 / 0.5, 2.0 / 1.5, 2.0 / 2.5]
  assert staying["ratio_of_rounds"]["mean"] == pytest.approx(sum(ratios) / 3)
  assert report["n"] == 4 and report["jaxspeed"]["seconds"]["mean"] == 2.0


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
  assert sides.find_peers([str(tmp_path)]) == both
  assert sides.find_peers([str(tmp_path / "b"), str(a)]) == both
  copy = b.parent / "logging" / b.name
  assert sides.find_peers([str(b), str(copy)]) == {str(b): b, str(copy): copy}
  with pytest.raises(UserError, match="--peer=.*nowhere: there is no such file, nor a folder with"):
    sides.find_peers([str(tmp_path / "nowhere")])


def test_peers_train_on_our_images(tmp_path):
  torch = pytest.importorskip("torch")
  rng = np.random.default_rng(0)

  class arrays:
    train_images = rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    train_labels = np.arange(5, dtype=np.int32)
    eval_images, eval_labels = train_images[:2], train_labels[:2]

  assert sides.write_peer_images(arrays, tmp_path / "cifar10") is None
  for split, images in (("train", arrays.train_images), ("test", arrays.eval_images)):
    # As airbench's loader reads it.
    data = torch.load(tmp_path / "cifar10" / f"{split}.pt")
    np.testing.assert_array_equal(data["images"].numpy(), images)
    assert data["labels"].tolist() == list(range(len(images)))
    assert data["images"].dtype == torch.uint8 and len(data["classes"]) == len(images)


def test_output_is_held_behind_the_lines_of_a_pattern():
  out, permissions = io.StringIO(), io.StringIO("go on\n")
  held = run_held.HeldOutput(out, permissions, "end")
  print("no end", file=held)
  assert permissions.tell() == 0
  print("-", end="\r", file=held)
  print("en", "d", sep="", file=held)
  assert permissions.tell() == len("go on\n")
  with pytest.raises(SystemExit):
    print("end", file=held)
  assert out.getvalue() == "no end\n-\rend\nend\n"


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
