"""SGD, LARS and Muon against PyTorch and the formulas written out in NumPy, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from tolerances import EQUAL, assert_equal
from toy import load_recipe

from jaxspeed.config import fields as fields_lib
from jaxspeed.errors import UserError
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim import lars as lars_lib
from jaxspeed.optim.lars import norms_one_by_one, norms_together
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.muon import frobenius_norms, newton_schulz, stack_matrices, unstack_matrices
from jaxspeed.planning.make import make_plan

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

STEPS = 10
CONSTANT = [0.02] * STEPS
CHANGING = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.002, 0.03, 0.004]))
# Trained for six steps, then frozen.
WHITEN_BIAS = [0.03 * max(0.0, 1 - step / 6) for step in range(STEPS)]
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def random(shape, seed):
  return np.random.default_rng(seed).standard_normal(shape)


def small_net():
  shapes = {
    "prep": {"conv": {"kernel": (4, 3, 3, 2)}, "norm": {"bias": (4,), "scale": (4,)}},
    "layer1": {"conv": {"kernel": (6, 3, 3, 4)}},
    "layer2": {"conv": {"kernel": (12, 1, 1, 6)}},
    "head": {"kernel": (4, 5), "bias": (5,)},
    "whiten": {"kernel": (6, 3, 3, 2), "bias": (6,)},
  }
  leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda x: isinstance(x, tuple))
  return jax.tree.unflatten(structure, [random(s, seed) for seed, s in enumerate(leaves)])


def gradients_of_step(step):
  leaves, structure = jax.tree.flatten(small_net())
  noise = [random(leaf.shape, 100 * (step + 1) + i) for i, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, noise)


def make_config(whitening_bias_decay=1.0, precision="float64", **changes):
  config = fields_lib.base()
  config.precision = precision
  config.optimizer.update(changes)
  config.whitening.update(bias_epochs=1.0, bias_decay=whitening_bias_decay)
  return config


def extra_arguments(rates, renormalize=None, momenta=None):
  """One dict a step, of what the plan's table gives."""
  columns = {"learning_rate": rates, "whiten_bias_rate": WHITEN_BIAS}
  columns["renormalize"] = [1.0] * len(rates) if renormalize is None else renormalize
  if momenta is not None:
    columns["momentum"] = momenta
  rows = zip(*columns.values(), strict=False)
  return [dict(zip(columns, map(jnp.float64, row), strict=True)) for row in rows]


def first_update(config, params, gradients, **extra):
  """What a first step adds to the parameters."""
  optimizer = make_optimizer(config, groups_by_name)

  @jax.jit
  def update(gradients, params, extra):
    return optimizer.update(gradients, optimizer.init(params), params, **extra)[0]

  return update(gradients, params, jax.tree.map(jnp.float64, extra))


def trained(config, rates, renormalize=None, momenta=None):
  """Parameters after a step at each of the rates, and the optimizer's state."""
  optimizer = make_optimizer(config, groups_by_name)
  params = jax.tree.map(jnp.asarray, small_net())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, extra):
    updates, state = optimizer.update(gradients, state, params, **extra)
    return optax.apply_updates(params, updates), state

  for number, extra in enumerate(extra_arguments(rates, renormalize, momenta)):
    params, state = step(params, state, gradients_of_step(number), extra)
  return params, state


def named_leaves(tree):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def rate_and_decay(name, config, step, rate):
  """Those of a parameter at a step."""
  fields, decay = config.optimizer, config.optimizer.weight_decay
  if "whiten" in name:
    return WHITEN_BIAS[step], decay * config.whitening.bias_decay
  if "head" in name:
    return rate * fields.head_rate, decay * fields.head_decay
  if "bias" in name or ("scale" in name and fields.name == "muon"):
    return rate * fields.bias_rate, decay * fields.bias_decay
  return rate, decay * fields.scale_decay if "scale" in name else decay


def trained_names():
  return [name for name in named_leaves(small_net()) if name != "['whiten']['kernel']"]


