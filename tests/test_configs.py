"""Every recipe: it parses, plans, differs from its neighbour as it says, and takes two steps."""

import importlib.util
import math
import pathlib

import jax
import numpy as np
import pytest

from jaxspeed import config as config_lib
from jaxspeed import mesh as mesh_lib
from jaxspeed import precision, step
from jaxspeed.build import make_job
from jaxspeed.data.feed import Batch
from jaxspeed.errors import UserError
from jaxspeed.losses import Sums
from jaxspeed.plan import make_plan
from jaxspeed.state import Carry

FOLDER = pathlib.Path(__file__).parents[1] / "configs"


def recipe(name):
  spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


LADDER = recipe("cifar10_resnet9")

# bag_of_tricks.ipynb: rung -> epochs, highest rate, square that is cut out.
PUBLISHED = {
  "baseline": (24, 0.4, 8),
  "device_data": (24, 0.4, 8),
  "early_pooling": (25, 0.4, 8),
  "label_smoothing": (23, 0.4, 8),
  "celu": (20, 0.4, 8),
  "ghost_norm": (18, 0.6, 8),
  "frozen_scale": (17, 0.6, 8),
  "whitening": (15, 0.6, 8),
  "high_rate": (14, 1.0, 5),
  "ema": (13, 1.0, 5),
  "flip_tta": (10, 1.0, 0),
}

# What a rung changes, beside its name: field -> (before, after).
CHANGES = {
  "device_data": {},
  "early_pooling": {
    "epochs": (24.0, 25.0),
    "model.pool_position": ("after_activation", "before_norm"),
    "schedule.warmup": (5 / 24, 0.2),
  },
  "label_smoothing": {"epochs": (25.0, 23.0), "label_smoothing": (0.0, 0.2)},
  "celu": {"epochs": (23.0, 20.0), "model.activation": ("relu", "celu")},
  "ghost_norm": {
    "epochs": (20.0, 18.0),
    "model.ghost_splits": (1, 16),
    "schedule.peak": (0.4, 0.6),
  },
  "frozen_scale": {
    "epochs": (18.0, 17.0),
    "model.train_norm_scale": (True, False),
    "model.celu_alpha": (0.075, 0.3),
    "model.head_scale": (1 / 8, 1 / 16),
    "optimizer.bias_rate": (1.0, 64.0),
    "optimizer.bias_decay": (1.0, 1 / 64),
  },
  "whitening": {"epochs": (17.0, 15.0), "model.whiten": (False, True)},
  "high_rate": {
    "epochs": (15.0, 14.0),
    "schedule.peak": (0.6, 1.0),
    "augment.cutout": (8, 5),
  },
  "ema": {
    "epochs": (14.0, 13.0),
    "average.kind": ("none", "ema"),
    "average.every": (1, 5),
    "schedule.final": (0.0, 0.1),
    "schedule.flat_epochs": (0.0, 2.0),
  },
  "flip_tta": {
    "epochs": (13.0, 10.0),
    "augment.cutout": (5, 0),
    "eval.views": ("center", "flip"),
  },
}

RECIPES = [("cifar10_resnet9", rung) for rung in LADDER.RUNGS] + [("quickstart", "")]


def get_config(name, variant=""):
  return recipe(name).get_config(*([variant] if variant else []))


def test_no_recipe_is_left_out():
  assert {path.stem for path in FOLDER.glob("*.py")} == {name for name, _ in RECIPES}


@pytest.mark.parametrize("name, variant", RECIPES)
def test_a_recipe_parses_locks_stores_and_plans(name, variant, tmp_path):
  config = get_config(name, variant)
  config.lock()
  with pytest.raises((AttributeError, KeyError)):
    config.no_such_field = 1
  shared = {field for field, _ in config_lib.leaves(config_lib.base())}
  own = {field for field, _ in config_lib.leaves(config)} - shared
  assert all(field.startswith("model.") for field in own)
  assert shared <= {field for field, _ in config_lib.leaves(config)}
  assert config.name.split("/")[0] == name
  config_lib.save(config, tmp_path / "config.json")
  assert config_lib.differences(config, config_lib.load(tmp_path / "config.json")) == []
  plan = make_plan(config)
  assert plan.total_steps == math.ceil(config.epochs) * plan.phases[0].steps_per_epoch
  assert np.isfinite(plan.table["learning_rate"]).all()


