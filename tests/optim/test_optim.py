"""SGD against PyTorch, in float64; with the rate in the momentum in steps/test_originals.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_net import (
  APART,
  RATES,
  STEPS,
  assert_same,
  first_update,
  gradients_of_step,
  made,
  make_config,
  rate_and_decay,
  small_net,
  torch_sgd,
  torch_trained,
  trained,
)
from tolerances import EQUAL

from jaxspeed.planning.make import make_plan

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

VARIANTS = [
  dict(momentum=0.9, nesterov=True, weight_decay=0.05),
  dict(momentum=0.9, nesterov=False, weight_decay=0.05),
  dict(momentum=0.9, nesterov=True, weight_decay=0.0),
  dict(momentum=0.0, nesterov=False, weight_decay=0.05),
  APART,
]
# The rates of biases are 64 times these.
SLOW = [rate / 64 for rate in RATES]


@pytest.mark.parametrize("changes", VARIANTS)
def test_sgd_is_torchs(changes):
  config, rates = make_config(**changes), SLOW if changes is APART else RATES
  params, state = trained(made(config), rates)
  expected = torch_trained(torch_sgd(config), rate_and_decay(config), rates)
  assert_same(params, expected)
  # The state is the momentum of what is trained.
  kept = [x.shape for x in expected.values()] if config.optimizer.momentum else []
  assert sorted(leaf.shape for leaf in jax.tree.leaves(state)) == sorted(kept)


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_momentum_that_changes_is_torchs(nesterov):
  momenta = list(np.interp(np.arange(STEPS), [0, 4, 9], [0.96, 0.90, 0.95]))
  # The plan's column stands for the segments; what they say is the plan's business.
  config = make_config(**(APART | dict(nesterov=nesterov, momentum_segments=((0, 1, 0.9, 0.9),))))
  params, _ = trained(made(config), SLOW, momentum=momenta)
  expected = torch_trained(torch_sgd(config), rate_and_decay(config), SLOW, momenta=momenta)
  assert_same(params, expected)


@pytest.mark.parametrize("name", ["sgd", "lars", "muon"])
def test_an_optimizer_takes_what_the_plan_has_for_it(name):
  config = make_config(name=name, momentum_segments=((0, 1, 0.8, 0.9), (1, 2, 0.9, 0.6)))
  config.update(epochs=2.0, batch_size=2)
  config.data.update(train_images=10)
  row = {column: values[3] for column, values in make_plan(config).table_in(np.float64).items()}
  assert row["momentum"] == pytest.approx(0.88, rel=EQUAL)  # after four of five steps an epoch
  first_update(config, small_net(), gradients_of_step(0), **row)


@pytest.mark.parametrize("rate_in_momentum", [False, True])
def test_a_whitening_bias_at_rate_0_keeps_its_bits(rate_in_momentum):
  config = make_config(
    momentum=0.9, weight_decay=0.5, bias_decay_factor=3.0, rate_in_momentum=rate_in_momentum
  )
  bias = jnp.array([0.0, -0.0, 1.0, -1e-30, 5e-324, 2.5])
  params = {"whiten": {"bias": bias}, "head": {"kernel": jnp.ones((2, 3))}}
  optimizer = made(config, params)
  gradients = jax.tree.map(jnp.ones_like, params)

  @jax.jit
  def step(params, state, gradients, rate):
    updates, state = optimizer.update(
      gradients, state, params, learning_rate=jnp.float64(0.1), whiten_bias_rate=rate
    )
    return optax.apply_updates(params, updates), state

  def bits(array):
    # XLA on a CPU takes numbers below 1e-308 for 0, in any sum.
    return np.asarray(array).view(np.uint64)[[0, 1, 2, 3, 5]]

  # A step that fills the momentum, then zeros: the bias rests, also while its gradient is infinite.
  moved, state = step(params, optimizer.init(params), gradients, jnp.float64(0.5))
  assert not np.any(np.asarray(moved["whiten"]["bias"]) == np.asarray(bias))
  params = moved | {"whiten": {"bias": bias}}
  gradients["whiten"]["bias"] = jnp.array([1.0, -1.0, 0.0, jnp.inf, jnp.nan, -0.0])
  for _ in range(3):
    params, state = step(params, state, gradients, jnp.float64(0.0))
    np.testing.assert_array_equal(bits(params["whiten"]["bias"]), bits(bias))


def test_a_whitening_bias_that_no_epoch_trains_needs_no_rate():
  params = {"whiten": {"bias": jnp.ones(3)}}
  optimizer = made(make_config(bias_epochs=0.0), params)
  updates, _ = optimizer.update(params, optimizer.init(params), params, learning_rate=0.1)
  np.testing.assert_array_equal(updates["whiten"]["bias"], np.zeros(3))
