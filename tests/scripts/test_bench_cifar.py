"""The benchmark of whole CIFAR-10 runs: it holds its peers and tells what fails.

A dry run of `gpu_day.sh` runs it at toy size: test_gpu_day.py.
"""

import io
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import bench_cifar as bench
import benchmarking
import cifar_sides as sides
import held_processes
import numpy as np
import pytest
import run_held
from commands import ROOT, environment
from in_process import fresh_flags
from peer_script import PEER

from jaxspeed.errors import UserError


@pytest.fixture
def start(tmp_path):
  """A peer of a source text, running; closed at the end."""
  peers = []

  def start(source, seconds=120):
    script = tmp_path / f"peer{len(peers)}.py"
    script.write_text(source)
    peers.append(sides.Peer(script, tmp_path, seconds=seconds))
    return peers[-1]

  yield start
  for peer in peers:
    peer.close()


def test_a_peer_stands_still_between_its_runs(start, tmp_path):
  log = tmp_path / "log"
  begun = f"def main(run, seconds):\n  open({str(log)!r}, 'a').write(f'{{run}} ')"
  peer = start(PEER.replace("def main(run, seconds):", begun))
  peer.warm_up()
  for number in range(2):
    assert peer.run(number) == sides.Run(seconds=0.5 + number, accuracy=0.94)
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
  with pytest.raises(held_processes.Ended, match=message):
    peer.warm_up()
    peer.run(0)


def test_a_peer_that_is_silent_is_given_up(start):
  peer = start("import time; time.sleep(60)", seconds=0.5)
  with pytest.raises(held_processes.Ended, match="no run ended within 0.5 s"):
    peer.warm_up()


def test_the_rest_goes_on_without_a_peer_that_fails(start, tmp_path, capsys):
  class Ours:
    def run(self, number):
      return sides.Run(2.0, 0.5)

  ending, staying = start(PEER.replace("range(200)", "range(1)")), start(PEER)
  for peer in (ending, staying):
    peer.warm_up()
  failed, saved = {}, []
  peers = {"ending": ending, "staying": staying}
  runs = bench.run_rounds(
    Ours(), peers, failed, 3, lambda runs: saved.append(len(runs["jaxspeed"]))
  )
  assert {name: len(each) for name, each in runs.items()} == {
    "jaxspeed": 3,
    "ending": 1,
    "staying": 3,
  }
  assert saved == [1, 1, 1, 1, 1, 2, 3, 3, 3] and list(failed) == ["ending"]
  assert "ending is left out from here on: its process ended with code 0" in capsys.readouterr().out
  told = bench.report_of(runs, failed, 0.94)
  assert told["peers"]["ending"]["failed"] == failed["ending"]
  assert told["peers"]["ending"]["ratio"] == 2.0 / 0.5
  assert told["peers"]["staying"]["ratio"] == 2.0 / ((0.5 + 1.5 + 2.5) / 3)
  assert "failed" not in told["peers"]["staying"]


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


def test_every_other_round_goes_backwards():
  assert [side for _, side in benchmarking.turns("abc", 3)] == list("abccbaabc")


def test_the_interval_is_students():
  # Of 1 ... 5: sd sqrt(2.5), and t of 4 degrees is 2.776 (any table).
  assert benchmarking.interval([1.0, 2.0, 3.0, 4.0, 5.0]) == {
    "mean": 3.0,
    "sd": pytest.approx(2.5**0.5),
    "ci95": pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=1e-3),
    "min": 1.0,
    "n": 5,
  }
  assert benchmarking.interval([2.0])["ci95"] is None
  ratio = benchmarking.ratio_of_rounds([2.0, 3.0, 9.0], [1.0, 2.0])
  assert (ratio["mean"], ratio["n"]) == ((2.0 + 1.5) / 2, 2)


def test_a_product_has_a_rate():
  rate = benchmarking.matrix_product_tflops("float32", size=64, products=2, repeats=1)
  assert 0 < rate < 100


@pytest.mark.parametrize(
  "flags, message",
  [
    ([], "--config=FILE.py names the recipe to time"),
    (["--config=configs/imagenet18.py:1"], "config.data.feed='stream': only sets in memory"),
  ],
)
def test_what_cannot_be_timed_is_refused(flags, message):
  done = subprocess.run(
    [sys.executable, "scripts/bench_cifar.py", *flags],
    cwd=ROOT,
    env=environment(),
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stdout) == (2, "")
  assert message in done.stderr and "Traceback" not in done.stderr


def test_sigterm_leaves_no_folder(tmp_path, monkeypatch):
  def stopped(config, given, scratch):
    pathlib.Path(scratch, "programs").mkdir()
    signal.raise_signal(signal.SIGTERM)

  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  monkeypatch.setattr(sys, "argv", ["bench_cifar.py", f"--config={ROOT / 'configs/cifar10.py'}"])
  monkeypatch.setattr(bench, "bench", stopped)
  with fresh_flags(), pytest.raises(SystemExit) as ended:
    bench.main()
  assert ended.value.code == 143 and list(tmp_path.iterdir()) == []
