"""SGD against PyTorch and the formulas written out in NumPy, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from small_net import (
  APART,
  CHANGING,
  CONSTANT,
  STEPS,
  assert_same,
  extra_arguments,
  first_update,
  gradients_of_step,
  make_config,
  named_leaves,
  numpy_trained,
  small_net,
  torch_trained,
  trained,
  trained_names,
)
from tolerances import EQUAL, assert_equal

from jaxspeed.errors import UserError
from jaxspeed.models.layers.groups import groups_by_name
from jaxspeed.optim.make import make_optimizer
from jaxspeed.planning.make import make_plan

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]


VARIANTS = [
  dict(momentum=0.9, nesterov=True, weight_decay=0.05),
  dict(momentum=0.9, nesterov=False, weight_decay=0.05),
  dict(momentum=0.9, nesterov=True, weight_decay=0.0),
  dict(momentum=0.0, nesterov=False, weight_decay=0.05),
]


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
