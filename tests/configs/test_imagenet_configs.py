"""ImageNet's recipes against their sources: every step, and the fields beside phases and rates."""

import math
import re

import numpy as np
import pytest
from recipes import GPUS, TRAIN_IMAGES, get_named, recipe, steps_planned

from jaxspeed.config import checks, stored
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.planning.make import make_plan

# Fields that all recipes of ResNet-50 have, and those in which they differ.
SHARED = {
  "augment.flip": "random",
  "model.depth": 50,
  "model.width": 64,
  "model.norm_momentum": 0.9,
  "optimizer.rate_in_momentum": False,
  "optimizer.bias_decay_factor": 0.0,
  "optimizer.scale_decay_factor": 0.0,
  "optimizer.head_decay_factor": 1.0,
}
FIELDS = (
  *("label_smoothing", "loss_scale", "data.last_batch", "optimizer.name", "optimizer.nesterov"),
  *("model.zero_init", "model.blurpool", "model.head_init", "target_metric"),
)
KINDS = {
  "imagenet18": (0.0, 1024.0, "keep", "sgd", False, True, False, "normal", "top5"),
  "imagenet18_lambda": (0.0, 1024.0, "keep", "sgd", False, True, False, "normal", "top5"),
  "imagenet_21epochs": (0.0, 1024.0, "keep", "sgd", True, True, False, "normal", "top5"),
  "imagenet_ffcv": (0.1, 0.0, "drop", "sgd", False, False, True, "uniform", "top5"),
  "imagenet_lars": (0.1, 0.0, "drop", "lars", False, False, False, "normal", "top1"),
}


@pytest.mark.parametrize("named", [named for named in GPUS if named.split(":")[0] in KINDS])
def test_a_recipe_has_the_fields_of_its_source(named):
  fields = dict(stored.leaves(checks.checked(get_named(named))))
  expected = SHARED | dict(zip(FIELDS, KINDS[named.split(":")[0]], strict=True))
  if named == "imagenet_lars:81920":
    expected["data.last_batch"] = "keep"
  if expected["optimizer.name"] == "sgd":
    expected |= {"target": 0.93, "optimizer.weight_decay": 1e-4, "optimizer.momentum": 0.9}
  assert {field: fields[field] for field in expected} == expected
  # Of all sources only MLPerf's reference resizes without antialiasing.
  points = named.startswith("imagenet_lars") and named != "imagenet_lars:81920"
  assert fields["data.antialias"] is not points
  # Of the range.
  assert fields["data.mean"] == pytest.approx([255 * x for x in (0.485, 0.456, 0.406)])
  assert fields["data.std"] == pytest.approx([255 * x for x in (0.229, 0.224, 0.225)])


# Epochs, and the phases of the originals. Of data: first epoch, pixels, images a GPU, short side of
# the copies (0: originals), least scale. Of rates: epochs and rates; one number is a constant.
IMAGENET18 = {
  "imagenet18:1": (
    28,
    "0 128 512 160 0.08, 13 224 224 352 0.087, 25 288 128 0 0.5",
    "0-7 1 2, 7-13 2 0.25, 13-22 0.4375 0.04375, 22-25 0.04375 0.004375, 25-28 0.0025 0.00025",
  ),
  # The second repository, whose rate falls to a tenth within seven epochs and not eight.
  "imagenet18:2": (
    30,
    "0 128 256 160 0.08, 6 128 512 160 0.08, 13 224 224 352 0.087, 28 288 128 0 0.5",
    "0-6 1.5 3, 6 3, 11-13 3 1.5, 13 1.3125, 16-23 1.3125 0.13125, 23-28 0.13125 0.013125, "
    "28-30 0.0075 0.00075",
  ),
  "imagenet18:4": (
    30,
    "0 128 256 160 0.08, 6 128 512 160 0.08, 13 224 224 352 0.087, 28 288 128 0 0.5",
    "0-6 2 4, 6 4, 11-13 4 2, 13 1.75, 16-24 1.75 0.175, 24-28 0.175 0.0175, 28-30 0.01 0.001",
  ),
  "imagenet18:8": (
    36,
    "0 128 128 160 0.08, 6 128 256 160 0.08, 14 224 128 352 0.087, 17 224 224 352 0.087, "
    "29 288 128 0 0.5",
    "0-6 1.92 3.84, 6 3.84, 11-14 3.84 1.92, 14 1.92, 17-23 1.92 0.336, 23-29 0.336 0.0336, "
    "29-36 0.0192 0.00192",
  ),
  "imagenet18:16": (
    50,
    "0 128 64 160 0.08, 6 128 128 160 0.08, 16 224 64 0 0.08, 19 224 192 0 0.08, 37 288 128 0 0.5",
    "0-6 1.88 3.76, 6 3.76, 16 1.88, 19 0.564, 31 0.0564, 37 0.0376, 38 0.00376",
  ),
  "imagenet18_lambda:8": (
    28,
    "0 128 512 160 0.08, 13 224 224 320 0.087, 25 288 128 0 0.5",
    "0-7 1 2, 7-13 2 0.25, 13-22 0.4375 0.04375, 22-25 0.04375 0.004375, 25-28 0.0025 0.00025",
  ),
  "imagenet18_lambda:4": (
    29,
    "0 128 256 160 0.08, 15 224 112 320 0.087, 28 288 64 0 0.5",
    "0-8 0.5 1, 8-15 1 0.125, 15-25 0.22 0.022, 25-28 0.022 0.0022, 28-29 0.00125 0.000125",
  ),
}


