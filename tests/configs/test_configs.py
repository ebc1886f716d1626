"""Every recipe: it parses, plans, has the published numbers, and takes two steps."""

import math
from fractions import Fraction

import jax
import numpy as np
import optax
import pytest
from recipes import AIRBENCH, FOLDER, LADDER, RECIPES, STREAMED, get_config
from tolerances import EQUAL

from jaxspeed.config import fields as fields_lib
from jaxspeed.config import stored
from jaxspeed.data.batch import Batch, Order
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim.make import make_optimizer
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
  assert stored.differences(config, stored.load(tmp_path / "config.json")) == []
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


def test_airbench_without_a_variant_is_94_muon():
  assert AIRBENCH.get_config() == AIRBENCH.get_config("94_muon")


# Of all airbench variants but where `FIELDS` says otherwise: legacy/airbench94.py.
AIRBENCH94 = {
  "batch_size": 1024,
  "label_smoothing": 0.2,
  "augment.crop_padding": 2,
  "augment.flip": "alternating",
  "augment.cutout": 0,
  "augment.cutmix": 0,
  "augment.brightness": 0.0,
  "augment.contrast": 0.0,
  "model.widths": (64, 256, 256),
  "model.depth": 2,
  "model.activation": "gelu",
  "model.init_method": "dirac",
  "model.norm_momentum": 0.6,
  "model.whiten_bias": "zero",
  "model.head_scale": 1 / 9,
  "model.head_unit_std": False,
  "optimizer.name": "sgd",
  "optimizer.momentum": 0.85,
  "optimizer.nesterov": True,
  "optimizer.rate_in_momentum": False,
  "whitening.images": 5000,
  "whitening.epsilon": 5e-4,
  "whitening.centered": False,
  "proxy.keep": 0,
  "data.last_batch": "drop",
  "eval.mode": "six",
}
MUON = AIRBENCH94 | {
  "batch_size": 2000,
  "model.whiten_bias": "uniform",
  "model.head_scale": 1 / 256,
  "model.head_unit_std": True,
  "optimizer.name": "muon",
  "optimizer.muon_momentum": 0.6,
  "optimizer.muon_decay": 0.0,
  "optimizer.muon_coefficients": (3.4445, -4.7750, 2.0315),
  "optimizer.muon_epsilon": 1e-7 / 2000,
  "optimizer.muon_renormalize": "every_step",
}
AIRBENCH96 = AIRBENCH94 | {
  "augment.crop_padding": 4,
  "augment.cutout": 12,
  "model.widths": (128, 384, 512),
  "model.depth": 3,
  "model.norm_momentum": 1 - 0.1,  # PyTorch's default counts what is new
}
FIELDS = {
  "cifar10_airbench:94": AIRBENCH94,
  "cifar10_airbench:94_muon": MUON,
  "cifar10_airbench:95": AIRBENCH94 | {"model.widths": (128, 384, 384)},
  "cifar10_airbench:96": AIRBENCH96,
  "cifar10_airbench:96_faster": AIRBENCH96
  | {"data.last_batch": "carry_over"}
  | {"proxy.keep": 512, "proxy.every": 4, "proxy.widths": (32, 64, 64)},
  # As they stand together at 06c6072: 5cd49b1 has 7.59 and 0.19.
  "cifar10": MUON
  | {
    "epochs": 7.65,
    "whitening.bias_epochs": 0.2,
    "batch_size": 1536,
    "label_smoothing": 0.09,
    "augment.brightness": 0.1399,
    "augment.contrast": 0.1308,
    "model.activation": "silu",
    "model.norm_momentum": 0.5566,
    "optimizer.momentum": 0.825,
    "optimizer.muon_momentum": 0.655,
    "optimizer.muon_decay": 1.0418e-6 * 1536,
    "optimizer.muon_coefficients": (3.4576, -4.7391, 2.0843),
    "optimizer.muon_epsilon": 1e-5 / 1536,
    "optimizer.muon_renormalize": "growing",
    "whitening.images": 960,
    "eval.mode": "selective",
  },
  "cifar10_hlb": AIRBENCH94
  | {
    "augment.flip": "random",
    "augment.cutmix": 3,
    "model.widths": (64, 4 * 64, 8 * 64),
    "model.init_method": "dirac_added",
    "model.norm_momentum": 1 - 0.4,
    "model.whiten_bias": "none",
    "whitening.images": 50_000,
    "whitening.epsilon": 1e-2,
    "whitening.centered": True,
    "eval.mode": "flip",
  },
}