def numpy_trained(config, rates):
  """In float64, from the formulas of PyTorch's SGD and of davidcpage/cifar10-fast."""
  fields = config.optimizer
  weights = named_leaves(small_net())
  velocity = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  m = fields.momentum
  for number, main_rate in enumerate(rates):
    gradients = named_leaves(gradients_of_step(number))
    for name in trained_names():
      rate, decay = rate_and_decay(name, config, number, main_rate)
      g = gradients[name] + decay * weights[name]
      if fields.rate_in_momentum:
        velocity[name] = m * velocity[name] - rate * g
        step = m * velocity[name] - rate * g if fields.nesterov else velocity[name]
        # Frozen is frozen: momentum that is left does not move the whitening bias.
        weights[name] = weights[name] + (step if rate else 0.0)
      else:
        velocity[name] = m * velocity[name] + g
        step = g + m * velocity[name] if fields.nesterov else velocity[name]
        weights[name] = weights[name] - rate * step
  return weights


def torch_orthogonal(torch, u, coefficients, epsilon=1e-7):
  """The published iteration on one matrix in float64, without stack and padding."""
  a, b, c = coefficients
  x = u / (torch.linalg.norm(u) + epsilon)
  x = x.T if u.shape[0] > u.shape[1] else x
  for _ in range(3):
    gram = x @ x.T
    x = a * x + (b * gram + c * gram @ gram) @ x
  return x.T if u.shape[0] > u.shape[1] else x


def torch_trained(config, rates, renormalize=None, momenta=None):
  """torch.optim.SGD with a group for each parameter, and Muon on OIHW filters, in float64."""
  torch = pytest.importorskip("torch")
  fields = config.optimizer
  net = named_leaves(small_net())
  weights = {
    n: torch.tensor(net[n], dtype=torch.float64, requires_grad=True) for n in trained_names()
  }
  filters = [n for n, w in weights.items() if w.ndim == 4] if fields.name == "muon" else []
  oihw = {n: weights[n].detach().permute(0, 3, 1, 2).clone() for n in filters}
  velocity = {n: torch.zeros_like(w) for n, w in oihw.items()}
  groups = [{"params": [w], "name": n} for n, w in weights.items() if n not in filters]
  sgd = torch.optim.SGD(groups, lr=1.0, momentum=fields.momentum, nesterov=fields.nesterov)
  for number, main_rate in enumerate(rates):
    gradients = {
      name: torch.tensor(leaf, dtype=torch.float64)
      for name, leaf in named_leaves(gradients_of_step(number)).items()
    }
    for group in sgd.param_groups:
      group["momentum"] = fields.momentum if momenta is None else momenta[number]
      group["lr"], group["weight_decay"] = rate_and_decay(group["name"], config, number, main_rate)
      group["params"][0].grad = gradients[group["name"]]
    sgd.step()
    for name, w in oihw.items():
      g = gradients[name].permute(0, 3, 1, 2)
      velocity[name] = fields.muon_momentum * velocity[name] + g
      u = g + fields.muon_momentum * velocity[name] if fields.nesterov else velocity[name]
      if renormalize is None or renormalize[number]:
        w *= w.shape[0] ** 0.5 / torch.linalg.norm(w)
      matrix = u.reshape(u.shape[0], -1)
      iteration = (fields.muon_coefficients, fields.muon_epsilon)
      w -= main_rate * torch_orthogonal(torch, matrix, *iteration).reshape(w.shape)
      w *= 1 - main_rate * fields.muon_decay
  result = {name: weight.detach().numpy() for name, weight in weights.items()}
  return result | {name: w.permute(0, 2, 3, 1).numpy() for name, w in oihw.items()}


def assert_same(params, expected):
  actual = named_leaves(params)
  names = trained_names()
  assert_equal([actual[name] for name in names], [expected[name] for name in names])


VARIANTS = [
  dict(momentum=0.9, nesterov=True, weight_decay=0.05),
  dict(momentum=0.9, nesterov=False, weight_decay=0.05),
  dict(momentum=0.9, nesterov=True, weight_decay=0.0),
  dict(momentum=0.0, nesterov=False, weight_decay=0.05),
]
# Rates apart, decays such that a step at the peak takes the same share from all weights: airbench.
APART = dict(
  momentum=0.85,
  weight_decay=0.05,
  bias_rate=64.0,
  bias_decay=1 / 64,
  head_rate=2.8,
  head_decay=1 / 2.8,
  scale_decay=0.2,
  whitening_bias_decay=0.3,
)


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("rates", [CONSTANT, CHANGING], ids=["constant", "changing"])
def test_the_rate_outside_the_momentum_is_torchs_sgd(changes, rates):
  config = make_config(**changes)
  assert_same(trained(config, rates)[0], torch_trained(config, rates))


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_both_orders_of_rate_and_momentum_are_the_formulas(changes, rate_in_momentum):
  config = make_config(rate_in_momentum=rate_in_momentum, **changes)
  assert_same(trained(config, CHANGING)[0], numpy_trained(config, CHANGING))


