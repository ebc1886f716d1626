"""LARS against the reference's formula in NumPy and against Optax, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_net import gradients_of_step, make_config, named_leaves, random, small_net
from tolerances import EQUAL, assert_equal

from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim import lars as lars_lib
from jaxspeed.optim.lars import norms_one_by_one, norms_together
from jaxspeed.optim.make import make_optimizer

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

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


def test_norms_of_any_sizes_in_one_pass():
  # Around whole rows of 4,096 numbers, more arrays than one kernel takes, and zeros.
  sizes = [1, 4095, 4096, 4097, 7 * 7 * 3 * 64, *[5] * 75]
  leaves = [random((size,), seed) for seed, size in enumerate(sizes)]
  leaves.append(np.zeros((2, 3)))
  expected = [np.sqrt((leaf**2).sum()) for leaf in leaves]
  for norms in (lars_lib.norms, norms_together, norms_one_by_one):
    np.testing.assert_allclose(norms(leaves), expected, rtol=EQUAL)
