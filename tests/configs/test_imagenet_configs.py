"""The ImageNet recipes against the tables of their sources, step by step."""

import importlib.util
import itertools
import math
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxspeed.config import stored
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import make_train_spec

ROOT = pathlib.Path(__file__).parents[2]
TRAIN_IMAGES = 1_281_167


def recipe(name):
  spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def get_config(named):
  name, *variant = named.split(":")
  return recipe(name).get_config(*variant)


# Data phases: first epoch, pixels, images a GPU, short side of the copies (0: originals), least
# scale, whether rectangles are evaluated. Rate phases: epochs, rates; one number is a constant.


def one_machine():
  lr, to_224, to_288 = 1.0, 224 / 512, 128 / 512
  data = [
    (0, 128, 512, 160, 0.08, False),
    (13, 224, 224, 352, 0.087, False),
    (25, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 7), (lr, 2 * lr)),
    ((7, 13), (2 * lr, lr / 4)),
    ((13, 22), (lr * to_224, lr / 10 * to_224)),
    ((22, 25), (lr / 10 * to_224, lr / 100 * to_224)),
    ((25, 28), (lr / 100 * to_288, lr / 1000 * to_288)),
  ]
  return data, rates


def two_machines():
  # The second repository, whose rate falls to a tenth within seven epochs and not eight.
  data, rates = four_machines(lr=1.5)
  rates[4:6] = [((16, 23), (1.3125, 0.13125)), ((23, 28), (0.13125, 0.013125))]
  return data, rates


def four_machines(lr=2.0):
  data = [
    (0, 128, 256, 160, 0.08, False),
    (6, 128, 512, 160, 0.08, False),
    (13, 224, 224, 352, 0.087, False),
    (28, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (lr, 2 * lr)),
    ((6,), (2 * lr,)),
    ((11, 13), (2 * lr, lr)),
    ((13,), (lr * 0.875,)),
    ((16, 24), (lr * 0.875, lr * 0.0875)),
    ((24, 28), (lr * 0.0875, lr * 0.00875)),
    ((28, 30), (lr * 0.005, lr * 0.0005)),
  ]
  return data, rates


def eight_machines():
  data = [
    (0, 128, 128, 160, 0.08, False),
    (6, 128, 256, 160, 0.08, False),
    (14, 224, 128, 352, 0.087, False),
    (17, 224, 224, 352, 0.087, False),
    (29, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (1.92, 3.84)),
    ((6,), (3.84,)),
    ((11, 14), (3.84, 1.92)),
    ((14,), (1.92,)),
    ((17, 23), (1.92, 0.336)),
    ((23, 29), (0.336, 0.0336)),
    ((29, 36), (0.0192, 0.00192)),
  ]
  return data, rates


def sixteen_machines():
  data = [
    (0, 128, 64, 160, 0.08, False),
    (6, 128, 128, 160, 0.08, False),
    (16, 224, 64, 0, 0.08, False),
    (19, 224, 192, 0, 0.08, False),
    (37, 288, 128, 0, 0.5, True),
  ]
  rates = [
    ((0, 6), (1.88, 3.76)),
    ((6,), (3.76,)),
    ((16,), (1.88,)),
    ((19,), (0.564,)),
    ((31,), (0.0564,)),
    ((37,), (0.0376,)),
    ((38, 50), (0.00376,)),
  ]
  return data, rates


def hyperplane():
  data, rates = one_machine()
  data[1] = (13, 224, 224, 320, 0.087, False)
  return data, rates


def four_1080ti():
  data = [
    (0, 128, 256, 160, 0.08, False),
    (15, 224, 112, 320, 0.087, False),
    (28, 288, 64, 0, 0.5, True),
  ]
  rates = [
    ((0, 8), (0.5, 1.0)),
    ((8, 15), (1.0, 0.125)),
    ((15, 25), (0.22, 0.022)),
    ((25, 28), (0.022, 0.0022)),
    ((28, 29), (0.00125, 0.000125)),
  ]
  return data, rates


