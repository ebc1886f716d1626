"""Every recipe: it parses, plans, has the published numbers, and takes two steps."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from recipes import AIRBENCH, FOLDER, LADDER, RECIPES, STREAMED, get_config, get_named, recipe
from toy import toy_spec

from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.data.batch import Batch
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.state import Carry

# bag_of_tricks.ipynb: what each rung changes beside its name, and what the first has of that.
LADDER_FIELDS = {
  "baseline": {
    "batch_size": 512,
    "epochs": 24.0,
    "label_smoothing": 0.0,
    "augment.crop_padding": 4,
    "augment.flip": "random",
    "augment.cutout": 8,
    "average.kind": "none",
    "average.every": 1,
    "eval.mode": "center",
    "model.pool_position": "after_activation",
    "model.activation": "relu",
    "model.ghost_splits": 1,
    "model.train_norm_scale": True,
    "model.celu_alpha": 0.075,
    "model.head_scale": 1 / 8,
    "model.whiten": False,
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.weight_decay": 5e-4,
    "optimizer.rate_in_momentum": True,
    "optimizer.bias_rate_factor": 1.0,
    "optimizer.bias_decay_factor": 1.0,
    "schedule.peak": 0.4,
    "schedule.warmup": 5 / 24,
    "schedule.final": 0.0,
    "schedule.flat_epochs": 0.0,
  },
  "device_data": {},
  "early_pooling": {
    "epochs": 25.0,
    "model.pool_position": "before_norm",
    "schedule.warmup": 0.2,
  },
  "label_smoothing": {"epochs": 23.0, "label_smoothing": 0.2},
  "celu": {"epochs": 20.0, "model.activation": "celu"},
  "ghost_norm": {"epochs": 18.0, "model.ghost_splits": 16, "schedule.peak": 0.6},
  "frozen_scale": {
    "epochs": 17.0,
    "model.train_norm_scale": False,
    "model.celu_alpha": 0.3,
    "model.head_scale": 1 / 16,
    "optimizer.bias_rate_factor": 64.0,
    "optimizer.bias_decay_factor": 1 / 64,
  },
  "whitening": {"epochs": 15.0, "model.whiten": True},
  "high_rate": {"epochs": 14.0, "schedule.peak": 1.0, "augment.cutout": 5},
  "ema": {
    "epochs": 13.0,
    "average.kind": "ema",
    "average.every": 5,
    "schedule.final": 0.1,
    "schedule.flat_epochs": 2.0,
  },
  "flip_tta": {"epochs": 10.0, "augment.cutout": 0, "eval.mode": "flip"},
}


def test_no_recipe_is_left_out():
  assert {path.stem for path in FOLDER.glob("*.py")} == {name for name, _ in RECIPES + STREAMED}


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_a_recipe_parses_locks_stores_and_plans(name, variant, tmp_path):
  config = get_config(name, variant)
  config.lock()
  with pytest.raises(UserError, match="no field no_such_field"):
    config.no_such_field = 1
  shared = {field for field, _ in stored.leaves(fields_lib.base())}
  own = {field for field, _ in stored.leaves(config)} - shared
  assert all(field.startswith("model.") for field in own)
  assert shared <= {field for field, _ in stored.leaves(config)}
  assert config.name.split("/")[0] == name
  stored.save(config, tmp_path / "config.json")
  whole = checks.checked(config.to_dict())
  assert stored.differences(whole, stored.load(tmp_path / "config.json")) == []
  assert config.data.feed == ("stream" if (name, variant) in STREAMED else "resident")
  plan = make_plan(config)
  if config.data.feed == "resident":
    steps_per_epoch = config.data.train_images // config.batch_size
    assert plan.total_steps == math.ceil(Fraction(str(config.epochs)) * steps_per_epoch)
  assert np.isfinite(plan.table["learning_rate"]).all()


@pytest.mark.parametrize("rung", LADDER.RUNGS)
def test_a_rung_is_one_change_from_the_one_before_and_has_the_published_rates(rung):
  assert tuple(LADDER_FIELDS) == LADDER.RUNGS
  config, place = LADDER.get_config(rung), LADDER.RUNGS.index(rung)
  fields, published = dict(stored.leaves(config)), LADDER_FIELDS[rung]
  if place:
    below = LADDER.RUNGS[place - 1]
    before = dict(stored.leaves(LADDER.get_config(below)))
    published = before | published | {"name": f"cifar10_resnet9/{rung}"}
    assert fields.keys() == before.keys()
  assert {name: fields[name] for name in published} == published

  plan, epochs, peak = make_plan(config), int(config.epochs), config.schedule.peak
  assert plan.total_steps == epochs * 97 and plan.train_images == 50_000
  # [0, 5, 24] in the first rungs, later [0, E / 5, E], in the last ones [0, E / 5, E - 2].
  top = 5 if rung in ("baseline", "device_data") else epochs / 5
  averaged = rung in ("ema", "flip_tta")
  end, last = (epochs - 2, peak / 10) if averaged else (epochs, 0)
  positions = np.arange(1, epochs * 97 + 1) / 97
  expected = np.interp(positions, [0, top, end], [0, peak, last])
  np.testing.assert_allclose(plan.table["learning_rate"], expected, rtol=1e-6, atol=1e-6)
  assert ("average_keep" in plan.table) is averaged
  if averaged:
    assert set(np.unique(plan.table["average_keep"])) == {0.99**5, 1}
    assert plan.evaluated_weights(plan.total_steps) == "average"


def test_without_a_variant_there_is_a_default_and_one_that_is_not_there_is_refused():
  assert LADDER.get_config() == LADDER.get_config("flip_tta")
  assert AIRBENCH.get_config() == AIRBENCH.get_config("94_muon")
  for name in (
    "cifar10_resnet9",
    "imagenet18",
    "imagenet18_lambda",
    "imagenet_ffcv",
    "imagenet_lars",
  ):
    module = recipe(name)
    with pytest.raises(UserError, match=f"no variant 'roof'.* {[*module.PUBLISHED][-1]}"):
      module.get_config("roof")


@pytest.mark.parametrize(
  "named",
  [
    "cifar10",
    "cifar10_airbench:94",
    "cifar10_airbench:96_faster",
    "cifar10_hlb",
    "cifar10_resnet9:baseline",
    "cifar10_resnet9:flip_tta",
    "imagenet_lars:65536",
    "imagenet_vit:90",
    "smoke_imagenet",
  ],
)
def test_a_recipes_steps_can_be_traced(named):
  config = get_named(named)
  if not config.data.mean:
    config.data.update(mean=(127.5,) * 3, std=(73.9,) * 3)
  spec = toy_spec(config)
  plan, phase = spec.plan, spec.plan.phases[0]
  shape = (phase.batch_size, phase.image_size, phase.image_size, 3)
  images, label = jax.ShapeDtypeStruct(shape, np.uint8), jax.ShapeDtypeStruct(shape[:1], np.int32)
  mask = jax.ShapeDtypeStruct(shape[:1], np.bool_)
  key = jax.ShapeDtypeStruct((2,), np.uint32)
  state = jax.eval_shape(on_mesh(init_state, spec), key, images)
  kinds = {plan.kind_of(number) for number in range(plan.total_steps)}
  assert any(kind.cutmix for kind in kinds) is (config.augment.cutmix > 0)
  assert any(kind.whiten_bias for kind in kinds) is (config.whitening.bias_epochs > 0)
  assert any(kind.proxy_learns for kind in kinds) is (config.proxy.keep > 0)
  for kind in kinds:
    carry, loss = jax.eval_shape(
      batch_step(spec, kind),
      Carry(state, MetricSums.zero()),
      Batch(images, label, mask, flip=mask),
      plan.table_in(np.float32),
    )
    assert loss.shape == ()
    for old, new in zip(*map(jax.tree.leaves, (state, carry.state)), strict=True):
      assert (old.shape, old.dtype) == (new.shape, new.dtype)
