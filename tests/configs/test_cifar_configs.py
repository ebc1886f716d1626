"""CIFAR-10's recipes: the published fields, steps, rates and decays.

tests/steps/test_originals.py takes steps of these beside PyTorch.
"""

import math

import numpy as np
import pytest
from recipes import AIRBENCH, LADDER, RECIPES, get_config, get_named

from jaxspeed.config import stored
from jaxspeed.planning.make import make_plan

# Of all airbench variants but where `FIELDS` says otherwise: legacy/airbench94.py.
AIRBENCH94 = {
  "batch_size": 1024,
  "label_smoothing": 0.2,
  "augment.crop_padding": 2,
  "augment.flip": "alternating",
  "augment.cutout": 0,
  "model.widths": (64, 256, 256),
  "model.depth": 2,
  "model.activation": "gelu",
  "model.init_method": "dirac",
  "model.whiten_bias": "zero",
  "model.head_scale": 1 / 9,
  "model.norm_momentum": 0.6,
  "whitening.images": 5000,
  "eval.mode": "six",
}
MUON = {"model.whiten_bias": "uniform", "model.head_scale": 1 / 256, "model.head_unit_std": True}
AIRBENCH96 = {
  "augment.crop_padding": 4,
  "augment.cutout": 12,
  "model.widths": (128, 384, 512),
  "model.depth": 3,
  "model.norm_momentum": 1 - 0.1,  # PyTorch's default counts what is new
}
FIELDS = {
  "cifar10_airbench:94": {},
  "cifar10_airbench:94_muon": MUON | {"batch_size": 2000},
  "cifar10_airbench:95": {"model.widths": (128, 384, 384)},
  "cifar10_airbench:96": AIRBENCH96,
  "cifar10_airbench:96_faster": AIRBENCH96 | {"proxy.keep": 512, "proxy.every": 4},
  # As they stand together at 06c6072: 5cd49b1 has 7.59 epochs, of which 0.19 train the bias.
  "cifar10": MUON
  | {"batch_size": 1536, "augment.brightness": 0.1399, "augment.contrast": 0.1308}
  | {"label_smoothing": 0.09, "model.activation": "silu"}
  | {"whitening.images": 960, "eval.mode": "selective", "model.norm_momentum": 0.5566},
  "cifar10_hlb": {
    "augment.flip": "random",
    "augment.cutmix": 3,
    "model.widths": (64, 4 * 64, 8 * 64),
    "model.init_method": "dirac_added",
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


def rising(first, warmup, last):
  return lambda step, total: np.interp(step, [0, int(total * warmup), total], [first, 1, last])


def falling(step, total):
  return 1 - step / total


HLB_DECAY = 6.687e-4 * 1024
# Groups of torch.optim.SGD; by how much the gradient of its loss is larger than that of the mean
# (a sum over so many examples, in hlb half of it); its schedule.
PYTORCH = {
  "cifar10_airbench:94": (airbench_groups(11.5, 0.0153), 1024, rising(0.2, 0.23, 0.07)),
  "cifar10_airbench:94_muon": (muon_groups(0.053, 0.67, 2e-6 * 2000), 2000, falling),
  "cifar10_airbench:95": (airbench_groups(10.0, 0.0153), 1024, rising(0.2, 0.23, 0.07)),
  "cifar10_airbench:96": (airbench_groups(9.0, 0.012), 1024, rising(0.2, 0.1, 0)),
  "cifar10_airbench:96_faster": (airbench_groups(9.0, 0.012), 512, rising(0.2, 0.1, 0)),
  "cifar10": (muon_groups(0.0573, 0.5415, 1.0418e-6 * 1536), 1536, falling),
  "cifar10_hlb": (
    {
      "filter": (1.525 / 512, HLB_DECAY),
      "head": (1.525 / 512, HLB_DECAY),
      "bias": (1.525 * 64 / 512, HLB_DECAY / 64),
    },
    1024 * 512 / 1024,
    rising(0, 0.23, 0.07),
  ),
}
MUON_RATE = {"cifar10_airbench:94_muon": 0.24, "cifar10": 0.205}


def test_every_airbench_net_has_its_published_numbers_here():
  cifar10 = {":".join(filter(None, pair)) for pair in RECIPES if pair[0] != "cifar100"}
  nets = {named for named in cifar10 if get_named(named).model.name == "airbench"}
  assert nets == FIELDS.keys() == STEPS.keys() == PYTORCH.keys()


@pytest.mark.parametrize("named", FIELDS)
def test_an_airbench_recipe_has_the_published_fields_and_steps(named):
  config, published = get_named(named), AIRBENCH94 | FIELDS[named]
  fields = dict(stored.leaves(config))
  assert {field: fields[field] for field in published} == published
  # Of the range; hlb has the training set's own.
  mean, std = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
  if named == "cifar10_hlb":
    mean = std = ()
  assert config.data.mean == pytest.approx([255 * x for x in mean])
  assert config.data.std == pytest.approx([255 * x for x in std])
  plan = make_plan(config)
  assert (plan.total_steps, plan.whiten_bias_steps, plan.cutmix_steps) == STEPS[named]


@pytest.mark.parametrize("named", PYTORCH)
def test_an_airbench_recipe_has_the_published_rates_and_decays(named):
  """PyTorch's lr (s g + wd w) of a loss that is s times the mean: (lr s) (g + wd / s w)."""
  groups, summed, schedule = PYTORCH[named]
  config = get_named(named)
  table, steps = make_plan(config).table, np.arange(STEPS[named][0])
  expected = {"learning_rate": schedule(steps, len(steps))}
  rate = MUON_RATE.get(named) or groups["filter"][0] * summed
  expected["learning_rate"] = rate * expected["learning_rate"]
  assert ("whiten_bias_rate" in table) is ("whiten" in groups)
  if "whiten" in groups:
    last = STEPS[named][1]
    share = falling(steps, last) if schedule is falling else schedule(steps, len(steps))
    expected["whiten_bias_rate"] = np.where(steps < last, groups["whiten"][0] * summed * share, 0)
  for name, values in expected.items():
    np.testing.assert_allclose(table[name], values, rtol=1e-5, atol=1e-9)

  fields, whitening = config.optimizer, config.whitening
  factors = {
    "filter": (1, 1),
    "head": (fields.head_rate_factor, fields.head_decay_factor),
    "bias": (fields.bias_rate_factor, fields.bias_decay_factor),
    "whiten": (whitening.bias_rate_factor, whitening.bias_decay_factor),
  }
  for kind, (lr, weight_decay) in groups.items():
    ours = rate * factors[kind][0], fields.weight_decay * factors[kind][1]
    assert ours == pytest.approx((lr * summed, weight_decay / summed), rel=1e-12), kind


def changed(before, after):
  """Names and values of the fields of a config that another one has not."""
  before, after = dict(stored.leaves(before)), dict(stored.leaves(after))
  assert before.keys() == after.keys()
  return {field: after[field] for field in after if before[field] != after[field]}


def test_cifar100_has_the_recipe_of_airbench96():
  found = changed(AIRBENCH.get_config("96"), get_config("cifar100"))
  assert found.pop("data.mean") == pytest.approx([255 * x for x in (0.5071, 0.4867, 0.4408)])
  assert found.pop("data.std") == pytest.approx([255 * x for x in (0.2675, 0.2565, 0.2761)])
  assert found == {
    "name": "cifar100",
    "data.name": "cifar100",
    "data.classes": 100,
    "target": 0.75,
  }


# bag_of_tricks.ipynb: epochs, the highest rate, and what each rung changes beside these.
RUNGS = {
  "baseline": (24, 0.4, {"augment.crop_padding": 4, "augment.flip": "random", "augment.cutout": 8}),
  "device_data": (24, 0.4, {}),
  "early_pooling": (25, 0.4, {"model.pool_position": "before_norm"}),
  "label_smoothing": (23, 0.4, {"label_smoothing": 0.2}),
  "celu": (20, 0.4, {"model.activation": "celu"}),
  "ghost_norm": (18, 0.6, {"model.ghost_splits": 16}),
  "frozen_scale": (
    17,
    0.6,
    {"model.train_norm_scale": False, "model.celu_alpha": 0.3, "model.head_scale": 1 / 16}
    | {"optimizer.bias_rate_factor": 64.0, "optimizer.bias_decay_factor": 1 / 64},
  ),
  "whitening": (15, 0.6, {"model.whiten": True}),
  "high_rate": (14, 1.0, {"augment.cutout": 5}),
  "ema": (13, 1.0, {"average.kind": "ema", "average.every": 5}),
  "flip_tta": (10, 1.0, {"augment.cutout": 0, "eval.mode": "flip"}),
}


@pytest.mark.parametrize("rung", LADDER.RUNGS)
def test_a_rung_is_one_change_from_the_one_before_and_has_the_published_rates(rung):
  assert tuple(RUNGS) == LADDER.RUNGS
  config, place = LADDER.get_config(rung), LADDER.RUNGS.index(rung)
  epochs, peak, published = RUNGS[rung]
  found, rest = dict(stored.leaves(config)), published
  if place:
    found = changed(LADDER.get_config(LADDER.RUNGS[place - 1]), config)
    rest = {field for field in found if not field.startswith(("name", "epochs", "schedule."))}
  assert {field: found[field] for field in rest} == published

  plan = make_plan(config)
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