# Recipe -> tables, GPUs, epochs, steps an epoch of each phase, last rate.
IMAGENET18 = {
  "imagenet18:1": (one_machine, 8, 28, [313, 715, 1252], 0.00025),
  "imagenet18:2": (two_machines, 16, 30, [313, 157, 358, 626], 0.00075),
  "imagenet18:4": (four_machines, 32, 30, [157, 79, 179, 313], 0.001),
  "imagenet18:8": (eight_machines, 64, 36, [157, 79, 157, 90, 157], 0.00192),
  "imagenet18:16": (sixteen_machines, 128, 50, [157, 79, 157, 53, 79], 0.00376),
  "imagenet18_lambda:8": (hyperplane, 8, 28, [313, 715, 1252], 0.00025),
  "imagenet18_lambda:4": (four_1080ti, 4, 29, [1252, 2860, 5005], 0.000125),
}
GPUS = {named: gpus for named, (_, gpus, *_) in IMAGENET18.items()} | {
  "imagenet_21epochs": 8,
  **{f"imagenet_ffcv:{epochs}": 8 for epochs in (16, 24, 32, 40, 56, 88)},
  **{f"imagenet_vit:{epochs}": 8 for epochs in (90, 300)},
  **{f"imagenet_lars:{batch}": 8 for batch in (1632, 3264, 4096, 8192)},
  "imagenet_lars:13056": 64,
  "imagenet_lars:32768": 512,
  "imagenet_lars:49152": 768,
  "imagenet_lars:58880": 230,
  "imagenet_lars:65536": 2048,
  "imagenet_lars:67840": 424,
  "imagenet_lars:81920": 2048,
  "imagenette": 8,
  "smoke_imagenet": 1,
}


def steps_of(data, rates, gpus):
  """Every step as the original takes it: epoch, number from 1, pixels, images, rate, least scale.

  Of data and of rates, the last phase that has begun counts. A rate between two is linear: its
  first step is one increment in.
  """
  for epoch in range(max(itertools.chain.from_iterable(epochs for epochs, _ in rates))):
    _, pixels, batch, _, min_scale, _ = [row for row in data if row[0] <= epoch][-1]
    epochs, values = [row for row in rates if row[0][0] <= epoch][-1]
    total = math.ceil(TRAIN_IMAGES / (batch * gpus))
    for number in range(1, total + 1):
      rate = values[0]
      if len(values) == 2:
        done = (epoch - epochs[0]) * total + number
        rate += done * (values[1] - values[0]) / ((epochs[1] - epochs[0]) * total)
      images = min(batch * gpus, TRAIN_IMAGES - (number - 1) * batch * gpus)
      yield epoch, number, pixels, images, rate, min_scale


def steps_planned(plan):
  """The same of a plan, from its phases and its table."""
  for number, rate in enumerate(plan.table["learning_rate"]):
    phase, (epoch, step_in_epoch) = plan.phase_of(number), plan.epoch_of(number)
    images = plan.examples(number + 1) - plan.examples(number)
    yield epoch, step_in_epoch + 1, phase.image_size, images, rate, phase.min_scale


def test_every_imagenet_recipe_is_here():
  files = (path.stem for path in (ROOT / "configs").glob("*imagenet*.py"))
  variants = {file: getattr(recipe(file), "VARIANTS", ()) for file in files}
  named = {
    f"{file}:{variant}".rstrip(":") for file in variants for variant in variants[file] or [""]
  }
  assert named == GPUS.keys()


@pytest.mark.parametrize("named", IMAGENET18)
def test_imagenet18_takes_the_steps_of_the_original(named):
  tables, gpus, epochs, steps_per_epoch, last_rate = IMAGENET18[named]
  data, rates = tables()
  plan = make_plan(get_config(named), devices=gpus)
  expected = np.array(list(steps_of(data, rates, gpus)))
  np.testing.assert_allclose(np.array(list(steps_planned(plan))), expected, rtol=0, atol=1e-12)
  assert plan.epochs == epochs
  assert [phase.steps_per_epoch for phase in plan.phases] == steps_per_epoch
  assert plan.table["learning_rate"][-1] == pytest.approx(last_rate, abs=1e-12)
  assert [phase.copies for phase in plan.phases] == [row[3] for row in data]
  modes = ["rect" if row[5] else "center" for row in data]
  assert [phase.eval_mode for phase in plan.phases] == modes
  resized = {128: 145, 224: 255, 288: 328}  # int(1.14 x)
  squares = [(row[1], resized[row[1]]) for row in data]
  assert [(phase.eval_size, phase.eval_resize) for phase in plan.phases] == squares


@pytest.mark.parametrize(
  "epoch, first, last",
  # "Changing LR" in dawn/logs/single_machine/event.log, a run of 8 machines.
  [
    (0, 1.9220382165605094, 2.2399999999999998),
    (5, 3.5220382165605093, 3.84),
    (11, 3.831898734177215, 3.1999999999999997),
    (13, 2.551898734177215, 1.9199999999999997),
    (14, 1.92, 1.92),
    (17, 1.9170666666666667, 1.656),
    (22, 0.5970666666666669, 0.3360000000000001),
    (28, 0.08344000000000007, 0.033600000000000074),
  ],
)
def test_eight_machines_have_the_rates_of_the_published_log(epoch, first, last):
  plan = make_plan(get_config("imagenet18:8"), devices=64)
  start = plan.first_step_of(epoch)
  rates = plan.table["learning_rate"][start : start + plan.steps_in_epoch(epoch)]
  np.testing.assert_allclose([rates[0], rates[-1]], [first, last], rtol=0, atol=1e-12)


