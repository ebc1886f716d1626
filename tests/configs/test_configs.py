"""Every recipe: it parses, plans, has the published numbers, and takes two steps."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from recipes import FOLDER, LADDER, RECIPES, STREAMED, get_config

from jaxspeed.config import checks, stored
from jaxspeed.config import fields as fields_lib
from jaxspeed.data.batch import Batch, Order
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import on_mesh, resident_step
from jaxspeed.steps.spec import make_train_spec
from jaxspeed.steps.state import Carry

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
    "eval.mode": ("center", "flip"),
  },
}


def test_no_recipe_is_left_out():
  assert {path.stem for path in FOLDER.glob("*.py")} == {name for name, _ in RECIPES + STREAMED}


@pytest.mark.parametrize("name, variant", RECIPES + STREAMED)
def test_a_recipe_parses_locks_stores_and_plans(name, variant, tmp_path):
  config = get_config(name, variant)
  config.lock()
  with pytest.raises((AttributeError, KeyError)):
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
  assert config.augment.to_dict() == fields_lib.base().augment.to_dict() | own

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


def test_the_ladder_has_the_published_rungs_in_their_order():
  assert tuple(PUBLISHED) == LADDER.RUNGS and tuple(CHANGES) == LADDER.RUNGS[1:]


@pytest.mark.parametrize("rung", LADDER.RUNGS[1:])
def test_a_rung_is_one_change_from_the_one_before(rung):
  below = LADDER.RUNGS[LADDER.RUNGS.index(rung) - 1]
  before, after = (dict(stored.leaves(LADDER.get_config(name))) for name in (below, rung))
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
  """The recipe with a net of a few channels, and an epoch of two steps of 32 random images.

  The bias of a whitening layer is trained in the first step, cutmix is in the second.
  """
  if config.model.name == "airbench":
    config.model.widths = (4, 8, 8)
  else:
    config.model.width = 4
  config.epochs = 1.0
  config.batch_size = 32
  config.whitening.images = 64
  config.whitening.bias_epochs = min(config.whitening.bias_epochs, 0.5)
  config.augment.cutmix_epochs = min(config.augment.cutmix_epochs, 0.5)
  if config.proxy.keep:
    config.proxy.update(keep=16, widths=(4, 4, 4))
  config.precision = precision.resolve(config.precision, jax.devices()[0])
  config.data.update(train_images=70, eval_images=8)
  if not config.data.mean:
    config.data.update(mean=(127.5,) * 3, std=(73.9,) * 3)
  return config


def changes(before, after):
  """A tree like the given ones, of whether a leaf has changed."""
  return jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)


# Of XLA:CPU: the programs run once, and compile in half the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, variant",
  [
    ("cifar10", ""),
    ("cifar10_airbench", "94"),
    ("cifar10_airbench", "96"),
    ("cifar10_airbench", "96_faster"),
    ("cifar10_hlb", ""),
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
  spec = make_train_spec(config, plan, mesh)
  rng = np.random.default_rng(0)
  size = config.data.image_size
  data = Batch(
    image=rng.integers(256, size=(70, size, size, 3), dtype=np.uint8),
    label=rng.integers(config.data.classes, size=70, dtype=np.int32),
    mask=np.ones(70, bool),
  )
  key = np.array([0, 1], np.uint32)
  state = jax.jit(on_mesh(init_state, spec), compiler_options=QUICK)(key, data.image)
  carry = Carry(state, MetricSums.zero())
  order = Order(
    index=rng.permutation(70).astype(np.int32), flip=rng.integers(2, size=70).astype(bool)
  )
  assert plan.total_steps == 2
  kinds = [plan.kind_of(number) for number in range(2)]
  assert [kind.cutmix for kind in kinds] == [False, config.augment.cutmix > 0]
  trains_bias = config.whitening.bias_epochs > 0
  assert [kind.whiten_bias for kind in kinds] == [trains_bias, False]
  train = {
    kind: jax.jit(
      on_mesh(resident_step, spec, phase=plan.phases[0], kind=kind),
      compiler_options=QUICK,
    )
    for kind in kinds
  }
  states, losses = [state], []
  for kind in kinds:
    carry, loss = train[kind](carry, data, order, plan.table_in(np.float32))
    states.append(carry.state)
    losses.append(float(loss))

  assert np.isfinite(losses).all()
  # Nothing is learned yet: not far from a uniform guess.
  assert losses[0] == pytest.approx(math.log(config.data.classes), rel=0.5)
  assert int(carry.state.step) == 2
  assert int(carry.sums.count) == 2 * (config.proxy.keep or 32)
  moved = changes(states[0].params, states[2].params)
  whiten = moved.pop("whiten", None)
  assert all(jax.tree.leaves(moved))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(carry.state.evaluated()))

  if config.model.name == "airbench":
    bias = {} if config.model.whiten_bias == "none" else {"bias": True}
    assert whiten == {"kernel": False} | bias
    in_second = changes(states[1].params["whiten"], states[2].params["whiten"])
    assert not any(jax.tree.leaves(in_second))
  else:
    assert whiten == ({"kernel": False} if config.model.whiten else None)
  assert (carry.state.proxy is not None) is (config.proxy.keep > 0)
  if config.proxy.keep:
    learned = [changes(*(s.proxy.params for s in states[i : i + 2])) for i in range(2)]
    assert learned[0].pop("whiten") == {"kernel": False, "bias": False}
    assert all(jax.tree.leaves(learned[0])) and not any(jax.tree.leaves(learned[1]))
