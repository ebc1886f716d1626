"""The moving average against NumPy, lookahead against PyTorch, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_equal

from jaxspeed.planning import schedules
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


def test_updates_are_numpys_and_keeping_all_is_exactly_the_identity():
  average = expected = tree(0)
  update = jax.jit(ema)
  for seed, keep in enumerate([0.951, 1.0, 0.5, 0.0, 0.99, 0.3], start=1):
    before, average = average, update(average, tree(seed), jnp.float64(keep))
    expected = jax.tree.map(lambda a, b, keep=keep: keep * a + (1 - keep) * b, expected, tree(seed))
    if keep == 1:
      assert_bits(average, before)
  assert_equal(average, expected)


def leaves_as_torch(torch, model):
  return [torch.tensor(x, dtype=torch.float64) for x in jax.tree.leaves(model)]


@pytest.mark.parametrize("from_epoch", [0, 2])
def test_lookahead_over_a_run_is_torchs(from_epoch):
  """23 steps in epochs of 4, every 3 steps: airbench94's loop, and hlb's from epoch 2 on."""
  torch = pytest.importorskip("torch")
  total, per_epoch, every = 23, 4, 3
  keep, pull = schedules.lookahead(
    np.arange(total) // per_epoch, decay=0.95, every=every, from_epoch=from_epoch
  )
  step = jax.jit(
    lambda average, model, move, keep, pull: lookahead(
      average, jax.tree.map(jnp.add, model, move), keep, pull
    )
  )
  average = model = tree(0)
  net = leaves_as_torch(torch, model)
  slow = [x.clone() for x in net] if from_epoch == 0 else None
  for number in range(total):
    average, model = step(
      average, model, tree(number + 1), jnp.float64(keep[number]), jnp.float64(pull[number])
    )
    for x, move in zip(net, leaves_as_torch(torch, tree(number + 1)), strict=True):
      x += move
    done = number + 1
    if done % every == 0 and number // per_epoch >= from_epoch:
      if slow is None:
        slow = [x.clone() for x in net]
      else:
        share = 0.95**every * (done / total) ** 3
        for a, x in zip(slow, net, strict=True):
          a.lerp_(x, 1 - share)
          x.copy_(a)
    for ours, theirs in zip(jax.tree.leaves(model), net, strict=True):
      if done < total:
        assert_equal(ours, theirs)
  for ours, theirs in zip(jax.tree.leaves(average), slow, strict=True):
    assert_equal(ours, theirs)
  assert_bits(average, model)


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
