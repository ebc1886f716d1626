"""The benchmark of ResNet-50's step: the same net on both sides, its arithmetic, what fails.

A dry run of `gpu_day.sh` runs it at toy size: test_gpu_day.py.
"""

import os
import time
from multiprocessing.pool import ThreadPool

import bench_resnet50 as bench
import pytest
import resnet50_steps as steps
import side_by_side as sides
from commands import environment

TOY = dict(size=32, batch=8, depth=18, width=2, precision="float32")


@pytest.fixture
def side(monkeypatch):
  # As from a command line: without the virtual devices of the tests.
  for name in os.environ.keys() - environment().keys():
    monkeypatch.delenv(name)
  with sides.process() as side:
    yield side


def test_the_net_is_torchvisions_and_its_operations_are_those_that_pytorch_counts():
  torch = pytest.importorskip("torch")
  from torch.utils.flop_counter import FlopCounterMode

  # The numbers of torchvision's documentation.
  for depth, parameters in ((50, 25_557_032), (18, 11_689_512)):
    with torch.device("meta"):
      net, image = steps.make_torch_net(depth, 64), torch.empty(1, 3, 224, 224)
    assert sum(p.numel() for p in net.parameters()) == parameters
    with FlopCounterMode(display=False) as counter:
      net(image)
    shape = steps.Shape(size=224, batch=8, depth=depth, width=64, precision="float32")
    # Three passes; the last gradient of the stem, that of the image, counts too.
    assert steps.training_flops(shape) == 3 * counter.get_total_flops()


@pytest.mark.parametrize("fits, failed", [(2, []), (1, ["torch"]), (0, ["jaxspeed", "torch"])])
def test_what_has_no_room_beside_the_other_says_so(fits, failed, capsys):
  shape, made, kept = steps.Shape(**TOY), [], []

  def make():
    made.append(1)
    if len(made) > fits:
      raise MemoryError("full")
    cost = {"memory_gb": None, "compile_s": 1.0, "flops": 1e9, "ceiling_tflops": 2.0}
    return lambda steps: 1.0, cost

  def rows_of(timings):
    return bench.rows_of(shape, timings)

  timings = sides.time_in_turns(
    {"jaxspeed": make, "torch": make},
    lambda: ThreadPool(1),
    turns=3,
    turn_seconds=1e-5,
    on_ready=lambda timings: kept.append(rows_of(timings)),
  )
  # Told as it goes, with a first estimate: what is cut off keeps it.
  assert "jaxspeed: compiles\njaxspeed: " in capsys.readouterr().out
  assert len(kept) == 2 and ("images_per_s" in kept[0][0]) == (fits > 0)
  rows = rows_of(timings)
  assert [row["framework"] for row in rows if "failed" in row] == failed
  for row in rows:
    assert (row["framework"] in failed) == (bench.said(row) == "failed: MemoryError: full")
    if "failed" not in row:
      timing = timings[row["framework"]]
      assert row["images_per_s"]["n"] == len(timing.step_s) == 3
      assert row["tflops"] == pytest.approx(row["images_per_s"]["mean"] * 1e9 / 1e12)
      assert row["share_of_ceiling"] == row["tflops"] / 2
  assert ("times_torch" in rows[0]) == (not failed)


def fail_at(depth):
  return {}[depth]


def test_a_side_tells_what_went_wrong_and_goes_on(side):
  for _ in range(2):
    with pytest.raises(sides.SideFailed, match="^KeyError: 7"):
      sides.ask(side, fail_at, 7)
  assert sides.ask(side, os.getpid) != os.getpid()
  with pytest.raises(sides.SideFailed, match="no answer within 0.01 s"):
    sides.ask(side, time.sleep, 60, seconds=0.01)


def test_a_loss_that_is_not_finite_is_no_timing(monkeypatch):
  monkeypatch.setattr(sides._side, "run", lambda steps: float("nan"), raising=False)
  with pytest.raises(ValueError, match="the loss is nan"):
    sides.turn(1)
