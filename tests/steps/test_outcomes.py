"""What logits predict, image by image: exactly what the sums count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.data.batch import Batch
from jaxspeed.steps.losses import masked_sums, smoothed_cross_entropy
from jaxspeed.steps.outcomes import outcomes_of

NAN, INF = np.nan, np.inf


@jax.jit
def found(logits, labels, mask):
  index = jnp.arange(len(labels), dtype=jnp.int32)
  losses = smoothed_cross_entropy(logits, labels)
  batch = Batch(image=jnp.zeros(0), label=labels, mask=mask, index=index)
  return outcomes_of(logits, losses, batch), masked_sums(logits, losses, labels, mask)


def awkward_logits(n=4000, classes=6):
  """Few values, so ties are many, some of them NaN or infinite."""
  rng = np.random.default_rng(0)
  values = np.array([-INF, -1.0, 0.0, 0.5, 1.0, INF, NAN])
  p = [0.03, 0.3, 0.3, 0.2, 0.11, 0.03, 0.03]
  return rng.choice(values, size=(n, classes), p=p), rng.integers(classes, size=n)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_an_image_is_right_just_where_top1_counts_it(dtype):
  logits, labels = awkward_logits()
  mask = np.random.default_rng(1).random(len(labels)) < 0.8
  arguments = jnp.asarray(logits, dtype), jnp.asarray(labels, jnp.int32), jnp.asarray(mask)
  outcomes, sums = jax.device_get(found(*arguments))
  counted = outcomes.index >= 0
  np.testing.assert_array_equal(counted, mask)
  np.testing.assert_array_equal(outcomes.index[mask], np.flatnonzero(mask))
  right = outcomes.predicted == outcomes.label
  assert sums.top1 == right[counted].sum() > 200
  # One by one, too: a sum of two mistakes could agree.
  for value in (True, False):
    some = jnp.asarray(mask & (right == value))
    assert found(*arguments[:2], some)[1].top1 == (counted & right).sum() * value
  largest = logits.max(axis=1)  # NaN if there is one
  finite = np.isfinite(largest)
  assert 0.4 < finite.mean() < 0.9
  np.testing.assert_array_equal(outcomes.predicted[~finite], -1)
  np.testing.assert_array_equal(outcomes.predicted[finite], logits[finite].argmax(axis=1))


def test_the_probability_is_softmaxs_largest():
  rng = np.random.default_rng(0)
  logits = (5 * rng.standard_normal((50, 10))).astype(np.float32)
  labels = rng.integers(10, size=50).astype(np.int32)
  outcomes, _ = found(jnp.asarray(logits), jnp.asarray(labels), jnp.ones(50, bool))
  p = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  # Ten terms and their exponentials; the differences of logits up to 30 round to 30 eps.
  np.testing.assert_allclose(outcomes.probability, p.max(axis=1), rtol=50 * 2**-23)
  wrong = outcomes.predicted != labels
  assert wrong.sum() > 30
  # exp(-loss) is the label's own probability.
  own = p[np.arange(50), labels]
  np.testing.assert_allclose(np.exp(-np.asarray(outcomes.loss, np.float64)), own, rtol=1e-5)