@pytest.mark.parametrize(
  "rates, least, most", [(CONSTANT, 0, EQUAL), (CHANGING, 1e-2, 1)], ids=["constant", "changing"]
)
def test_the_two_orders_differ_only_when_the_rate_changes(rates, least, most):
  outside, inside = (
    trained(make_config(rate_in_momentum=r), rates)[0]["head"]["kernel"] for r in (False, True)
  )
  assert least <= float(jnp.abs(outside - inside).max()) <= most


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_biases_head_and_whitening_bias_have_rates_and_decays_of_their_own(rate_in_momentum):
  config = make_config(rate_in_momentum=rate_in_momentum, **APART)
  rates = [rate / 64 for rate in CHANGING]
  params, _ = trained(config, rates)
  assert_same(params, numpy_trained(config, rates))
  if not rate_in_momentum:
    assert_same(params, torch_trained(config, rates))


MOMENTA = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.96, 0.90, 0.95]))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_that_changes_is_torchs(nesterov):
  # The plan's column stands for the segments; what they say is the plan's business.
  config = make_config(**(APART | dict(nesterov=nesterov, momentum_segments=((0, 1, 0.9, 0.9),))))
  rates = [rate / 64 for rate in CHANGING]
  params, state = trained(config, rates, momenta=MOMENTA)
  assert_same(params, torch_trained(config, rates, momenta=MOMENTA))
  constant, constant_state = trained(make_config(**(APART | dict(nesterov=nesterov))), rates)
  assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, constant_state)
  assert not np.allclose(params["head"]["kernel"], constant["head"]["kernel"], rtol=1e-3)


def test_segments_of_one_momentum_are_that_momentum():
  changes = dict(momentum=0.9, nesterov=True, weight_decay=0.05, rate_in_momentum=True)
  segments = make_config(momentum_segments=((0, 1, 0.9, 0.9),), **changes)
  params, _ = trained(segments, CHANGING, momenta=[0.9] * STEPS)
  expected = named_leaves(trained(make_config(**changes), CHANGING)[0])
  assert_same(params, expected)


@pytest.mark.parametrize("name", ["sgd", "lars", "muon"])
def test_an_optimizer_takes_what_the_plan_has_for_it(name):
  config = make_config(name=name, momentum_segments=((0, 1, 0.8, 0.9), (1, 2, 0.9, 0.6)))
  config.update(epochs=2.0, batch_size=2)
  config.data.update(train_images=10)
  table = make_plan(config).table_in(np.float64)
  # Five steps an epoch; the last of a piece has its end.
  expected = [0.82, 0.84, 0.86, 0.88, 0.9, 0.84, 0.78, 0.72, 0.66, 0.6]
  np.testing.assert_allclose(table["momentum"], expected, rtol=EQUAL)
  row = {column: values[3] for column, values in table.items()}
  first_update(config, small_net(), gradients_of_step(0), **row)
  with pytest.raises(TypeError, match="momentum"):
    del row["momentum"]
    first_update(config, small_net(), gradients_of_step(0), **row)
  config.optimizer.momentum_segments = ()
  assert "momentum" not in make_plan(config).table


def test_the_first_step_of_each_kind_is_its_factor_times_a_weights():
  # Without decay: -rate * (1 + momentum) * gradient.
  params, _ = trained(make_config(bias_rate=64.0, head_rate=3.0), [0.001])
  old, gradient = named_leaves(small_net()), named_leaves(gradients_of_step(0))
  factors = {
    "['prep']['conv']['kernel']": 0.001,
    "['prep']['norm']['scale']": 0.001,
    "['prep']['norm']['bias']": 0.064,
    "['head']['bias']": 0.003,
    "['head']['kernel']": 0.003,
    "['whiten']['bias']": 0.03,
  }
  for name, rate in factors.items():
    expected = old[name] - rate * 1.9 * gradient[name]
    assert_equal(named_leaves(params)[name], expected)


