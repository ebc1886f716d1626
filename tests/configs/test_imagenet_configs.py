"""The ImageNet recipes beside imagenet18 against their sources, and what all of them have."""

import numpy as np
import pytest
from recipes import FOLDER, GPUS, TRAIN_IMAGES, get_named, recipe, steps_planned

from jaxspeed.config import checks, stored
from jaxspeed.models import make  # noqa: F401  registers the families of models
from jaxspeed.planning.make import make_plan


def test_every_imagenet_recipe_is_here():
  files = (path.stem for path in FOLDER.glob("*imagenet*.py"))
  variants = {file: recipe(file).PUBLISHED for file in files}
  named = {f"{file}:{variant}".rstrip(":") for file in variants for variant in variants[file]}
  assert named == GPUS.keys()


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
  "optimizer.bias_decay_factor": 0.0,
  "optimizer.scale_decay_factor": 0.0,
  "optimizer.head_decay_factor": 1.0,
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
  fields = dict(stored.leaves(checks.checked(get_named(named))))
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
  plan = make_plan(get_named(named), devices=GPUS[named])
  assert plan.streams and len(plan.table["learning_rate"]) == plan.total_steps
  assert plan.epoch_of(plan.total_steps - 1)[0] == plan.epochs - 1
  assert np.isfinite(plan.table["learning_rate"]).all()
  # One program for each shape, for each evaluation, and the first state.
  shapes = {(phase.image_size, phase.batch_size) for phase in plan.phases}
  evaluated = {(phase.eval_mode == "rect", phase.eval_size) for phase in plan.phases}
  assert len(plan.programs()) == 1 + len(shapes) + len(evaluated)


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
  config = get_named(f"imagenet_ffcv:{epochs}")
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
