"""Every recipe: it parses, plans, and its steps can be traced."""

import jax
import numpy as np
import pytest
from recipes import AIRBENCH, EVERY, LADDER, get_config, get_named, recipe
from toy import toy_spec

from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.config.recipe import load_recipe
from jaxspeed.data.batch import Batch
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.state import Carry


@pytest.mark.parametrize("name, variant", EVERY)
def test_a_recipe_parses_stores_and_plans(name, variant, tmp_path):
  config = get_config(name, variant)
  shared = {field for field, _ in stored.leaves(fields_lib.base())}
  own = {field for field, _ in stored.leaves(config)} - shared
  assert all(field.startswith("model.") for field in own)
  assert shared <= {field for field, _ in stored.leaves(config)}
  assert config.name.split("/")[0] == name
  stored.save(config, tmp_path / "config.json")
  whole = checks.checked(config.to_dict())
  assert stored.differences(whole, stored.load(tmp_path / "config.json")) == []
  assert np.isfinite(make_plan(config).table["learning_rate"]).all()


def test_without_a_variant_there_is_a_default_and_one_that_is_not_there_is_refused():
  assert LADDER.get_config() == LADDER.get_config("flip_tta")
  assert AIRBENCH.get_config() == AIRBENCH.get_config("94_muon")
  for name in ("cifar10_resnet9", "imagenet18_lambda", "imagenet_ffcv", "imagenet_lars"):
    last = [*recipe(name).PUBLISHED][-1]
    with pytest.raises(UserError, match=f"no variant 'roof' of {name}: choose .* {last}"):
      load_recipe(f"{name}:roof")


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