def test_the_kinds_of_parameters():
  assert groups_by_name(small_net()) == {
    "prep": {"conv": {"kernel": "kernel"}, "norm": {"bias": "bias", "scale": "scale"}},
    "layer1": {"conv": {"kernel": "kernel"}},
    "layer2": {"conv": {"kernel": "kernel"}},
    "head": {"kernel": "head", "bias": "head_bias"},
    "whiten": {"kernel": "frozen", "bias": "whiten_bias"},
  }


def bits(array):
  array = np.asarray(array)
  return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("name, rate_in_momentum", [("sgd", True), ("muon", False)])
def test_whitening_filters_never_change(name, rate_in_momentum):
  config = make_config(name=name, weight_decay=0.5, rate_in_momentum=rate_in_momentum)
  params, _ = trained(config, CHANGING)
  np.testing.assert_array_equal(
    bits(params["whiten"]["kernel"]), bits(small_net()["whiten"]["kernel"])
  )
  assert not np.array_equal(params["prep"]["conv"]["kernel"], small_net()["prep"]["conv"]["kernel"])


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_a_whitening_bias_at_rate_0_keeps_its_bits(rate_in_momentum):
  config = make_config(
    momentum=0.9, weight_decay=0.5, bias_decay=3.0, rate_in_momentum=rate_in_momentum
  )
  optimizer = make_optimizer(config, groups_by_name)
  bias = jnp.array([0.0, -0.0, 1.0, -1e-30, 5e-324, 2.5])
  params = {"whiten": {"bias": bias}, "head": {"kernel": jnp.ones((2, 3))}}
  gradients = jax.tree.map(jnp.ones_like, params)

  @jax.jit
  def step(params, state, gradients, rate):
    updates, state = optimizer.update(
      gradients, state, params, learning_rate=jnp.float64(0.1), whiten_bias_rate=rate
    )
    return optax.apply_updates(params, updates), state

  # A step that fills the momentum, then zeros: the bias rests, also while its gradient is infinite.
  moved, state = step(params, optimizer.init(params), gradients, jnp.float64(0.5))
  assert not np.any(np.asarray(moved["whiten"]["bias"]) == np.asarray(bias))
  params = moved | {"whiten": {"bias": bias}}
  gradients["whiten"]["bias"] = jnp.array([1.0, -1.0, 0.0, jnp.inf, jnp.nan, -0.0])
  for _ in range(3):
    params, state = step(params, state, gradients, jnp.float64(0.0))
    # XLA on a CPU takes numbers below 1e-308 for 0, in any sum.
    kept = np.array([0, 1, 2, 3, 5])
    np.testing.assert_array_equal(bits(params["whiten"]["bias"])[kept], bits(bias)[kept])


def test_a_whitening_bias_that_no_epoch_trains_needs_no_rate():
  config = make_config()
  config.whitening.bias_epochs = 0.0
  optimizer = make_optimizer(config, groups_by_name)
  params = {"whiten": {"bias": jnp.ones(3)}}
  updates, _ = optimizer.update(params, optimizer.init(params), params, learning_rate=0.1)
  np.testing.assert_array_equal(updates["whiten"]["bias"], np.zeros(3))


def test_an_unknown_name_is_the_users_mistake():
  with pytest.raises(UserError, match="config.optimizer.name='adam'.*sgd, muon, lars"):
    make_optimizer(make_config(name="adam"), groups_by_name)


def test_the_state_is_the_momentum_of_what_is_trained():
  _, state = trained(make_config(), CONSTANT)
  expected = [named_leaves(small_net())[name].shape for name in trained_names()]
  assert sorted(leaf.shape for leaf in jax.tree.leaves(state)) == sorted(expected)
  assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {jnp.dtype("float64")}


def test_without_momentum_there_is_no_state():
  assert jax.tree.leaves(trained(make_config(momentum=0.0), [0.1])[1]) == []


@pytest.mark.parametrize("name", ["sgd", "muon", "lars"])
def test_a_change_of_rate_compiles_nothing(name):
  optimizer = make_optimizer(make_config(name=name), groups_by_name)
  params = jax.tree.map(jnp.asarray, small_net())
  traces = []

  @jax.jit
  def step(state, extra):
    traces.append(extra)
    return optimizer.update(params, state, params, **extra)[1]

  state = optimizer.init(params)
  for extra in extra_arguments([0.1, 0.2, 0.3], [1.0, 0.0, 1.0]):
    state = step(state, extra)
  assert len(traces) == 1


