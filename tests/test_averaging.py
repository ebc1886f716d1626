"""The moving average against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspeed import averaging


def tree(seed):
  rng = np.random.default_rng(seed)
  return {
    "params": {"kernel": rng.standard_normal((3, 5)).astype(np.float32)},
    "batch_stats": {"mean": (100 * rng.standard_normal(7)).astype(np.float32)},
  }


def test_ten_updates_are_numpys():
  keeps = [0.951, 1.0, 0.5, 0.0, 0.99, 0.951, 1.0, 0.9, 0.3, 0.7]
  average = expected = tree(0)
  for seed, keep in enumerate(keeps, start=1):
    average = averaging.ema(average, tree(seed), jnp.float32(keep))
    expected = jax.tree.map(
      lambda a, b, keep=keep: keep * a.astype(np.float64) + (1 - keep) * b, expected, tree(seed)
    )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6), average, expected
  )


def test_keeping_all_is_exactly_the_identity():
  old, new = tree(0), tree(1)
  average = jax.jit(averaging.ema)(old, new, jnp.float32(1.0))
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a).view(np.uint32), b.view(np.uint32)),
    average,
    old,
  )


def test_keeping_nothing_is_exactly_the_new_values():
  average = jax.jit(averaging.ema)(tree(0), tree(1), jnp.float32(0.0))
  jax.tree.map(np.testing.assert_array_equal, average, tree(1))