def numbers(rows):
  return [[float(word) for word in re.split("[ -]", row)] for row in rows.split(", ")]


def steps_of(data, rates, gpus, epochs):
  """Every step as the original takes it: epoch, number from 1, pixels, images, rate, least scale.

  Of data and of rates, the last phase that has begun counts. A rate between two is linear: its
  first step is one increment in.
  """
  for epoch in range(epochs):
    _, pixels, batch, _, min_scale = [row for row in data if row[0] <= epoch][-1]
    begins, *values = [row for row in rates if row[0] <= epoch][-1]
    total = math.ceil(TRAIN_IMAGES / (batch * gpus))
    for number in range(1, total + 1):
      rate = values[0]
      if len(values) == 3:
        ends, first, last = values
        done = (epoch - begins) * total + number
        rate = first + done * (last - first) / ((ends - begins) * total)
      images = min(batch * gpus, TRAIN_IMAGES - (number - 1) * batch * gpus)
      yield epoch, number, pixels, images, rate, min_scale


@pytest.mark.parametrize("named", IMAGENET18)
def test_imagenet18_takes_the_steps_of_the_original(named):
  epochs, *phases = IMAGENET18[named]
  data, rates = map(numbers, phases)
  plan = make_plan(get_named(named), devices=GPUS[named])
  expected = list(steps_of(data, rates, GPUS[named], epochs))
  np.testing.assert_allclose(list(steps_planned(plan)), expected, rtol=0, atol=1e-12)
  resized = {128: 145, 224: 255, 288: 328}  # int(1.14 x)
  for phase, (_, pixels, _, copies, _) in zip(plan.phases, data, strict=True):
    assert (phase.copies, phase.eval_mode) == (copies, "rect" if pixels == 288 else "center")
    assert (phase.eval_size, phase.eval_resize) == (pixels, resized[pixels])


# "Changing LR" in dawn/logs/single_machine/event.log, a run of 8 machines: epoch -> first and last.
LOG = {
  0: (1.9220382165605094, 2.2399999999999998),
  5: (3.5220382165605093, 3.84),
  11: (3.831898734177215, 3.1999999999999997),
  13: (2.551898734177215, 1.9199999999999997),
  14: (1.92, 1.92),
  17: (1.9170666666666667, 1.656),
  22: (0.5970666666666669, 0.3360000000000001),
  28: (0.08344000000000007, 0.033600000000000074),
}


def test_eight_machines_have_the_rates_of_the_published_log():
  plan = make_plan(get_named("imagenet18:8"), devices=64)
  for epoch, ends in LOG.items():
    start = plan.first_step_of(epoch)
    rates = plan.table["learning_rate"][[start, start + plan.steps_in_epoch(epoch) - 1]]
    np.testing.assert_allclose(rates, ends, rtol=0, atol=1e-12)


