"""A loop that carries rounded parameters computes what a loop of whole steps does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.steps.rounding import hoist_casts


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
