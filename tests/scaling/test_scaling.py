"""The scaling model: arithmetic by hand, its sources, and published runs."""

import dataclasses
import json

import numpy as np
import pytest
from commands import ROOT
from in_process import command, mistake
from toy import load_recipe

from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.scaling import allreduce_time as times
from jaxspeed.scaling.hardware import INPUT, LATE, READY, Cluster
from jaxspeed.scaling.predict import compute_s, measured_rate, predict, step_of
from jaxspeed.scaling.work import RESNET50, work_of

CLUSTER = Cluster(images_per_s=1000.0, launch_s=0.005, local_gb_s=100.0, network_gb_s=10.0)


def test_resnet50_sends_a_number_for_each_parameter_and_statistic():
  config = load_recipe("imagenet_lars.py", "81920")
  exchange = times.exchange_of(config)
  assert len(exchange.tensors) == 161
  assert sum(exchange.tensors) == 4 * 25_557_032
  # The head's 2,049,000 numbers are there first, the stem's 7 x 7 x 3 x 64 last.
  assert sum(exchange.tensors[:2]) == 4 * 2_049_000
  assert exchange.tensors[-1] in (4 * 64, 4 * 7 * 7 * 3 * 64)
  # Mean and variance of the norms' 26,560 channels, and four sums.
  assert exchange.rest == 4 * (2 * 26_560 + 4)
  exchange = times.Exchange(tensors=(3_000_000, 2_000_000, 1_000_000, 4_000_000), rest=8)
  assert exchange.groups(4.0) == [(0.0, 8), (0.5, 5e6), (1.0, 5e6)]
  config.allreduce.dtype = "float16"
  assert sum(times.exchange_of(config).tensors) == 2 * 25_557_032


# Bytes, hosts of 8 devices, seconds; hops take 1 us inside a host and 7 us between two.
LOCAL = 2 * 7 / 8 * 0.01 + 14e-6  # of 1 GB at 100 GB/s
TIMES = [
  (times.ring_s, 1e9, 1, LOCAL),
  # The line between hosts has a tenth of that; 2 of 16 hops leave a host.
  (times.ring_s, 1e9, 2, 2 * 15 / 16 * 0.1 + 2 * 15 / 16 * (2 * 7e-6 + 14 * 1e-6)),
  (times.hierarchical_s, 1e9, 1, LOCAL),
  (times.hierarchical_s, 1e9, 256, LOCAL + 2 * 255 / 256 * 0.1 + 2 * 8 * 7e-6),
]


@pytest.mark.parametrize("function, size, hosts, expected", TIMES)
def test_an_all_reduce_takes_as_long_as_by_hand(function, size, hosts, expected):
  assert function(size, hosts, CLUSTER) == pytest.approx(expected)


def test_the_faster_all_reduce_is_taken():
  # Over two hosts a hierarchy sends half as much as a ring; over many as much, and again inside.
  for size, hosts, faster in (
    (1e9, 2, times.hierarchical_s),
    (1e9, 256, times.ring_s),
    (1e3, 256, times.hierarchical_s),
  ):
    assert times.all_reduce_s(size, hosts, CLUSTER) == faster(size, hosts, CLUSTER)
  assert times.ring_s(1e9, 1, dataclasses.replace(CLUSTER, per_host=1)) == 0


EARLY, LATER = [(0.5, 4.0), (0.6, 3.0), (0.8, 1.0)], [(0.3, 5.0), (0.4, 0.1), (0.65, 0.1)]


@pytest.mark.parametrize(
  "groups, in_flight, expected",
  [
    (EARLY, 0, 10 + 4 + 3 + 1),  # nothing beside the kernels
    # Begun at 5, done at 9; the kernels wait from 6 to 9, the second is done at 12, the third is
    # begun then and done at 13; the last two seconds of kernels follow.
    (EARLY, 1, 13 + 2),
    # The second begins with the first's end at 9, to 12; at 8 the kernels wait for the first.
    (EARLY, 2, 13 + 2),
    (EARLY, 3, 13 + 2),
    # A fast network costs nothing.
    ([(0.3, 1.0), (0.5, 1.0), (0.9, 0.0)], 1, 10),
    # The first ends at 8: with one in flight the kernels stop at 4 until then.
    (LATER, 1, 8 + 2.5 + 0.1 + 3.5),
    (LATER, 3, 8.2 + 3.5),
  ],
)
def test_all_reduces_run_beside_kernels(groups, in_flight, expected):
  assert times.overlapped_s(10.0, groups, in_flight=in_flight) == pytest.approx(expected)


def toy_plan():
  config = load_recipe("imagenet18.py", "8")
  config.allreduce.group_mb = 0.0
  return config, make_plan(config, devices=64)


