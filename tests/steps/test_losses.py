"""Cross entropy and accuracies against NumPy and PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close, assert_equal

from jaxspeed.steps.losses import MetricSums, masked_sums, smoothed_cross_entropy

NAN, INF = np.nan, np.inf


def some_logits(n=16, classes=10, seed=0):
  rng = np.random.default_rng(seed)
  logits = 3 * rng.standard_normal((n, classes))
  return logits, rng.integers(classes, size=n).astype(np.int32)


def numpy_cross_entropy(logits, labels, smoothing):
  logits = np.asarray(logits, np.float64)
  log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
  own = log_p[np.arange(len(labels)), labels]
  return -(1 - smoothing) * own - smoothing * log_p.mean(axis=1)


def ranks(logits, labels):
  """Whether each label is first and among the first five, one example at a time."""
  rows = []
  for logit, label in zip(np.asarray(logits), labels, strict=True):
    sums = masked_sums(
      jnp.asarray(logit, jnp.float32)[None],
      jnp.zeros(1),
      jnp.asarray([label], jnp.int32),
      jnp.ones(1, bool),
    )
    rows.append((int(sums.top1), int(sums.top5)))
  return rows


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_and_its_gradient_are_torchs(smoothing):
  torch = pytest.importorskip("torch")
  logits, labels = some_logits()
  x = torch.tensor(logits, requires_grad=True)
  expected = torch.nn.functional.cross_entropy(
    x, torch.tensor(labels).long(), label_smoothing=smoothing, reduction="none"
  )
  expected.sum().backward()

  def total(x):
    return smoothed_cross_entropy(x, jnp.asarray(labels), smoothing).sum()

  losses = smoothed_cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing)
  assert_equal(losses, expected.detach().numpy())
  assert_equal(jax.grad(total)(jnp.asarray(logits)), x.grad.numpy())


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_class_weights_are_torchs(smoothing):
  torch = pytest.importorskip("torch")
  logits, labels = some_logits()
  weights = np.random.default_rng(1).uniform(0.1, 9, 10)
  weights[3] = 0.0
  parts = torch.tensor(logits), torch.tensor(labels).long(), torch.tensor(weights)
  for reduction in ("none", "mean"):
    expected = torch.nn.functional.cross_entropy(
      *parts, label_smoothing=smoothing, reduction=reduction
    )
    losses = smoothed_cross_entropy(jnp.asarray(logits), jnp.asarray(labels), smoothing, weights)
    if reduction == "mean":
      losses = losses.sum() / weights[labels].sum()
    assert_equal(losses, expected.numpy())


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_cross_entropy_is_computed_in_float32(dtype):
  logits, labels = some_logits()
  half = jnp.asarray(logits, dtype)
  losses = smoothed_cross_entropy(half, jnp.asarray(labels))
  assert losses.dtype == jnp.float32
  rounded = np.asarray(half, np.float32)
  assert_close(losses, numpy_cross_entropy(rounded, labels, 0), terms=2 * 10)


def test_cross_entropy_of_large_logits_is_finite():
  losses = smoothed_cross_entropy(jnp.array([[1e4, 0.0, 0.0]]), jnp.array([1]))
  np.testing.assert_allclose(losses, [1e4])


def test_masked_sums_count_what_argsort_counts():
  logits, labels = some_logits(200)
  mask = np.random.default_rng(1).random(200) < 0.7
  losses = np.arange(200, dtype=np.float32)
  sums = masked_sums(*map(jnp.asarray, (logits, losses, labels, mask)))
  best = np.argsort(-logits, axis=1)
  assert int(sums.top1) == (best[:, 0] == labels)[mask].sum()
  assert int(sums.top5) == (best[:, :5] == labels[:, None]).any(axis=1)[mask].sum()
  assert int(sums.count) == mask.sum()
  assert float(sums.loss) == losses[mask].sum()
  assert 0 < int(sums.top1) < int(sums.top5) < int(sums.count)


def test_masked_sums_leave_out_what_the_mask_leaves_out_whatever_it_is():
  logits = jnp.array([[1.0, 0.0], [NAN, NAN], [1.0, 0.0]])
  sums = masked_sums(
    logits, jnp.array([2.0, NAN, INF]), jnp.array([0, 0, 0]), jnp.array([True, False, False])
  )
  assert (float(sums.loss), int(sums.top1), int(sums.top5), int(sums.count)) == (2.0, 1, 1, 1)


def test_of_tied_classes_the_first_comes_first():
  # A constant answer is right for class 0 alone, and "in the first five" for five classes.
  constant = np.zeros((10, 10))
  assert ranks(constant, range(10)) == [(1, 1)] + [(0, 1)] * 4 + [(0, 0)] * 5
  assert ranks([[0, 2, 2, 1]] * 4, range(4)) == [(0, 1), (1, 1), (0, 1), (0, 1)]


def test_a_label_beside_a_nan_is_never_first():
  rows = [[NAN] * 10, [NAN, 1, 0, 0, 0, 0, 0, 0, 0, 0], [1, NAN, 0, 0, 0, 0, 0, 0, 0, 0]]
  assert ranks(rows, [0, 0, 0]) == [(0, 0), (0, 0), (0, 1)]
  # PyTorch's topk likewise puts a NaN before every number.
  assert ranks([[1] + [NAN] * 5], [0]) == [(0, 0)]


def test_an_infinite_logit_of_the_label_is_never_right_and_of_others_counts_as_a_number():
  assert ranks([[INF, 1, 0, 0, 0, 0], [0, -INF, 0, -1, -INF, -INF]], [0, 0]) == [(0, 0), (1, 1)]


def test_sums_add_field_by_field_and_divide_when_read():
  first = MetricSums(jnp.float32(3.0), jnp.int32(1), jnp.int32(2), jnp.int32(3))
  second = MetricSums(jnp.float32(2.0), jnp.int32(2), jnp.int32(5), jnp.int32(7))
  assert (first + second).means(10) == {
    "loss": pytest.approx(5 / 10),
    "top1": pytest.approx(3 / 10),
    "top5": pytest.approx(7 / 10),
  }


@pytest.mark.parametrize("classes", [2, 5, 6])
def test_of_five_classes_or_fewer_there_is_no_top5(classes):
  sums = MetricSums(jnp.float32(3.0), jnp.int32(1), jnp.int32(2), jnp.int32(4))
  top5 = {"top5": 0.5} if classes > 5 else {}
  assert sums.means(classes) == {"loss": 0.75, "top1": 0.25} | top5


def test_zero_is_neutral_and_its_means_are_no_numbers():
  some = MetricSums(jnp.float32(3.0), jnp.int32(1), jnp.int32(2), jnp.int32(3))
  total = MetricSums.zero() + some
  assert total.means(10) == some.means(10)
  # The types of the carry must be those that a step returns, or a second program is compiled.
  assert jax.tree.map(lambda x: x.dtype, total) == jax.tree.map(
    lambda x: x.dtype, MetricSums.zero()
  )
  assert all(np.isnan(value) for value in MetricSums.zero().means(10).values())


def test_zero_makes_no_array_of_jaxs():
  assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(MetricSums.zero()))