LARS_STEPS = 20
# Of large batches: warm-up, then a fall.
LARS_RATES = list(np.interp(np.arange(LARS_STEPS), [0, 6, 19], [0.0, 20.0, 0.1]))


def lars_config(**changes):
  config = make_config(
    **(dict(name="lars", momentum=0.9, nesterov=False, weight_decay=0.05, lars_eta=0.01) | changes)
  )
  config.whitening.bias_epochs = 0.0
  return config


def lars_net():
  net = small_net()
  del net["whiten"]
  net["layer2"]["conv"]["kernel"] *= 0  # no norm, in the first step
  return net


def lars_gradients(step):
  gradients = gradients_of_step(step)
  del gradients["whiten"]
  if step == 3:
    gradients["layer1"]["conv"]["kernel"] *= 0
  return gradients


def lars_trained(optimizer, momenta=None):
  """Parameters after 20 steps."""
  params = jax.tree.map(jnp.asarray, lars_net())
  state = optimizer.init(params)

  @jax.jit
  def step(params, state, gradients, extra):
    updates, state = optimizer.update(gradients, state, params, **extra)
    return optax.apply_updates(params, updates), state

  for number, rate in enumerate(LARS_RATES):
    extra = {"learning_rate": jnp.float64(rate)}
    if momenta is not None:
      extra["momentum"] = jnp.float64(momenta[number])
    params, state = step(params, state, lars_gradients(number), extra)
  return named_leaves(params)


def numpy_lars(config, momenta=None, ratio_decay=None):
  """In float64, from mlcommons/training's lars_optimizer.py."""
  fields = config.optimizer
  decay = fields.weight_decay
  ratio_decay = decay if ratio_decay is None else ratio_decay
  low, high = fields.lars_clip or (-np.inf, np.inf)
  weights = named_leaves(lars_net())
  momentum = {name: np.zeros_like(leaf) for name, leaf in weights.items()}
  for number, rate in enumerate(LARS_RATES):
    m = fields.momentum if momenta is None else momenta[number]
    for name, g in named_leaves(lars_gradients(number)).items():
      w, ratio = weights[name], 1.0
      if name.endswith("['kernel']"):
        w_norm, g_norm = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
        if w_norm > 0 and g_norm > 0:
          ratio = fields.lars_eta * w_norm / (g_norm + ratio_decay * w_norm + fields.lars_epsilon)
          ratio = min(max(ratio, low), high)
        g = g + decay * w
      scaled = rate * ratio * g
      momentum[name] = m * momentum[name] - scaled
      step = m * momentum[name] - scaled if fields.nesterov else momentum[name]
      weights[name] = w + step
  return weights


LARS_VARIANTS = [
  dict(),
  dict(nesterov=True),
  dict(momentum=0.0),
  dict(weight_decay=0.0),
  dict(lars_epsilon=10.0),
  dict(lars_clip=(0.009, 0.011)),
]


def assert_lars(params, expected):
  assert params.keys() == expected.keys()
  assert_equal(params, expected)


@pytest.mark.parametrize("changes", LARS_VARIANTS)
def test_twenty_steps_of_lars_are_the_references(changes):
  config = lars_config(**changes)
  params = lars_trained(make_optimizer(config, groups_by_name))
  assert_lars(params, numpy_lars(config))
  plain = lars_trained(make_optimizer(lars_config(), groups_by_name))
  kernel = "['prep']['conv']['kernel']"
  assert np.allclose(params[kernel], plain[kernel], rtol=1e-3) is (changes == {})


def test_the_pass_over_all_norms_is_lars_too(monkeypatch):
  # What a GPU computes; a CPU takes the arrays one by one.
  monkeypatch.setattr(lars_lib, "norms", norms_together)
  config = lars_config()
  assert_lars(lars_trained(make_optimizer(config, groups_by_name)), numpy_lars(config))


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_with_a_momentum_that_changes(nesterov):
  momenta = np.linspace(0.98, 0.9, LARS_STEPS)
  config = lars_config(nesterov=nesterov, momentum_segments=((0, 1, 0.98, 0.9),))
  params = lars_trained(make_optimizer(config, groups_by_name), momenta)
  assert_lars(params, numpy_lars(config, momenta))


