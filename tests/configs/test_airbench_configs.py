"""airbench's and hlb's recipes: the published fields, steps, rates and decays."""

import math

import numpy as np
import pytest
from recipes import AIRBENCH, RECIPES, get_config

from jaxspeed.config import stored
from jaxspeed.planning.make import make_plan

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


@pytest.mark.parametrize("named", PYTORCH)
def test_an_airbench_recipes_groups_are_the_published_ones(named):
  """PyTorch's lr (s g + wd w) of a loss that is s times the mean: (lr s) (g + wd / s w)."""
  groups, summed, _ = PYTORCH[named]
  config = get_named(named)
  fields, whitening = config.optimizer, config.whitening
  rate = MUON_RATE.get(named) or groups["filter"][0] * summed
  ours = {
    "filter": (rate, fields.weight_decay),
    "head": (rate * fields.head_rate_factor, fields.weight_decay * fields.head_decay_factor),
    "bias": (rate * fields.bias_rate_factor, fields.weight_decay * fields.bias_decay_factor),
    "whiten": (
      rate * whitening.bias_rate_factor,
      fields.weight_decay * whitening.bias_decay_factor,
    ),
  }
  for kind, (lr, weight_decay) in groups.items():
    assert ours[kind] == pytest.approx((lr * summed, weight_decay / summed), rel=1e-12), kind


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
