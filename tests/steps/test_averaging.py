"""What a moving average and lookahead leave as it is, to the bit.

Their runs beside PyTorch's are in test_originals.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal

from jaxspeed.steps.train_step import ema, lookahead

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]


def tree(seed):
  rng = np.random.default_rng(seed)
  return {
    "params": {"kernel": rng.standard_normal((3, 5))},
    "batch_stats": {"mean": 100 * rng.standard_normal(7)},
  }


def assert_bits(first, second):
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
    np.testing.assert_array_equal(np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64))


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_moving_average_that_keeps_all_or_nothing_moves_no_bit(keep):
  old, new = tree(0), tree(1)
  average = jax.jit(ema)(old, new, jnp.float64(keep))
  assert_equal(average, jax.tree.map(lambda a, b: keep * a + (1 - keep) * b, old, new))
  if keep == 1:
    assert_bits(average, old)


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
