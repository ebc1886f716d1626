"""Ceilings, data sheets, and a recipe's predicted time and memory."""

import dataclasses
import json

import jax
import pytest
from commands import ROOT
from recipes import get_config

from jaxspeed.config.recipe import Published, published
from jaxspeed.doctor import ceilings, forecast, sheets
from jaxspeed.planning.make import make_plan
from jaxspeed.scaling.hardware import DEVICES, LAUNCH_S
from jaxspeed.scaling.predict import memory_gb

H100 = ceilings.Ceiling(
  "NVIDIA H100 80GB HBM3", 8, "bfloat16", 800.0, 2900.0, sheets.sheet_of("NVIDIA H100 80GB HBM3")
)
CPU = ceilings.Ceiling("cpu", 1, "float32", 0.2, 20.0, None)
ON_CPU = forecast.Here(CPU, 1, 1, 8 * 10**9, 2, True)
ON_H100 = forecast.Here(H100, 8, 1, 80 * 10**9, 16, False)


@pytest.fixture(scope="module")
def resnet50():
  config = get_config("imagenet18", "4")
  return config, forecast.work_of(config, 224)


# The names that JAX gives to devices, and the figures of NVIDIA's data sheets.
@pytest.mark.parametrize(
  "name, kind, tflops, gb_s",
  [
    ("NVIDIA H100 80GB HBM3", "h100", 989, 3350),
    ("NVIDIA H100 PCIe", "h100", 756, 2039),
    ("NVIDIA A100-SXM4-40GB", "a100", 312, 1555),
    ("NVIDIA A100-SXM4-80GB", "a100", 312, 2039),
    ("A100", "a100", 312, 2039),
    ("Tesla V100-SXM2-16GB", "v100", 125, 900),
    ("NVIDIA L40S", "", 362, 864),
    ("NVIDIA L4", "", 121, 300),
  ],
)
def test_data_sheets(name, kind, tflops, gb_s):
  assert sheets.sheet_of(name) == sheets.Sheet(kind, tflops, gb_s)


def test_a_device_without_a_data_sheet():
  assert sheets.sheet_of("cpu") is None and sheets.sheet_of("NVIDIA GeForce GTX 970") is None


def test_ceilings_beside_the_data_sheet():
  part = ceilings.examine([H100, CPU])
  assert part.lines == [
    "NVIDIA H100 80GB HBM3: 800 TFLOP/s in bfloat16 (81% of the data sheet's 989), 2,900 GB/s of "
    "memory (87% of 3350)",
    "CPU: 0.2 TFLOP/s in float32, 20 GB/s of memory (no data sheet of it is here)",
  ]
  assert part.advice == []
  slow = dataclasses.replace(H100, tflops=300.0)
  assert [each.mend for each in ceilings.examine([slow]).advice] == [False]


def test_a_device_is_measured_within_its_memory():
  device = jax.devices()[0]
  sizes = ceilings.sizes_of(device, 40 * 10**6)
  assert sizes.megabytes == 10 and 12 * sizes.side**2 <= 10**7
  assert ceilings.sizes_of(device, 0) == ceilings.CPU
  found = ceilings.measure(device, 1, dataclasses.replace(sizes, side=64, megabytes=1, seconds=0))
  assert found.tflops > 0 and found.gb_s > 0 and found.dtype == "float32"


def test_all_reduces_are_timed():
  assert ceilings.all_reduce(jax.devices()[:1], 1) is None
  found = ceilings.all_reduce(jax.devices()[:2], 1)
  assert (found.devices, found.processes, found.megabytes) == (2, 1, 1) and found.gb_s > 0
  assert "share this host's CPU" in ceilings.exchange_part([found], virtual=True).lines[0]
  assert ceilings.exchange_part([], virtual=False).lines == [
    "one device: there is nothing to all-reduce"
  ]