# Steps; steps in which the bias of the whitening layer is trained; steps with cutmix.
STEPS = {
  "cifar10_airbench:94": (math.ceil(48 * 9.9), 48 * 3, 0),
  "cifar10_airbench:94_muon": (25 * 8, 25 * 3, 0),
  "cifar10_airbench:95": (48 * 15, 48 * 3, 0),
  "cifar10_airbench:96": (48 * 37, 48 * 3, 0),
  # Frozen where the number of the epoch is 3 * 48, which it never is.
  "cifar10_airbench:96_faster": (48 * 45, 48 * 45, 0),
  "cifar10": (math.ceil(7.65 * 32), math.ceil(0.2 * 32), 0),
  # Five batches in the last epoch, cutmix in those whose number is at least 12.1 - 6.
  "cifar10_hlb": (12 * 48 + 5, 0, (12 - math.ceil(12.1 - 6)) * 48 + 5),
}


def airbench_groups(lr, weight_decay):
  """(rate, decay) of torch.optim.SGD as `main` of legacy/airbench94.py works them out."""
  kilostep_scale = 1024 * (1 + 1 / (1 - 0.85))
  lr, wd = lr / kilostep_scale, weight_decay * 1024 / kilostep_scale
  rest = (lr, wd / lr)
  return {"filter": rest, "head": rest, "whiten": rest, "bias": (lr * 64, wd / (lr * 64))}


def muon_groups(bias_lr, head_lr, wd):
  """Likewise of airbench94_muon.py and cifar10_speedrun.py, which leave filters to Muon."""
  bias = (bias_lr, wd / bias_lr)
  return {"head": (head_lr, wd / head_lr), "whiten": bias, "bias": bias}


def to_007(step, total):
  warmup = int(total * 0.23)
  return np.interp(step, [0, warmup, total], [0.2, 1, 0.07])


def to_0(step, total):
  warmup = int(total * 0.1)
  return np.interp(step, [0, warmup, total], [0.2, 1, 0])


def falling(step, total):
  return 1 - step / total


def from_0(step, total):
  return np.interp(step, [0, 133, total], [0, 1, 0.07])


HLB_DECAY = 6.687e-4 * 1024
# Groups of torch.optim.SGD; by how much the gradient of its loss is larger than that of the mean
# (a sum over so many examples, in hlb half of it); its schedule.
PYTORCH = {
  "cifar10_airbench:94": (airbench_groups(11.5, 0.0153), 1024, to_007),
  "cifar10_airbench:94_muon": (muon_groups(0.053, 0.67, 2e-6 * 2000), 2000, falling),
  "cifar10_airbench:95": (airbench_groups(10.0, 0.0153), 1024, to_007),
  "cifar10_airbench:96": (airbench_groups(9.0, 0.012), 1024, to_0),
  "cifar10_airbench:96_faster": (airbench_groups(9.0, 0.012), 512, to_0),
  "cifar10": (muon_groups(0.0573, 0.5415, 1.0418e-6 * 1536), 1536, falling),
  "cifar10_hlb": (
    {
      "filter": (1.525 / 512, HLB_DECAY),
      "head": (1.525 / 512, HLB_DECAY),
      "bias": (1.525 * 64 / 512, HLB_DECAY / 64),
    },
    1024 * 512 / 1024,
    from_0,
  ),
}
MUON_RATE = {"cifar10_airbench:94_muon": 0.24, "cifar10": 0.205}


def get_named(named):
  return get_config(*named.split(":"))


def test_every_airbench_net_has_its_published_numbers_here():
  cifar10 = {":".join(filter(None, pair)) for pair in RECIPES if pair[0] != "cifar100"}
  nets = {named for named in cifar10 if get_named(named).model.name == "airbench"}
  assert nets == FIELDS.keys() == STEPS.keys() == PYTORCH.keys()


@pytest.mark.parametrize("named", FIELDS)
def test_an_airbench_recipe_has_the_published_fields(named):
  config = get_named(named)
  fields = dict(stored.leaves(config))
  assert {field: fields[field] for field in FIELDS[named]} == FIELDS[named]
  # Of the range; hlb has the training set's own.
  mean, std = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
  if named == "cifar10_hlb":
    mean = std = ()
  assert config.data.mean == pytest.approx([255 * x for x in mean])
  assert config.data.std == pytest.approx([255 * x for x in std])


@pytest.mark.parametrize("named", STEPS)
def test_an_airbench_recipe_has_the_published_steps(named):
  plan = make_plan(get_named(named))
  assert (plan.total_steps, plan.whiten_bias_steps, plan.cutmix_steps) == STEPS[named]


def published_rates(named):
  """Per kind of parameter, its rate at every step, as that of the mean loss."""
  groups, summed, schedule = PYTORCH[named]
  total, whiten_steps, _ = STEPS[named]
  steps = np.arange(total)
  rates = {kind: lr * summed * schedule(steps, total) for kind, (lr, _) in groups.items()}
  if "whiten" in groups:
    own = falling(steps, whiten_steps) if schedule is falling else schedule(steps, total)
    rates["whiten"] = np.where(steps < whiten_steps, groups["whiten"][0] * summed * own, 0)
  return rates


