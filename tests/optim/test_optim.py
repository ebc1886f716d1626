"""SGD, AdamW and Muon against PyTorch, LARS against its formula in NumPy, in float64.

SGD with the rate in the momentum is in steps/test_originals.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_net as net
from tolerances import assert_equal
from toy import load_recipe

from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim import lars as lars_lib
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.muon import stacked_together

pytestmark = pytest.mark.equivalence

# As airbench, whose decays take the same share from all weights in a step at the peak.
APART = dict(momentum=0.85, bias_rate_factor=8.0, bias_decay_factor=1 / 8, scale_decay_factor=0.2)
APART |= dict(head_rate_factor=2.8, head_decay_factor=1 / 2.8)
OF_APART = {
  **dict.fromkeys(("scale", "embedding"), (1, 0.05 * 0.2)),
  **dict.fromkeys(("head", "head_bias"), (2.8, 0.05 / 2.8)),
  "bias": (8, 0.05 / 8),
}
MUON = APART | dict(name="muon")
OF_MUON = OF_APART | dict.fromkeys(("scale", "embedding"), (8, 0.05 / 8))
# Of timm: no decay of vectors.
ADAMW = dict(name="adamw", bias_decay_factor=0.0, scale_decay_factor=0.0, b2=0.98, epsilon=1e-4)
MOMENTA = np.interp(np.arange(net.STEPS), [0, 4, 9], [0.96, 0.90, 0.95])
# The plan's column stands for the segments; what they say is the plan's business.
CHANGING = APART | dict(momentum_segments=((0, 1, 0.9, 0.9),))
# Fields of the optimizer; the factor on the rate and the decay by label, where not (1, 0.05).
CASES = {
  "sgd": (dict(), {}),
  "without nesterov": (dict(nesterov=False), {}),
  "without decay": (dict(weight_decay=0.0), {}),
  "without momentum": (dict(momentum=0.0, nesterov=False), {}),
  "groups": (APART, OF_APART),
  "a momentum that changes": (CHANGING, OF_APART),
  "and without nesterov": (CHANGING | dict(nesterov=False), OF_APART),
  "adamw": (ADAMW, dict.fromkeys(("scale", "embedding", "bias", "head_bias"), (1, 0))),
  "adamw with groups": (
    dict(name="adamw", head_rate_factor=10.0, head_decay_factor=0.5)
    | dict(bias_rate_factor=3.0, bias_decay_factor=0.25),
    {"head_bias": (10, 0.05 * 0.25), "head": (10, 0.05 * 0.5), "bias": (3, 0.05 * 0.25)},
  ),
  "muon": (MUON, OF_MUON),
  "muon without nesterov": (MUON | dict(nesterov=False), OF_MUON),
  "muon without momentum": (MUON | dict(muon_momentum=0.0, nesterov=False), OF_MUON),
  "muon of hiverge": (
    MUON | dict(muon_momentum=0.655, muon_decay=0.5, muon_coefficients=(3.4576, -4.7391, 2.0843)),
    OF_MUON,
  ),
}


@pytest.mark.parametrize(
  "name, platform",
  [(name, "cpu") for name in CASES] + [(name, "gpu") for name in CASES if "muon" in name],
)
def test_an_optimizer_is_torchs(name, platform, monkeypatch):
  changes, groups = CASES[name]
  config = net.make_config(**dict(weight_decay=0.05) | changes)
  if platform == "gpu":
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, default, **_: default(*a))
  config.whitening.bias_decay_factor = 0.3
  decay = config.optimizer.weight_decay
  groups = (
    dict.fromkeys(net.LABELS.values(), (1, decay)) | {"whiten_bias": (1, 0.3 * decay)} | groups
  )
  columns = {"momentum": MOMENTA} if config.optimizer.momentum_segments else {}
  params, state = net.trained(net.made(config), **columns)
  expected = net.torch_trained(config, groups | {"frozen": None}, momenta=columns.get("momentum"))
  net.assert_same(params, expected)
  if config.optimizer.name == "sgd":  # the state is the momentum of what is trained
    kept = [x.shape for x in expected.values()] if config.optimizer.momentum else []
    assert sorted(leaf.shape for leaf in jax.tree.leaves(state)) == sorted(kept)


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_a_whitening_bias_at_rate_0_or_that_no_epoch_trains_keeps_its_bits(rate_in_momentum):
  config = net.make_config(momentum=0.9, weight_decay=0.5, rate_in_momentum=rate_in_momentum)
  # XLA on a CPU takes numbers below 1e-308 for 0, in any sum.
  bias = {"whiten_bias": np.array([0.0, -0.0, 1.0, -1e-30, 2.5, 7.0])}
  bad = {"whiten_bias": np.array([1.0, -1.0, 0.0, np.inf, np.nan, -0.0])}
  optimizer = net.made(config)
  # A step that fills the momentum, then zeros: the bias rests, also where a gradient is infinite.
  _, filled = net.trained(
    optimizer, net.drawn() | bias, learning_rate=[0.1], whiten_bias_rate=[0.5]
  )
  row = dict(learning_rate=jnp.float64(0.1), whiten_bias_rate=jnp.float64(0.0))
  updates, _ = jax.jit(optimizer.update)(
    net.gradients_of(1) | bad, filled, net.drawn() | bias, **row
  )
  assert np.isfinite(updates["kernel"]).all() and np.all(updates["kernel"] != 0)
  kept = np.asarray(bias["whiten_bias"] + updates["whiten_bias"])
  np.testing.assert_array_equal(kept.view(np.uint64), bias["whiten_bias"].view(np.uint64))
  optimizer = net.made(net.make_config(bias_epochs=0.0))
  updates = net.first_update(optimizer, net.drawn(), net.drawn(), learning_rate=0.1)
  assert not np.any(updates["whiten_bias"])


# A linear model has a head alone.
@pytest.mark.parametrize("trains", [set(net.LABELS.values()), {"head"}])
@pytest.mark.parametrize("name", ["sgd", "muon", "lars", "adamw"])
def test_every_label_but_frozen_is_trained_by_every_optimizer(name, trains):
  config = net.make_config(name=name, precision="float32")
  params = {label: np.full((3, 4), 0.5, np.float32) for label in trains}
  optimizer = make_optimizer(config, {label: label for label in trains})
  row = dict.fromkeys(("learning_rate", "renormalize", "whiten_bias_rate"), np.float32(0.1))
  updates, _ = optimizer.update(params, optimizer.init(params), params, **row)
  assert {label for label in trains if np.any(updates[label])} == trains - {"frozen"}


# LARS

# Of large batches: warm-up, then a fall.
LARGE = np.interp(np.arange(20), [0, 6, 19], [0.0, 20.0, 0.1])
LARS_MOMENTA = np.linspace(0.98, 0.9, 20)
LARS = dict(name="lars", momentum=0.9, nesterov=False, weight_decay=0.05, lars_eta=0.01)


def lars_net():
  return net.drawn() | {"kernel 1x1": np.zeros((12, 1, 1, 6))}  # no norm, in the first step


def lars_gradients(step):
  return net.gradients_of(step) | ({"kernel io": np.zeros((6, 30))} if step == 3 else {})


def numpy_lars(config):
  """In float64, from mlcommons/training's lars_optimizer.py."""
  fields = config.optimizer
  decay = fields.weight_decay
  # Fujitsu's decay follows the rate; in the ratio it stands as at the peak.
  ratio_decay = 13.0 * decay if fields.decay_follows_rate else decay
  weights = {n: w for n, w in lars_net().items() if n not in ("frozen", "whiten_bias")}
  momentum = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  for number, rate in enumerate(LARGE):
    m = LARS_MOMENTA[number] if fields.momentum_segments else fields.momentum
    for name, w in weights.items():
      g, ratio = lars_gradients(number)[name], 1.0
      if net.LABELS[name] in ("kernel", "head"):
        w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        if w_norm > 0 and g_norm > 0:
          ratio = fields.lars_eta * w_norm / (g_norm + ratio_decay * w_norm + fields.lars_epsilon)
        g = g + decay * w
      scaled = rate * ratio * g
      momentum[name] = m * momentum[name] - scaled
      weights[name] = w + (m * momentum[name] - scaled if fields.nesterov else momentum[name])
  return weights