@pytest.mark.parametrize(
  "schedule", [dict(peak=13.0), dict(segments=((0, 1, 0.5, 13.0), (1, 2, 13.0, 0.5)))]
)
def test_a_decay_that_follows_the_rate_stands_in_the_ratio_as_at_the_peak(schedule):
  config = lars_config(decay_follows_rate=True)
  config.schedule.update(schedule)
  params = lars_trained(make_optimizer(config, groups_by_name))
  assert_lars(params, numpy_lars(config, ratio_decay=13.0 * 0.05))


def lars_step(config, weight, gradient, rate=1.0):
  params = {"head": {"kernel": jnp.array([weight])}}
  gradients = {"head": {"kernel": jnp.array([gradient])}}
  updates = first_update(config, params, gradients, learning_rate=rate)
  return np.asarray(updates["head"]["kernel"])[0]


def test_a_step_of_lars_by_hand():
  # |w| = 5, |g| = 1, ratio 0.01 * 5 / (1 + 0.1 * 5) = 1 / 30, g + 0.1 w = (0.9, 1.2).
  config = lars_config(weight_decay=0.1)
  step = lars_step(config, [3.0, 4.0], [0.6, 0.8], rate=2.0)
  np.testing.assert_allclose(step, [-2 / 30 * 0.9, -2 / 30 * 1.2], rtol=EQUAL)
  # Where a norm is 0 the ratio is 1.
  np.testing.assert_allclose(lars_step(config, [0.0, 0.0], [0.6, 0.8]), [-0.6, -0.8], rtol=EQUAL)
  np.testing.assert_allclose(lars_step(config, [3.0, 4.0], [0.0, 0.0]), [-0.3, -0.4], rtol=EQUAL)
  config.optimizer.lars_clip = (0.05, 1.0)
  step = lars_step(config, [3.0, 4.0], [0.6, 0.8], rate=2.0)
  np.testing.assert_allclose(step, [-2 * 0.05 * 0.9, -2 * 0.05 * 1.2], rtol=EQUAL)


def test_lars_leaves_biases_and_scales_to_momentum():
  # Twenty steps of it, without decay and ratio.
  params = lars_trained(make_optimizer(lars_config(weight_decay=0.5), groups_by_name))
  excluded = {name for name in params if not name.endswith("['kernel']")}
  assert excluded == {
    "['prep']['norm']['bias']",
    "['prep']['norm']['scale']",
    "['head']['bias']",
  }
  for name in excluded:
    weight, velocity = named_leaves(lars_net())[name], 0.0
    for number, rate in enumerate(LARS_RATES):
      velocity = 0.9 * velocity - rate * named_leaves(lars_gradients(number))[name]
      weight = weight + velocity
    assert_equal(params[name], weight)


def optax_lars(config):
  """optax's, with the rate as an argument and the masks that the reference has."""
  kernels = jax.tree_util.tree_map_with_path(lambda p, _: p[-1].key == "kernel", lars_net())
  fields = config.optimizer

  def make(learning_rate):
    return optax.lars(
      learning_rate,
      fields.weight_decay,
      kernels,
      trust_coefficient=fields.lars_eta,
      trust_ratio_mask=kernels,
      momentum=fields.momentum,
      nesterov=fields.nesterov,
    )

  def update(updates, state, params, *, learning_rate):
    return make(learning_rate).update(updates, state, params)

  return optax.GradientTransformationExtraArgs(make(0.1).init, update)


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_decay_optax_has_the_same_lars(nesterov):
  config = lars_config(weight_decay=0.0, nesterov=nesterov)
  assert_lars(lars_trained(optax_lars(config)), numpy_lars(config))


def test_with_decay_optax_divides_by_the_norm_of_the_sum():
  config = lars_config()
  ours, theirs = (
    lars_trained(o)["['head']['kernel']"]
    for o in (make_optimizer(config, groups_by_name), optax_lars(config))
  )
  assert not np.allclose(ours, theirs, rtol=1e-3)
  # g at right angles to w: |g + 0.1 w| = sqrt(1 + 0.25) against 1 + 0.5.
  weight, gradient = jnp.array([3.0, 4.0]), jnp.array([0.8, -0.6])
  config = lars_config(weight_decay=0.1)
  lars = optax.lars(1.0, 0.1, trust_coefficient=0.01, momentum=0.9)
  theirs, _ = lars.update(gradient, lars.init(weight), weight)
  ours = lars_step(config, weight, gradient)
  np.testing.assert_allclose(theirs / ours, 1.5 / 1.25**0.5, rtol=EQUAL)