@pytest.mark.parametrize("named", PYTORCH)
def test_an_airbench_recipe_has_the_published_rates(named):
  table = make_plan(get_named(named)).table
  expected = published_rates(named)
  if named in MUON_RATE:
    expected["filter"] = MUON_RATE[named] * falling(np.arange(STEPS[named][0]), STEPS[named][0])
  np.testing.assert_allclose(table["learning_rate"], expected["filter"], rtol=1e-5, atol=1e-9)
  assert ("whiten_bias_rate" in table) is ("whiten" in expected)
  if "whiten" in expected:
    np.testing.assert_allclose(table["whiten_bias_rate"], expected["whiten"], rtol=1e-5, atol=1e-9)


def test_the_rates_of_hlb_are_near_those_of_onecyclelr():
  # Its phases end at pct_start * total_steps - 1 and total_steps - 1.
  rates = make_plan(get_named("cifar10_hlb")).table["learning_rate"] / 1.525
  onecycle = np.interp(np.arange(581), [0, 0.23 * 581 - 1, 581 - 1], [0, 1, 0.07])
  np.testing.assert_allclose(rates, onecycle, rtol=0, atol=0.003)


@pytest.mark.parametrize("named", PYTORCH)
def test_an_airbench_recipe_averages_as_published(named):
  plan = make_plan(get_named(named))
  total = plan.total_steps
  if named in MUON_RATE:
    assert not {"average_keep", "average_pull"} & plan.table.keys()
    return
  begun = named != "cifar10_hlb"
  keep, pull = np.ones(total), np.zeros(total)
  for done in range(1, total + 1):
    if done % 5 == 0 and (begun or (done - 1) // 48 >= 2):
      # hlb's average begins as a copy in its first update, after which the net is as it was.
      keep[done - 1] = 0.95**5 * (done / total) ** 3 if begun else 0
      pull[done - 1] = begun
      begun = True
  pull[-1] = 1  # the average is what is evaluated
  np.testing.assert_allclose(plan.table["average_keep"], keep, rtol=1e-6)
  np.testing.assert_array_equal(plan.table["average_pull"], pull)


def pytorch_sgd(start, gradients, rates, *, momentum, weight_decay):
  """torch.optim.SGD with Nesterov momentum on one number, as its documentation defines it."""
  weight, buffer = start, 0.0
  for gradient, rate in zip(gradients, rates, strict=True):
    gradient = gradient + weight_decay * weight
    buffer = momentum * buffer + gradient
    weight -= rate * (gradient + momentum * buffer)
  return weight


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("named", PYTORCH)
def test_three_steps_of_an_airbench_recipe_are_those_of_pytorch(named):
  groups, summed, _ = PYTORCH[named]
  config = get_named(named)
  config.precision = "float64"
  table = make_plan(config).table
  params = {
    "whiten": {"kernel": np.full((2, 1, 1, 2), 0.7)},
    "group1": {
      "conv1": {"kernel": np.full((2, 1, 1, 2), 0.7)},
      "norm1": {"bias": np.full(2, 0.7)},
    },
    "head": {"kernel": np.full((2, 2), 0.7)},
  }
  if "whiten" in groups:
    params["whiten"]["bias"] = np.full(2, 0.7)
  gradients = (0.3, -0.2, 0.5)  # of the mean loss
  optimizer = make_optimizer(config, groups_by_name)
  state, now = optimizer.init(params), params
  for number, gradient in enumerate(gradients):
    hyper = {name: column[number] for name, column in table.items()}
    filled = jax.tree.map(lambda leaf, g=gradient: np.full_like(leaf, g), params)
    updates, state = optimizer.update(filled, state, now, **hyper)
    now = optax.apply_updates(now, updates)

  ours = {
    "filter": now["group1"]["conv1"]["kernel"],
    "head": now["head"]["kernel"],
    "bias": now["group1"]["norm1"]["bias"],
    "whiten": now["whiten"].get("bias"),
  }
  for kind, (_, weight_decay) in groups.items():
    expected = pytorch_sgd(
      0.7,
      [summed * gradient for gradient in gradients],
      published_rates(named)[kind][:3] / summed,
      momentum=FIELDS[named]["optimizer.momentum"],
      weight_decay=weight_decay,
    )
    assert abs(expected - 0.7) > 0.01
    np.testing.assert_allclose(ours[kind], expected, rtol=EQUAL, err_msg=kind)
  np.testing.assert_array_equal(now["whiten"]["kernel"], params["whiten"]["kernel"])


def test_cifar100_has_the_recipe_of_airbench96():
  before, after = (
    dict(stored.leaves(config)) for config in (AIRBENCH.get_config("96"), get_config("cifar100"))
  )
  assert before.keys() == after.keys()
  changed = {field: after[field] for field in after if before[field] != after[field]}
  assert changed.pop("data.mean") == pytest.approx([255 * x for x in (0.5071, 0.4867, 0.4408)])
  assert changed.pop("data.std") == pytest.approx([255 * x for x in (0.2675, 0.2565, 0.2761)])
  assert changed == {
    "name": "cifar100",
    "data.name": "cifar100",
    "data.classes": 100,
    "target": 0.75,
  }


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