@pytest.mark.parametrize(
  "changes, schedule",
  [
    (dict(), {}),
    (dict(nesterov=True), {}),
    (dict(momentum=0.0), {}),
    (dict(weight_decay=0.0), {}),
    (dict(lars_epsilon=10.0), {}),
    (dict(momentum_segments=((0, 1, 0.98, 0.9),)), {}),
    (dict(momentum_segments=((0, 1, 0.98, 0.9),), nesterov=True), {}),
    (dict(decay_follows_rate=True), dict(peak=13.0)),
    (dict(decay_follows_rate=True), dict(segments=((0, 1, 0.5, 13.0), (1, 2, 13.0, 0.5)))),
  ],
)
def test_twenty_steps_of_lars_are_the_references(changes, schedule):
  config, plain = (net.make_config(bias_epochs=0.0, **LARS | each) for each in (changes, {}))
  config.schedule.update(schedule)
  columns = dict.fromkeys(("whiten_bias_rate", "renormalize"), np.zeros(20))
  if config.optimizer.momentum_segments:
    columns["momentum"] = LARS_MOMENTA
  found, _ = net.trained(
    net.made(config), lars_net(), lars_gradients, learning_rate=LARGE, **columns
  )
  expected = numpy_lars(config)
  net.assert_same(found, expected)
  without = numpy_lars(plain)["kernel"]
  assert np.allclose(expected["kernel"], without, rtol=1e-3) is (changes == {})