def test_norms_of_any_sizes_in_one_pass():
  # Around whole rows of 4,096 numbers, more arrays than one kernel takes, and zeros.
  sizes = [1, 4095, 4096, 4097, 7 * 7 * 3 * 64, *[5] * 75]
  leaves = [random((size,), seed) for seed, size in enumerate(sizes)]
  leaves.append(np.zeros((2, 3)))
  expected = [np.sqrt((leaf**2).sum()) for leaf in leaves]
  for norms in (lars_lib.norms, norms_together, norms_one_by_one):
    np.testing.assert_allclose(norms(leaves), expected, rtol=EQUAL)


MUONS = [
  dict(muon_momentum=0.6),
  dict(muon_momentum=0.6, nesterov=False),
  dict(muon_momentum=0.0, nesterov=False),
  dict(muon_momentum=0.655, muon_decay=0.5, muon_coefficients=(3.4576, -4.7391, 2.0843)),
]


@pytest.mark.parametrize("changes", MUONS)
def test_muon_is_torchs_on_oihw_filters_and_sgd_the_rest(changes):
  config = make_config(name="muon", **(APART | changes))
  # Rates of airbench's size; the rest learns at bias_rate = 64 times these.
  rates = [10 * rate for rate in CHANGING]
  config.optimizer.bias_rate = 0.2
  renormalize = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
  params, _ = trained(config, rates, renormalize)
  assert_same(params, torch_trained(config, rates, renormalize))


@pytest.mark.parametrize("precision, tolerance", [("bfloat16", 0.06), ("float16", 0.008)])
def test_muon_in_half_precision_is_near_torchs(precision, tolerance):
  # An update has singular values around 1; three products in a row, each rounded to 2 ** -8 or
  # 2 ** -11. Gradients of 1e-6, whose squares float16 cannot hold.
  config = make_config(name="muon", precision=precision, momentum=0.85)
  filters = {n: {"kernel": random((24, 3, 3, size), size)} for n, size in (("a", 8), ("b", 24))}
  gradients = jax.tree.map(lambda x: 1e-6 * x, filters)
  params = jax.tree.map(np.zeros_like, filters)
  updates = first_update(config, params, gradients, learning_rate=1, renormalize=0)
  torch = pytest.importorskip("torch")
  for name, layer in filters.items():
    exact = torch_orthogonal(
      torch, torch.tensor(layer["kernel"].reshape(24, -1)).double(), COEFFICIENTS
    )
    error = np.linalg.norm(updates[name]["kernel"].reshape(24, -1) + exact.numpy())
    assert error < tolerance * np.linalg.norm(exact)


def test_the_first_step_of_muon_is_orthogonal_and_the_weight_has_its_norm():
  config = make_config(name="muon")
  params, gradients = {"kernel": random((8, 3, 3, 4), 0)}, {"kernel": random((8, 3, 3, 4), 1)}
  updates = first_update(config, params, gradients, learning_rate=0, renormalize=1)
  np.testing.assert_allclose(
    np.linalg.norm(params["kernel"] + updates["kernel"]), 8**0.5, rtol=EQUAL
  )
  updates = first_update(config, params, gradients, learning_rate=1, renormalize=0)
  left, values, right = np.linalg.svd(gradients["kernel"].reshape(8, 36), full_matrices=False)
  rotated = left.T @ -updates["kernel"].reshape(8, 36) @ right.T
  # The polynomial maps singular values one by one and keeps the vectors.
  expected = values / np.linalg.norm(values)
  for _ in range(3):
    expected = 3.4445 * expected - 4.775 * expected**3 + 2.0315 * expected**5
  np.testing.assert_allclose(rotated, np.diag(expected), rtol=0, atol=EQUAL)
  assert 0.6 < expected.min() and expected.max() < 1.3