def test_the_first_rate_of_eight_machines_is_printed_with_all_its_digits():
  done = subprocess.run(
    [sys.executable, "-m", "jaxspeed.plan", "--config=configs/imagenet18.py:8", "--csv"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stderr) == (0, "")
  header, *lines = done.stdout.splitlines()
  assert header == "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  # 6 epochs of 157 steps, 8 of 79, 3 of 157, 12 of 90, 7 of 157.
  assert len(lines) == 6 * 157 + 8 * 79 + 3 * 157 + 12 * 90 + 7 * 157
  assert lines[0] == "0,1,128,8192,1.9220382165605094,0.9,0.08"
  # 1,281,167 - 156 * 8192 images are left for the last step.
  assert lines[156].startswith("0,157,128,3215,2.2")
  assert lines[157].startswith("1,1,128,8192,2.24203821656")
  assert lines[-1].startswith("35,157,288,3215,0.0019")


# Fields that all of a kind have, beside phases and rates.
SHARED = {
  "precision": "auto",
  "data.feed": "stream",
  "data.name": "imagenet2012",
  "data.classes": 1000,
  "data.train_images": TRAIN_IMAGES,
  "data.eval_images": 50_000,
  "augment.flip": "random",
  "model.name": "resnet",
  "model.depth": 50,
  "model.width": 64,
  "model.ghost_splits": 1,
  "model.norm_momentum": 0.9,
  "optimizer.nesterov": False,
  "optimizer.rate_in_momentum": False,
  "optimizer.bias_decay": 0.0,
  "optimizer.scale_decay": 0.0,
  "optimizer.head_decay": 1.0,
  "average.kind": "none",
}
OF_SGD = SHARED | {
  "target": 0.93,
  "target_metric": "top5",
  "optimizer.name": "sgd",
  "optimizer.weight_decay": 1e-4,
}
OF_IMAGENET18 = OF_SGD | {
  "label_smoothing": 0.0,
  "loss_scale": 1024.0,
  "data.last_batch": "keep",
  "model.zero_init": True,
  "model.blurpool": False,
  "model.head_init": "normal",
  "optimizer.momentum": 0.9,
}
OF_FFCV = OF_SGD | {
  "batch_size": 8 * 512,
  "label_smoothing": 0.1,
  "loss_scale": 0.0,
  "data.last_batch": "drop",
  "model.zero_init": False,
  "model.blurpool": True,
  "model.head_init": "uniform",
  "optimizer.momentum": 0.9,
  "eval.mode": "flip",
}
OF_LARS = SHARED | {
  "label_smoothing": 0.1,
  "target_metric": "top1",
  "model.blurpool": False,
  "model.head_init": "normal",
  "augment.min_scale": 0.05,
  "optimizer.name": "lars",
  "optimizer.lars_clip": (),
}
KINDS = {
  "imagenet18": OF_IMAGENET18,
  "imagenet18_lambda": OF_IMAGENET18,
  "imagenet_21epochs": OF_IMAGENET18 | {"optimizer.nesterov": True},
  "imagenet_ffcv": OF_FFCV,
  "imagenet_lars": OF_LARS,
}


@pytest.mark.parametrize("named", [named for named in GPUS if named.split(":")[0] in KINDS])
def test_a_recipe_has_the_fields_of_its_source(named):
  fields = dict(stored.leaves(get_config(named)))
  kind = KINDS[named.split(":")[0]]
  assert {field: fields[field] for field in kind} == kind
  # Of all sources only MLPerf's reference resizes without antialiasing.
  points = named.startswith("imagenet_lars") and named != "imagenet_lars:81920"
  assert fields["data.antialias"] is not points
  # Of the range.
  assert fields["data.mean"] == pytest.approx([255 * x for x in (0.485, 0.456, 0.406)])
  assert fields["data.std"] == pytest.approx([255 * x for x in (0.229, 0.224, 0.225)])


@pytest.mark.parametrize("named", GPUS)
def test_a_recipe_has_a_plan_for_its_gpus(named):
  plan = make_plan(get_config(named), devices=GPUS[named])
  assert plan.streams and len(plan.table["learning_rate"]) == plan.total_steps
  assert plan.epoch_of(plan.total_steps - 1)[0] == plan.epochs - 1
  assert np.isfinite(plan.table["learning_rate"]).all()
  # One program for each shape, for each evaluation, and the first state.
  shapes = {(phase.image_size, phase.batch_size) for phase in plan.phases}
  evaluated = {(phase.eval_mode == "rect", phase.eval_size) for phase in plan.phases}
  assert len(plan.programs()) == 1 + len(shapes) + len(evaluated)


def test_21_epochs_are_those_of_the_entry():
  plan = make_plan(get_config("imagenet_21epochs"), devices=8)
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


# rn50_configs/*.yaml: epochs -> start_ramp, end_ramp; and the first epoch of 192 pixels.
RAMPS = {
  16: (11, 13, 12),
  24: (17, 20, 19),
  32: (23, 27, 25),
  40: (29, 34, 32),
  56: (41, 48, 45),
  88: (65, 76, 71),
}


@pytest.mark.parametrize("epochs", RAMPS)
def test_ffcv_takes_the_steps_of_the_original(epochs):
  *ramp, first_of_192 = RAMPS[epochs]
  config = get_config(f"imagenet_ffcv:{epochs}")
  plan = make_plan(config, devices=8)
  steps = TRAIN_IMAGES // 4096
  knots, values = [0, 2, epochs], [1e-4 * 1.7, 1.7, 0]
  expected = []
  for epoch in range(epochs):
    side = 32 * round(np.interp(epoch, ramp, (160, 192)) / 32)  # halves to even
    assert side == (160 if epoch < first_of_192 else 192)
    ends = [np.interp(at, knots, values) for at in (epoch, epoch + 1)]
    rates = np.interp(np.arange(steps), [0, steps], ends)
    expected += [(epoch, n, side, 4096, rate, 0.08) for n, rate in enumerate(rates, 1)]
  np.testing.assert_allclose(list(steps_planned(plan)), expected, rtol=0, atol=1e-12)
  # 256 pixels of 224 / 256 of the short side, which is then 292.6 pixels.
  assert {(phase.eval_size, phase.eval_resize) for phase in plan.phases} == {(256, 292)}


# rcps_resnet.json: batch -> rate, warm-up in epochs, momentum, weight decay, steps of the fall.
POINTS = {
  1632: (7.4, 2, 0.9, 5e-5, 27476),
  3264: (10.5, 2, 0.9, 5e-5, 14523),
  4096: (10, 5, 0.9, 2e-4, 13137),
  8192: (17, 5, 0.9, 2e-4, 6095),
  13056: (12.8, 9, 0.9, 2.5e-5, 4710),
  32768: (21.2, 16, 0.94, 2.5e-5, 2267),
  49152: (19.405, 24, 0.951807, 1e-4, 1846),
  58880: (23.246, 29, 0.951807, 1e-4, 1785),
  65536: (24.699, 31, 0.951807, 1e-4, 1133),
  67840: (24.699, 31, 0.951807, 1e-4, 1133),
}


@pytest.mark.parametrize("batch", POINTS)
def test_lars_rises_and_falls_as_the_reference_points(batch):
  peak, warmup_epochs, momentum, weight_decay, fall = POINTS[batch]
  config = get_config(f"imagenet_lars:{batch}")
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
  config = get_config("imagenet_lars:81920")
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


@pytest.mark.parametrize(
  "name", ["imagenet18", "imagenet18_lambda", "imagenet_ffcv", "imagenet_lars"]
)
def test_a_variant_that_is_not_there_is_refused_with_the_variants(name):
  module = recipe(name)
  with pytest.raises(UserError, match=f"no variant '3'.* {module.VARIANTS[-1]}"):
    module.get_config("3")


@pytest.mark.parametrize(
  "named",
  [
    "imagenet18:8",
    "imagenet_21epochs",
    "imagenet_ffcv:16",
    "imagenet_lars:65536",
    "smoke_imagenet",
  ],
)
def test_a_recipe_builds(named):
  config = get_config(named)
  config.model.width = 4
  config.data.classes = 3
  config.precision = precision.resolve(config.precision, jax.devices()[0])
  spec = make_train_spec(config, make_plan(config), mesh_lib.make_mesh(1))
  state = jax.eval_shape(
    on_mesh(init_state, spec),
    jax.ShapeDtypeStruct((2,), np.uint32),
    jax.ShapeDtypeStruct((1, 32, 32, 3), np.uint8),
  )
  assert state.params["head"]["kernel"].shape == (4 * 8 * (4 if config.model.depth == 50 else 1), 3)
  assert (state.average is not None) is (named == "smoke_imagenet")
