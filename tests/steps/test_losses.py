"""Cross entropy, accuracies and predictions against NumPy; test_loss_of_a_step.py has PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from tolerances import assert_close

from jaxspeed.data.batch import Batch
from jaxspeed.steps.losses import MetricSums, cross_entropy, masked_sums
from jaxspeed.steps.outcomes import outcomes_of

NAN, INF = np.nan, np.inf


def some_logits(n=16, classes=10):
  rng = np.random.default_rng(0)
  return 3 * rng.standard_normal((n, classes)), rng.integers(classes, size=n).astype(np.int32)


def one_hot(labels, dtype=jnp.float32, classes=10):
  return jax.nn.one_hot(jnp.asarray(labels), classes, dtype=dtype)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_cross_entropy_and_class_weights_are_float32(dtype):
  logits, labels = some_logits()
  logits[0, 0] = 1e4
  half, weights = jnp.asarray(logits, dtype), np.geomspace(1e5, 1e-5, 10)  # 1e5 is no float16
  losses = cross_entropy(half, one_hot(labels), 0.0, weights)
  assert losses.dtype == jnp.float32
  log_p = scipy.special.log_softmax(np.asarray(half, np.float64), axis=1)
  expected = -weights[labels] * log_p[np.arange(16), labels]
  for name in (labels > 4, labels <= 4):
    assert_close(np.asarray(losses)[name], expected[name], terms=2 * 10)


@jax.jit
def found(logits, labels, mask):
  index = jnp.arange(len(labels), dtype=jnp.int32)
  losses = cross_entropy(logits, one_hot(labels, classes=logits.shape[-1]))
  batch = Batch(image=jnp.zeros(0), label=labels, mask=mask, index=index)
  return outcomes_of(logits, losses, batch), masked_sums(logits, losses, labels, mask)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_an_image_is_right_just_where_top1_counts_it(dtype):
  # Few values, so ties are many, some of them NaN or infinite.
  rng = np.random.default_rng(0)
  values, p = [-INF, -1.0, 0.0, 0.5, 1.0, INF, NAN], [0.03, 0.3, 0.3, 0.2, 0.11, 0.03, 0.03]
  logits, labels = rng.choice(values, size=(4000, 6), p=p), rng.integers(6, size=4000)
  mask = rng.random(len(labels)) < 0.8
  arguments = jnp.asarray(logits, dtype), jnp.asarray(labels, jnp.int32), jnp.asarray(mask)
  outcomes, sums = jax.device_get(found(*arguments))
  np.testing.assert_array_equal(outcomes.index, np.where(mask, np.arange(4000), -1))
  right = outcomes.predicted == outcomes.label
  assert sums.top1 == right[mask].sum() > 200
  # One by one, too: a sum of two mistakes could agree.
  for value in (True, False):
    some = jnp.asarray(mask & (right == value))
    assert found(*arguments[:2], some)[1].top1 == (mask & right).sum() * value
  largest = logits.max(axis=1)  # NaN if there is one
  finite = np.isfinite(largest)
  assert 0.4 < finite.mean() < 0.9
  np.testing.assert_array_equal(outcomes.predicted[~finite], -1)
  np.testing.assert_array_equal(outcomes.predicted[finite], logits[finite].argmax(axis=1))


@pytest.mark.parametrize(
  "logits, label, expected",
  [
    # A constant answer is right for class 0 alone, and "in the first five" for five classes.
    *(([0] * 10, label, (label == 0, label < 5)) for label in (0, 1, 4, 5, 9)),
    *(([0, 2, 2, 1], label, (label == 1, True)) for label in range(4)),
    # A label beside a NaN is never first. PyTorch's topk likewise puts a NaN before every number.
    ([NAN] * 10, 0, (False, False)),
    ([NAN, *[1] * 9], 0, (False, False)),
    ([1, NAN, *[0] * 8], 0, (False, True)),
    ([1, *[NAN] * 5], 0, (False, False)),
    # An infinite logit of the label is never right, and those of others count as numbers.
    ([INF, 1, 0, 0, 0, 0], 0, (False, False)),
    ([0, -INF, 0, -1, -INF, -INF], 0, (True, True)),
  ],
)
def test_ties_and_what_is_not_finite(logits, label, expected):
  labels = jnp.asarray([label], jnp.int32)
  sums = masked_sums(jnp.float32([logits]), jnp.zeros(1), labels, jnp.ones(1, bool))
  assert (bool(sums.top1), bool(sums.top5)) == expected


def test_sums_add_field_by_field_and_divide_when_read():
  sums = MetricSums(jnp.float32(3.0), jnp.int32(1), jnp.int32(2), jnp.int32(4))
  # Of five classes or fewer there is no top-5.
  for classes, top5 in ((2, {}), (5, {}), (6, {"top5": 0.75})):
    means = (sums + sums.replace(top5=jnp.int32(4))).means(classes)
    assert means == {"loss": 0.75, "top1": 0.25} | top5
  zero = MetricSums.zero()
  # The types of the carry must be those that a step returns, or a second program is compiled.
  assert jax.tree.map(lambda x: x.dtype, zero + sums) == jax.tree.map(lambda x: x.dtype, zero)
  assert (zero + sums).means(10) == sums.means(10)
  assert all(np.isnan(value) for value in zero.means(10).values())
  nothing = jnp.full((1, 10), NAN), jnp.full(1, NAN), jnp.zeros(1, jnp.int32), jnp.zeros(1, bool)
  assert jax.tree.leaves(masked_sums(*nothing)) == [0] * 4
  # An array of JAX's would compile a program.
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(zero))