def test_a_run_is_its_steps_and_evaluations():
  config, plan = toy_plan()
  cluster = dataclasses.replace(CLUSTER, in_flight=0, price=3.0)
  exchange = times.Exchange(tensors=(100_000_000,), rest=0)
  found = predict(config, plan, cluster, exchange, devices=64, epochs=7)
  sent = times.all_reduce_s(1e8, 8, cluster) + times.all_reduce_s(0, 8, cluster)
  area = (128 / 224) ** 2
  first, second = (0.005 + images * area / 1000 + sent for images in (128, 256))
  assert [step.seconds for step in found.steps[:2]] == pytest.approx([first, second])
  # 1,281,167 images in 157 batches of 8,192, or 79 of 16,384.
  assert found.training == pytest.approx(6 * 157 * first + 79 * second)
  # 50,000 over 64 devices are 782 each, at a third of a training step.
  assert found.validation == pytest.approx(7 * (0.005 + 782 * area / 1000) / 3)
  assert found.cost == pytest.approx((found.training + found.validation) / 3600 * 64 * 3.0)
  last = predict(config, plan, cluster, exchange, devices=64).epochs[-1]
  rectangles = (0.005 + 1.37 * 782 * (288 / 224) ** 2 / 1000) / 3
  assert last == pytest.approx(157 * (0.005 + 128 * (288 / 224) ** 2 / 1000 + sent) + rectangles)


def test_few_cores_bound_a_step_and_one_device_sends_nothing():
  phase, exchange = toy_plan()[1].phases[0], times.Exchange((1,), 0)
  step = step_of(phase, 64, dataclasses.replace(CLUSTER, cores=2.0), exchange, group_mb=0)
  # A host of 8 decodes 1,024 images, copies of 160 px.
  rate = INPUT["copies of 160 px"][128]
  assert step.input_bound and step.cores == pytest.approx(2)
  assert step.seconds == pytest.approx(1024 / (2 * rate))
  free = step_of(phase, 64, CLUSTER, exchange, group_mb=0)
  assert not free.input_bound and free.cores == pytest.approx(1024 / free.seconds / rate)
  alone = step_of(phase, 1, CLUSTER, exchange, group_mb=0)
  assert alone.exchange == 0 and alone.seconds == alone.compute
  with pytest.raises(UserError, match="--per-host"):
    step_of(phase, 12, CLUSTER, exchange, group_mb=0)


def test_a_measured_step_gives_its_own_rate():
  rate = measured_rate(105.0, 100, 112)
  assert rate == pytest.approx(100 / 4 / 0.1)
  assert compute_s(100, 112, Cluster(images_per_s=rate)) == pytest.approx(0.105)
  with pytest.raises(UserError, match="--step-ms=4"):
    measured_rate(4.0, 100, 224)


# Its numbers are those of their sources


@pytest.mark.parametrize("kind, curve", [("h100", READY), ("v100", LATE)])
def test_when_gradients_are_sent_is_compiled(kind, curve):
  (program,) = (
    row
    for row in json.loads((ROOT / "results/allreduce_groups.json").read_text())["programs"]
    if (row["kind"], row["devices"], row["group_mb"], row["options"]) == (kind, 2048, 4.0, [])
  )
  rest, *groups = program["all_reduces"]
  sizes = np.cumsum([row["megabytes"] for row in groups])
  expected = [(0.0, rest["start"])]
  expected += [(size / sizes[-1], row["start"]) for size, row in zip(sizes, groups, strict=True)]
  np.testing.assert_allclose(curve, expected, atol=6e-4)
  assert 0.7 * 1000 < program["kernels"] < 1.3 * 1000
  total = program["arguments_gb"] + program["temporary_gb"]
  config = load_recipe("imagenet18.py", "1")
  config.update(batch_size=320, precision="bfloat16", accumulate=1)
  config.phases.update(batch_size=(), image_size=(), first_epoch=())
  work, plan = work_of(config), make_plan(config, devices=8)
  area = (224 / plan.phases[0].image_size) ** 2
  phase = dataclasses.replace(plan.phases[0], batch_size=320 * area)
  assert work.forward * area == pytest.approx(RESNET50, rel=0.02) and work.parameters == 25_557_032
  assert work.rate(1000.0) == pytest.approx(1000.0, rel=0.02)
  assert work.memory_gb(config, plan, phase, 8) == pytest.approx(total, rel=0.1)
  # As many bytes in as many groups as the model counts.
  config = load_recipe("imagenet_lars.py", "81920")
  counted = [size / 1e6 for _, size in times.exchange_of(config).groups(4.0)]
  compiled = [row["megabytes"] for row in program["all_reduces"]]
  assert sorted(compiled) == pytest.approx(sorted(counted), abs=1e-3)


def test_the_command_tells_of_each_number_of_devices():
  recipe = "--config=configs/imagenet_lars.py:81920"
  done = command("scaling", recipe, "--devices=8,2048", "--device=v100", "--price=2")
  assert "\n8 devices: does not fit, 455" in done.stdout and "\n2,048 devices: 4" in done.stdout
  assert done.stdout.count("cores per host") == 2
  assert "102.4 MB" in done.stdout and "$" in done.stdout
  assert "40 images per device" in done.stdout
  in_memory = command("scaling", "--config=configs/cifar10.py", "--devices=1", "--device=h100")
  assert "1 device" in in_memory.stdout and "cores" not in in_memory.stdout
  assert mistake("scaling", recipe, "--devices=eight").startswith("--devices=eight: ")