def test_norms_of_any_sizes_in_one_pass():
  # Around whole rows of 4,096 numbers, more arrays than one kernel takes, and zeros.
  sizes = [1, 4095, 4096, 4097, 7 * 7 * 3 * 64, *[5] * 75]
  leaves = [net.random((size,), seed) for seed, size in enumerate(sizes)]
  leaves.append(np.zeros((2, 3)))
  expected = [np.sqrt((leaf**2).sum()) for leaf in leaves]
  # What a GPU computes; a CPU takes the arrays one by one.
  for norms in (lars_lib.norms_together, lars_lib.norms_one_by_one):
    assert_equal(np.asarray(norms(leaves)), np.array(expected))


# Muon's precision, its epsilon and its stacks


def update_of(config, params, gradients, **row):
  return net.first_update(make_optimizer(config, groups_by_name(params)), params, gradients, **row)


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 0.06), ("float16", 0.008)])
def test_muon_in_half_precision_is_near_torchs(precision, tolerance):
  torch = pytest.importorskip("torch")
  from torch_nets import orthogonal

  # An update has singular values around 1; three products in a row, each rounded to 2 ** -8 or
  # 2 ** -11. Gradients of 1e-6, whose squares float16 cannot hold.
  config = net.make_config(name="muon", precision=precision)
  filters = {n: {"kernel": net.random((24, 3, 3, size), size)} for n, size in (("a", 8), ("b", 24))}
  gradients = jax.tree.map(lambda x: 1e-6 * x, filters)
  params = jax.tree.map(np.zeros_like, filters)
  updates = update_of(config, params, gradients, learning_rate=1, renormalize=0)
  for name, layer in filters.items():
    exact = orthogonal(
      torch.tensor(layer["kernel"].reshape(24, -1)).double(), config.optimizer.muon_coefficients
    )
    error = np.linalg.norm(updates[name]["kernel"].reshape(24, -1) + exact.numpy())
    assert error < tolerance * np.linalg.norm(exact)


@pytest.mark.parametrize(
  "file, variant, epsilon", [("cifar10_airbench.py", "94_muon", 1e-7), ("cifar10.py", None, 1e-5)]
)
def test_muons_epsilon_is_as_large_beside_a_summed_gradient_as_in_the_original(
  file, variant, epsilon
):
  torch = pytest.importorskip("torch")
  from torch_nets import orthogonal

  config = load_recipe(file, variant)
  config.precision = "float64"
  summed = torch.tensor(net.random((24, 18), 0)).double()
  # As long as the epsilon once Nesterov's momentum has been added: the update is halved at first.
  summed *= epsilon / torch.linalg.norm(summed) / (1 + config.optimizer.muon_momentum)
  mean = (summed / config.batch_size).numpy().reshape(24, 3, 3, 2)
  # And of zeros, weights and gradients, there comes no NaN.
  gradients = {"kernel": mean, "zero": {"kernel": np.zeros((4, 3, 3, 2))}}
  zeros = jax.tree.map(np.zeros_like, gradients)
  updates = update_of(config, zeros, gradients, learning_rate=1, renormalize=1)
  expected = orthogonal(
    summed * (1 + config.optimizer.muon_momentum), config.optimizer.muon_coefficients, epsilon
  )
  expected = expected.numpy() * (1 - config.optimizer.muon_decay)
  assert_equal(updates["kernel"].reshape(24, 18), -expected)
  assert not np.any(updates["zero"]["kernel"])


def test_kernels_that_padding_would_double_have_a_stack_a_shape_and_equal_updates():
  config = net.make_config(name="muon")
  shapes = [(4, 3, 3, 2), (4, 1, 1, 128), (4, 3, 3, 2)]
  assert stacked_together([jnp.zeros(shape) for shape in shapes[::2]]) == [[0, 1]]
  assert stacked_together([jnp.zeros(shape) for shape in shapes]) == [[0, 2], [1]]
  params = {f"{i}": {"kernel": net.random(shape, i)} for i, shape in enumerate(shapes)}
  gradients = jax.tree.map(lambda x: 2 * x[::-1], params)
  together = update_of(config, params, gradients, learning_rate=0.1, renormalize=1)
  for name in params:
    parts = ({name: tree[name]} for tree in (params, gradients))
    alone = update_of(config, *parts, learning_rate=0.1, renormalize=1)
    assert_equal(together[name], alone[name])