def test_resnet50_has_its_work(resnet50):
  config, work = resnet50
  assert work.forward == pytest.approx(forecast.RESNET50, rel=0.01)
  assert work.parameters == 25_557_032
  # Memory as `scaling` has it from a compiled step.
  config = config.copy_and_resolve_references()
  config.update(batch_size=320, precision="bfloat16")
  config.phases.update(batch_size=(), image_size=(), first_epoch=())
  plan = make_plan(config, devices=8)
  side = plan.phases[0].image_size
  need = forecast.memory_of(config, plan, forecast.work_of(config, side), side, ON_H100)
  assert need / 1e9 == pytest.approx(memory_gb(40, side), rel=0.1)


def test_a_cpu_s_share_is_that_of_a_measured_step():
  measured = json.loads((ROOT / "results/bench_cpu_width64.json").read_text())
  config = get_config("cifar10_resnet9", "")
  config.model.width = measured["width"]
  work = forecast.work_of(config, 32)
  rate = forecast.PASSES * work.forward * measured["batch"] / measured["median_s"]["jaxspeed"]
  two_zen4_cores = 2 * 32 * 3.7e9
  assert rate / two_zen4_cores == pytest.approx(forecast.CPU_SHARE, abs=0.05)


def test_what_a_prediction_rests_on():
  nothing = Published()
  known = forecast.basis_of(H100, nothing, 1e15, on_cpu=False)
  rate = DEVICES["h100"].images_per_s
  work = forecast.PASSES * forecast.RESNET50
  assert known.flops == pytest.approx(work * 256 / (256 / rate - LAUNCH_S) * 800 / 989)
  assert known.launch_s == LAUNCH_S and "the matrix ceiling measured here" in known.words
  own = Published(hardware="1 A100", seconds=2.0)
  found = forecast.basis_of(H100, own, 250e12, on_cpu=False)
  # 125 TFLOP/s there; here 2.56 times the matrix ceiling but 1.42 times the memory's.
  assert found.flops == pytest.approx(125e12 * 2900 / 2039) and found.launch_s == 0
  assert "40% of A100's data sheet" in found.words and "memory ceiling" in found.words
  other = forecast.basis_of(
    dataclasses.replace(H100, kind="new", sheet=None), nothing, 1e15, on_cpu=False
  )
  assert "A100" in other.words
  cpu = forecast.basis_of(CPU, own, 1e15, on_cpu=True)
  assert cpu.flops == pytest.approx(forecast.CPU_SHARE * 0.2e12)


def test_a_recipe_on_a_cpu_by_hand(resnet50):
  config, work = resnet50
  plan = make_plan(config, devices=1)
  part = forecast.examine(config, plan, published("imagenet18", "4"), ON_CPU)
  side = plan.phases[0].image_size
  own = forecast.work_of(config, side)
  each = plan.phases[0].batch_size * 3 * own.forward / (forecast.CPU_SHARE * 0.2e12)
  assert part.facts["steps_s"][0] == pytest.approx(each, rel=1e-6)
  assert part.facts["training_s"] > 20 * each * plan.phases[0].steps_per_epoch
  assert any(line.startswith("rests on 40% of the matrix ceiling") for line in part.lines)
  assert any(line.startswith("published: ") for line in part.lines)
  assert "memory: about " in part.lines[-1]


def test_a_recipe_that_does_not_fit_is_told_its_micro_batches(resnet50):
  config, _ = resnet50
  plan = make_plan(config, devices=8)
  small = dataclasses.replace(ON_H100, memory=10**10)
  (advice,) = forecast.examine(config, plan, Published(), small).advice
  name, number = advice.type.split("=")
  assert name == "add --config.accumulate"
  config = config.copy_and_resolve_references()
  config.accumulate = int(number)
  assert forecast.examine(config, plan, Published(), small).advice == []
  large = dataclasses.replace(ON_H100, memory=10**12)
  assert forecast.examine(get_config("imagenet18", "4"), plan, Published(), large).advice == []


def test_measured_decoding_bounds_a_recipe(resnet50):
  config, _ = resnet50
  plan = make_plan(config, devices=8)
  slow = dataclasses.replace(ON_H100, decoded={128: 100.0, 224: 50.0})
  part = forecast.examine(config, plan, Published(), slow)
  assert part.facts["input_bound"][0]
  assert part.facts["steps_s"][0] == pytest.approx(plan.phases[0].batch_size / 100.0)
