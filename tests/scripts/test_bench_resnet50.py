"""The benchmark of ResNet-50's step: the same net on both sides, its arithmetic, what fails.

A dry run of `gpu_day.sh` runs it at toy size: test_gpu_day.py.
"""

import functools
import os

import bench_resnet50 as bench
import jax
import pytest
import resnet50_steps as steps
import side_by_side as workers
from commands import environment

TOY = dict(size=32, batch=8, depth=18, width=2, precision="float32")


@pytest.fixture
def worker(monkeypatch):
  # As from a command line: without the virtual devices of the tests.
  for name in os.environ.keys() - environment().keys():
    monkeypatch.delenv(name)
  worker = workers.Worker(seconds=60)
  yield worker
  worker.close()


def test_operations_are_those_that_pytorch_counts():
  torch = pytest.importorskip("torch")
  from torch.utils.flop_counter import FlopCounterMode

  for depth, side in ((50, 224), (18, 224)):
    with torch.device("meta"):
      net, image = steps.make_torch_net(depth, 64), torch.empty(1, 3, side, side)
    with FlopCounterMode(display=False) as counter:
      net(image)
    shape = steps.Shape(size=side, batch=8, depth=depth, width=64, precision="float32")
    # Three passes; the last gradient of the stem, that of the image, counts too.
    assert steps.training_flops(shape) == 3 * counter.get_total_flops()


def test_the_net_is_torchvisions():
  torch = pytest.importorskip("torch")
  with torch.device("meta"):
    net = steps.make_torch_net(50, 64)
  assert sum(p.numel() for p in net.parameters()) == 25_557_032  # torchvision's documentation
  try:
    import torchvision
  except (ImportError, RuntimeError):  # a torchvision of another torch
    return
  with torch.device("meta"):
    theirs = torchvision.models.resnet50()

  def shapes(net):
    return sorted(tuple(p.shape) for p in net.parameters())

  assert shapes(net) == shapes(theirs)


@pytest.mark.parametrize(
  "error, is_memory",
  [
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to"), True),
    (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to"), True),
    (MemoryError(), True),
    (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no such option"), False),
    (ValueError("the loss is nan"), False),
  ],
)
def test_short_memory_is_known(error, is_memory):
  def fail():
    raise error

  answer = workers.Work().answer("call", {"function": fail})
  assert answer == (None, workers.MEMORY if is_memory else f"{type(error).__name__}: {error}")


class FakeWorker:
  """Answers from a table of what fits: images a step, of all frameworks that hold memory."""

  def __init__(self, held, room):
    self._held, self._room = held, room

  def ask(self, do, **request):
    if do == "prepare":
      framework, batch = request["make"], TOY["batch"]
      if sum(self._held.values()) + batch > self._room:
        raise workers.WorkerFailed("out of memory")
      self._held[framework] = batch
      return {"step_s": 0.5, "memory_gb": None, "compile_s": 1.0}
    assert request["steps"] == 4  # a turn of 2 s, of steps of 0.5 s
    return 0.25

  def close(self):
    self._held.clear()


@pytest.mark.parametrize("room, failed", [(16, []), (8, ["torch"]), (7, ["jaxspeed", "torch"])])
def test_what_has_no_room_beside_the_other_says_so(room, failed):
  shape, held = steps.Shape(**TOY), {}
  timings = workers.time_in_turns(
    {"jaxspeed": "jaxspeed", "torch": "torch"},
    lambda: FakeWorker(held, room),
    turns=3,
    turn_seconds=2.0,
  )
  rows = bench.rows_of(shape, timings, flops=1e9, ceiling=1.0)
  assert [row["framework"] for row in rows if row.get("failed") == "out of memory"] == failed
  for row in rows:
    if "failed" not in row:
      assert row["images_per_s"]["mean"] == 8 / 0.25 and row["images_per_s"]["n"] == 3
      assert row["tflops"] == 1e9 * 8 / 0.25 / 1e12
  ratios = bench.ratios_of(shape, timings, "torch")
  assert [ratio["ratio"]["mean"] for ratio in ratios] == ([] if failed else [1.0])
  assert ["failed: out of memory" == bench.said(row) for row in rows] == [
    row["framework"] in failed for row in rows
  ]


def test_a_worker_tells_what_went_wrong_and_goes_on(worker):
  shape = steps.Shape(**TOY | {"depth": 7})
  for _ in range(2):
    with pytest.raises(workers.WorkerFailed, match="^KeyError: 7"):
      worker.ask("prepare", make=functools.partial(steps.make_jax_step, shape))


def test_a_worker_that_ends_or_is_silent_is_told(worker):
  worker._process.kill()
  with pytest.raises(workers.WorkerFailed, match="out of memory"):  # what the kernel would do
    worker.ask("call", function=os.getpid)
  silent = workers.Worker(seconds=0.01)
  for message in ("no answer within 0.01 s", "out of memory|code -9"):
    with pytest.raises(workers.WorkerFailed, match=message):
      silent.ask("call", function=os.getpid)
  silent.close()


def test_a_loss_that_is_not_finite_is_no_timing():
  work = workers.Work()
  work._run = lambda steps: float("nan")
  with pytest.raises(ValueError, match="the loss is nan"):
    work.turn(1)