@pytest.mark.parametrize(
  "file, variant, epsilon", [("cifar10_airbench.py", "94_muon", 1e-7), ("cifar10.py", None, 1e-5)]
)
def test_muons_epsilon_is_as_large_beside_a_summed_gradient_as_in_the_original(
  file, variant, epsilon
):
  torch = pytest.importorskip("torch")
  config = load_recipe(file, variant)
  config.precision = "float64"
  summed = torch.tensor(random((24, 18), 0)).double()
  # As long as the epsilon once Nesterov's momentum has been added: the update is halved at first.
  summed *= epsilon / torch.linalg.norm(summed) / (1 + config.optimizer.muon_momentum)
  mean = (summed / config.batch_size).numpy().reshape(24, 3, 3, 2)
  zeros = {"kernel": np.zeros_like(mean)}
  updates = first_update(config, zeros, {"kernel": mean}, learning_rate=1, renormalize=0)
  expected = torch_orthogonal(
    torch,
    summed * (1 + config.optimizer.muon_momentum),
    config.optimizer.muon_coefficients,
    epsilon,
  )
  expected = expected.numpy() * (1 - config.optimizer.muon_decay)
  assert_equal(updates["kernel"].reshape(24, 18), -expected)


def test_a_gradient_of_zeros_moves_nothing():
  params, zeros = {"kernel": random((4, 3, 3, 2), 0)}, {"kernel": np.zeros((4, 3, 3, 2))}
  updates = first_update(make_config(name="muon"), params, zeros, learning_rate=1, renormalize=0)
  np.testing.assert_array_equal(updates["kernel"], zeros["kernel"])


# Lower than wide, square, and higher than wide.
SHAPES = [(4, 3, 3, 2), (6, 3, 3, 4), (9, 3, 3, 1), (40, 1, 1, 7), (3, 5)]


def test_a_stack_gives_back_what_it_holds_and_the_rest_is_zero():
  leaves = [jnp.asarray(random(shape, i)) for i, shape in enumerate(SHAPES)]
  stack = stack_matrices(leaves)
  assert stack.shape == (5, 9, 40)
  assert int((stack != 0).sum()) == sum(leaf.size for leaf in leaves)
  for old, new in zip(leaves, unstack_matrices(stack, leaves), strict=True):
    np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_padding_changes_nothing_and_stays_zero(dtype):
  leaves = [random(shape, i) for i, shape in enumerate(SHAPES)]
  leaves = [leaf / np.linalg.norm(leaf) for leaf in leaves]

  @jax.jit
  def iterate(leaves):
    stacks = [stack_matrices(part).astype(dtype) for part in (leaves, *([x] for x in leaves))]
    return [newton_schulz(stack, coefficients=COEFFICIENTS) for stack in stacks]

  stack, *alone_stacks = jax.tree.map(np.asarray, iterate(leaves))
  assert stack.dtype == dtype
  for padded, (alone,) in zip(stack, alone_stacks, strict=True):
    high, wide = alone.shape
    # The same products and zeros, summed in another order.
    np.testing.assert_allclose(
      np.asarray(padded[:high, :wide], np.float32),
      np.asarray(alone, np.float32),
      rtol=0,
      atol=8 * float(jnp.finfo(dtype).eps),
    )
    assert not padded[high:].any() and not padded[:, wide:].any()


def test_norms_are_those_of_each_matrix():
  x, y = random((3, 4, 5), 0), random((3, 4, 5), 1)
  norms = frobenius_norms(jnp.asarray(x), jnp.asarray(y))
  for norm, stack in zip(norms, (x, y), strict=True):
    np.testing.assert_allclose(norm, np.sqrt((stack**2).sum((1, 2))), rtol=EQUAL)


@pytest.mark.parametrize("name", ["sgd", "muon", "lars"])
def test_ten_steps_in_one_donated_program_are_ten_programs(name):
  config = make_config(name=name, **APART)
  rates = [rate / 10 for rate in CHANGING]
  optimizer = make_optimizer(config, groups_by_name)
  params = jax.tree.map(jnp.asarray, small_net())

  @functools.partial(jax.jit, donate_argnums=0)
  def run(carry, gradients, table):
    def body(carry, inputs):
      params, state = carry
      gradients, extra = inputs
      updates, state = optimizer.update(gradients, state, params, **extra)
      return (optax.apply_updates(params, updates), state), None

    return lax.scan(body, carry, (gradients, table))[0]

  gradients = jax.tree.map(lambda *x: jnp.stack(x), *map(gradients_of_step, range(STEPS)))
  table = jax.tree.map(lambda *x: jnp.stack(x), *extra_arguments(rates))
  after, state = run((params, optimizer.init(params)), gradients, table)
  expected, expected_state = trained(config, rates)
  assert_equal((after, state), (expected, expected_state))