def test_21_epochs_are_those_of_the_entry():
  plan = make_plan(get_named("imagenet_21epochs"), devices=8)
  expected = []
  for epoch in range(21):
    side = 96 if epoch < 12 else 128 if epoch < 18 else 224 if epoch < 20 else 288
    batch, min_scale = (2048, 0.08) if epoch < 20 else (1024, 0.5)
    steps = -(-TRAIN_IMAGES // batch)
    for number in range(1, steps + 1):
      at = epoch + number / steps
      rate = 1.2 * at / 5 if epoch < 5 else 1.2 + (1e-4 - 1.2) * (at - 5) / 16
      images = min(batch, TRAIN_IMAGES - (number - 1) * batch)
      expected.append((epoch, number, side, images, rate, min_scale))
  np.testing.assert_allclose(list(steps_planned(plan)), expected, rtol=0, atol=1e-12)
  assert len(expected) == 20 * 626 + 1252
  assert [phase.eval_mode for phase in plan.phases] == 3 * ["center"] + ["rect"]
  assert [phase.copies for phase in plan.phases] == 4 * [0]
  # From 0.96 to 0.90 with the warm-up and back.
  at = np.array([epoch + number / (626 if epoch < 20 else 1252) for epoch, number, *_ in expected])
  momentum = np.interp(at, [0, 5, 21], [0.96, 0.90, 0.96])
  np.testing.assert_allclose(plan.table["momentum"], momentum, rtol=0, atol=1e-12)


# rn50_configs/*.yaml: epochs -> start_ramp, end_ramp.
RAMPS = {16: (11, 13), 24: (17, 20), 32: (23, 27), 40: (29, 34), 56: (41, 48), 88: (65, 76)}


@pytest.mark.parametrize("epochs", RAMPS)
def test_ffcv_takes_the_steps_of_the_original(epochs):
  config = get_named(f"imagenet_ffcv:{epochs}")
  plan = make_plan(config, devices=8)
  steps = TRAIN_IMAGES // 4096
  knots, values = [0, 2, epochs], [1e-4 * 1.7, 1.7, 0]
  expected = []
  for epoch in range(epochs):
    side = 32 * round(np.interp(epoch, RAMPS[epochs], (160, 192)) / 32)  # halves to even
    ends = [np.interp(at, knots, values) for at in (epoch, epoch + 1)]
    rates = np.interp(np.arange(steps), [0, steps], ends)
    expected += [(epoch, n, side, 4096, rate, 0.08) for n, rate in enumerate(rates, 1)]
  np.testing.assert_allclose(list(steps_planned(plan)), expected, rtol=0, atol=1e-12)
  # 256 pixels of 224 / 256 of the short side, which is then 292.6 pixels.
  assert {(phase.eval_size, phase.eval_resize) for phase in plan.phases} == {(256, 292)}


# rcps_resnet.json, as the recipe's header shows it: batch -> rate, warm-up in epochs, momentum,
# weight decay, steps of the fall.
ROW = re.compile(r"^ +(\d+) +([\d.]+) +(\d+) +([\d.]+) +(\S+e-\d) +([\d,]+)  +\d+-\d+$", re.M)
POINTS = {
  int(batch): [float(word.replace(",", "")) for word in row]
  for batch, *row in ROW.findall(recipe("imagenet_lars").__doc__)
}


@pytest.mark.parametrize("batch", POINTS)
def test_lars_rises_and_falls_as_the_reference_points(batch):
  assert len(POINTS) == 10
  peak, warmup_epochs, momentum, weight_decay, fall = POINTS[batch]
  config = get_named(f"imagenet_lars:{batch}")
  plan = make_plan(config, devices=GPUS[f"imagenet_lars:{batch}"])
  warmup = warmup_epochs * (TRAIN_IMAGES // batch)
  assert plan.total_steps == warmup + fall and plan.phases[0].batch_size == batch
  # imagenet_preprocessing.py: area_range, _RESIZE_MIN.
  assert (plan.phases[0].min_scale, plan.phases[0].eval_size) == (0.05, 224)
  assert plan.phases[0].eval_resize == 256
  number = np.arange(warmup + fall)
  down = (peak - 1e-4) * (1 - (number - warmup) / fall) ** 2 + 1e-4
  expected = np.where(number <= warmup, peak * number / warmup, down)
  np.testing.assert_allclose(plan.table["learning_rate"], expected, rtol=1e-12, atol=1e-12)
  optimizer = config.optimizer
  assert (optimizer.momentum, optimizer.weight_decay) == (momentum, weight_decay)
  assert (optimizer.lars_eta, optimizer.lars_epsilon) == (0.001, 0.0)
  assert not optimizer.decay_follows_rate and config.target == 0.759


def test_fujitsus_batch_has_the_numbers_of_its_mlperf_entry():
  config = get_named("imagenet_lars:81920")
  plan = make_plan(config, devices=2048)
  assert plan.phases[0].steps_per_epoch == 16 and plan.total_steps == 1440
  assert plan.phases[0].eval_resize == 256
  number = np.arange(1, 1441)
  down = 13 * (0.9975 * (1 - np.minimum(number - 576, 832) / 832) ** 2.2 + 0.0025)
  expected = np.where(number <= 576, 13 * number / 576, down)
  np.testing.assert_allclose(plan.table["learning_rate"], expected, rtol=1e-12, atol=1e-12)
  assert plan.table["learning_rate"][-32:] == pytest.approx(13 * 0.0025, rel=1e-12)
  optimizer = config.optimizer
  assert (optimizer.momentum, optimizer.weight_decay) == (0.96, 5e-5)
  assert (optimizer.lars_eta, optimizer.lars_epsilon) == (0.0025, 1e-9)
  assert optimizer.decay_follows_rate and config.target == 0.7508