@pytest.mark.parametrize("rung", LADDER.RUNGS)
def test_a_rung_has_the_published_epochs_and_rates(rung):
  epochs, peak, cutout = PUBLISHED[rung]
  config = LADDER.get_config(rung)
  plan = make_plan(config)
  assert plan.total_steps == epochs * 97 and plan.train_images == 50_000
  assert (config.batch_size, config.optimizer.momentum, config.optimizer.nesterov) == (
    512,
    0.9,
    True,
  )
  assert config.optimizer.weight_decay == 5e-4 and config.optimizer.rate_in_momentum
  own = dict(crop_padding=4, flip="random", cutout=cutout)
  assert config.augment.to_dict() == config_lib.base().augment.to_dict() | own

  # [0, 5, 24] in the first rungs, later [0, E / 5, E], in the last ones [0, E / 5, E - 2].
  top = 5 if rung in ("baseline", "device_data") else epochs / 5
  averaged = rung in ("ema", "flip_tta")
  end, last = (epochs - 2, peak / 10) if averaged else (epochs, 0)
  positions = np.arange(1, epochs * 97 + 1) / 97
  expected = np.interp(positions, [0, top, end], [0, peak, last])
  np.testing.assert_allclose(plan.table["learning_rate"], expected, rtol=1e-6, atol=1e-6)
  assert ("average_keep" in plan.table) is averaged
  if averaged:
    assert set(np.unique(plan.table["average_keep"])) == {np.float32(0.99**5), np.float32(1)}


def test_the_ladder_has_the_published_rungs_in_their_order():
  assert tuple(PUBLISHED) == LADDER.RUNGS and tuple(CHANGES) == LADDER.RUNGS[1:]


@pytest.mark.parametrize("rung", LADDER.RUNGS[1:])
def test_a_rung_is_one_change_from_the_one_before(rung):
  below = LADDER.RUNGS[LADDER.RUNGS.index(rung) - 1]
  before, after = (dict(config_lib.leaves(LADDER.get_config(name))) for name in (below, rung))
  assert before.keys() == after.keys()
  changed = {
    field: (before[field], after[field]) for field in after if before[field] != after[field]
  }
  assert changed.pop("name") == (f"cifar10_resnet9/{below}", f"cifar10_resnet9/{rung}")
  assert changed == CHANGES[rung]


def test_the_ladder_without_a_rung_is_its_last():
  assert LADDER.get_config() == LADDER.get_config("flip_tta")


def test_a_rung_that_is_not_there_is_refused_with_the_rungs():
  with pytest.raises(UserError, match="no variant 'roof'.* baseline, .* flip_tta"):
    LADDER.get_config("roof")


def toy(config):
  """The recipe with a net four channels wide, 70 random images, batches of 32."""
  config.model.width = 4
  config.batch_size = 32
  config.whitening.images = 64
  config.precision = precision.resolve(config.precision, jax.devices()[0])
  config.data.update(train_images=70, eval_images=8)
  if not config.data.mean:
    config.data.update(mean=(127.5,) * 3, std=(73.9,) * 3)
  return config


# Of XLA:CPU: the programs run twice, and compile in half the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, variant",
  [
    ("cifar10_resnet9", "baseline"),
    ("cifar10_resnet9", "ghost_norm"),
    ("cifar10_resnet9", "flip_tta"),
    ("quickstart", ""),
  ],
)
def test_a_recipe_takes_two_steps_on_random_images(name, variant):
  config = toy(get_config(name, variant))
  mesh = mesh_lib.make_mesh(1)
  plan = make_plan(config)
  job = make_job(config, plan, mesh)
  rng = np.random.default_rng(0)
  size = config.data.image_size
  data = Batch(
    image=rng.integers(256, size=(70, size, size, 3), dtype=np.uint8),
    label=rng.integers(config.data.classes, size=70, dtype=np.int32),
    mask=np.ones(70, bool),
  )
  key = np.array([0, 1], np.uint32)
  state = jax.jit(step.on_mesh(step.init_state, job), compiler_options=QUICK)(key, data.image)
  carry = Carry(state, Sums.zero())
  order = np.random.default_rng(1).permutation(70).astype(np.int32)
  function = step.on_mesh(step.resident_step, job, phase=plan.phases[0])
  train = jax.jit(function, compiler_options=QUICK)
  losses = []
  for _ in range(2):
    carry, loss = train(carry, data, order, plan.table)
    losses.append(float(loss))

  assert np.isfinite(losses).all()
  # Nothing is learned yet: not far from a uniform guess.
  assert losses[0] == pytest.approx(math.log(config.data.classes), rel=0.5)
  assert int(carry.state.step) == 2 and int(carry.sums.count) == 64
  moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), state.params, carry.state.params)
  frozen = moved.pop("whiten", None)
  assert all(jax.tree.leaves(moved))
  assert frozen == ({"kernel": False} if config.model.whiten else None)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(carry.state.evaluated()))
