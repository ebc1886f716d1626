"""Averages where nothing moves, a loop that carries rounded parameters, and dropout: their bits.

Runs of averages beside PyTorch's are in test_originals.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import assert_equal
from toy import inputs_of, toy_config, toy_spec

from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.rounding import hoist_casts
from jaxspeed.steps.train_step import dropout_key, ema, lookahead
from jaxspeed.steps.wrappers import in_micro_batches


def tree(seed):
  rng = np.random.default_rng(seed)
  return {"kernel": rng.standard_normal((3, 5)), "mean": 100 * rng.standard_normal(7)}


def assert_bits(first, second):
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_array_equal(np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64))


@pytest.mark.equivalence
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_moving_average_that_keeps_all_or_nothing_moves_no_bit(keep):
  old, new = tree(0), tree(1)
  average = jax.jit(ema)(old, new, jnp.float64(keep))
  assert_equal(average, jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, old, new))
  if keep == 1:
    assert_bits(average, old)


@pytest.mark.equivalence
@pytest.mark.parametrize("pull", [0.0, 1.0])
@pytest.mark.parametrize("keep", [0.0, 1e-4, 0.11, 0.77, 1.0])
def test_lookahead_is_exact_where_nothing_moves(keep, pull):
  old, new = tree(0), tree(1)
  # Weights that are frozen, as the whitening filters: at 1e-4 a fifth of k w + (1 - k) w is not w.
  old["frozen"] = new["frozen"] = np.random.default_rng(2).standard_normal(1000)
  average, model = jax.jit(lookahead)(old, new, jnp.float64(keep), jnp.float64(pull))
  assert_bits(average["frozen"], old["frozen"])
  if keep in (0.0, 1.0):
    assert_bits(average, old if keep else new)
  assert_bits(model, average if pull else new)


def step_of(dtype):
  """A step on {"kernel", "scale", "step"} that rounds the kernel."""

  def loss_of(kernel, scale, x):
    y = jnp.tanh(x @ kernel.astype(dtype))
    return jnp.mean((y.astype(jnp.float32) * scale) ** 2)

  def step(carry):
    x = jax.random.normal(jax.random.key(carry["step"]), (8, 4)).astype(dtype)
    loss, grads = jax.value_and_grad(loss_of, (0, 1))(carry["kernel"], carry["scale"], x)
    kernel, scale = (
      carry[name] - 0.3 * g for name, g in zip(("kernel", "scale"), grads, strict=True)
    )
    return {"kernel": kernel, "scale": scale, "step": carry["step"] + 1}, loss

  return step


@pytest.mark.parametrize("dtype, shapes", [(jnp.bfloat16, [(4, 4)]), (jnp.float32, [])])
def test_steps_with_their_rounding_apart_are_the_same(dtype, shapes):
  start = {
    "kernel": jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32),
    "scale": jnp.ones((4,), jnp.float32),
    "step": jnp.int32(0),
  }
  step = step_of(dtype)
  rounded, stepped = hoist_casts(step, start)
  carry = apart = start
  # Not compiled: each operation is the same, so the bits are.
  for _ in range(3):
    low = rounded(apart)
    assert [each.shape for each in low] == shapes
    (carry, loss), (apart, other) = step(carry), stepped(apart, low)
    np.testing.assert_array_equal(loss, other)
    jax.tree.map(np.testing.assert_array_equal, carry, apart)
  if shapes:  # the step does use what it is given
    assert stepped(start, tuple(2 * x for x in rounded(start)))[1] != step(start)[1]


# The rng of dropout


SMALL = dict(name="vit", patch_size=4, width=8, depth=1, heads=2, mlp=8)


def vit_config(dropout=0.5, **fields):
  config = toy_config(**{"average.kind": "ema", "average.decay": 0.5} | fields)
  with config.unlocked():
    config.model = SMALL | {"dropout": dropout}
  return config


def test_a_model_without_batch_stats_trains_with_an_average_and_dropout():
  spec = toy_spec(vit_config())
  carry, *rest = inputs_of(spec)
  step = jax.jit(batch_step(spec))
  assert carry.state.batch_stats == {} and set(carry.state.eval_variables()) == {"params"}
  first, loss = step(carry, *rest)
  again, same = step(carry, *rest)
  jax.tree.map(np.testing.assert_array_equal, (first, loss), (again, same))
  # The same weights and images, another step or another key.
  state = carry.state
  for other in (state.replace(step=state.step + 1), state.replace(key=state.key + 1)):
    assert float(step(carry.replace(state=other), *rest)[1]) != float(loss)


def test_each_device_and_micro_batch_has_a_key_of_its_own():
  spec = toy_spec(vit_config(accumulate=2), devices=2)
  carry, *_ = inputs_of(spec)

  def keys(state, spec):
    def gradient_of(params, batch, part):
      key = jax.random.key_data(dropout_key(state, part))
      return jnp.zeros((4, 2), key.dtype).at[part].set(key), (0, {}, None)

    summed = in_micro_batches(gradient_of, 2)(None, jnp.zeros(4), lax.axis_index("data"))
    return lax.psum(summed[0], "data")

  found = np.asarray(jax.jit(on_mesh(keys, spec))(carry.state))
  assert len(np.unique(found, axis=0)) == 4 and found.any(axis=1).all()
