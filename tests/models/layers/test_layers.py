"""Layers against PyTorch and formulas written out in NumPy, in float64 where they are equal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close, assert_equal, rounding

from jaxspeed.errors import UserError
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import celu
from jaxspeed.models.layers.conv import Conv, _convolve_small_map, conv_init
from jaxspeed.models.layers.norm import Norm, _sum_of_pairs, _sums_apart
from jaxspeed.models.layers.whiten import Whiten, _sum_of_products

torch = pytest.importorskip("torch")
from torch_layers import assert_layer, to_numpy, to_torch  # noqa: E402 (it needs torch)

functional = torch.nn.functional

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
  "batch, channels, features, size, kernel, strides, padding",
  [
    (8, 3, 8, 9, 3, 1, None),
    (8, 16, 24, 8, 3, 1, None),
    (8, 64, 128, 16, 3, 1, None),
    (8, 64, 32, 4, 3, 1, None),
    (6, 64, 32, 4, 3, 1, None),
    (8, 16, 8, 9, 3, 2, None),
    (8, 16, 8, 9, 1, 1, None),
    (6, 16, 8, 9, 1, 2, None),
    (6, 3, 12, 9, 2, 1, 0),
    (8, 3, 8, 16, 7, 2, None),
  ],
)
def test_conv_and_its_gradients_are_torchs(
  batch, channels, features, size, kernel, strides, padding
):
  conv = Conv(features, kernel, strides, padding, dtype=jnp.float64)
  x = random(batch, size, size, channels)
  weight = conv.init(jax.random.key(0), x)["params"]["kernel"]
  assert weight.shape == (features, kernel, kernel, channels)
  padded = kernel // 2 if padding is None else padding
  assert_layer(
    lambda x, weight: conv.apply({"params": {"kernel": weight}}, x),
    lambda x, weight: functional.conv2d(x, weight, stride=strides, padding=padded),
    x,
    weight,
  )


def test_conv_computes_in_its_dtype_and_keeps_float32_parameters():
  conv = Conv(4, dtype=jnp.bfloat16)
  x = random(2, 5, 5, 3).astype(np.float32)
  variables = conv.init(jax.random.key(0), x)
  assert {p.dtype for p in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
  assert conv.apply(variables, x).dtype == jnp.bfloat16
  grads = jax.grad(lambda v: conv.apply(v, x).astype(jnp.float32).sum())(variables)
  assert grads["params"]["kernel"].dtype == np.float32


def test_conv_init_is_torchs_default():
  kernel = conv_init(jax.random.key(0), (64, 3, 3, 32), jnp.float32)
  bound = 1 / np.sqrt(3 * 3 * 32)
  assert 0.99 * bound < np.abs(kernel).max() <= bound
  np.testing.assert_allclose(np.std(kernel), bound / np.sqrt(3), rtol=0.02)


@pytest.mark.parametrize(
  "splits, ours, theirs",
  [
    (2, None, lambda x: x),
    (1, jax.nn.relu, functional.relu),
    (2, functools.partial(celu, alpha=0.25), lambda x: functional.celu(x, 0.25)),
  ],
  ids=["none", "relu", "celu"],
)
def test_norm_and_its_gradients_are_torchs(splits, ours, theirs):
  norm = Norm(use_running_average=False, splits=splits, activation=ours)
  inputs = 1 + random(8, 4, 6, 5), random(5, seed=1), random(5, seed=2)
  means, variances = (
    [start(5).double() for _ in range(splits)] for start in (torch.zeros, torch.ones)
  )

  def apply(x, scale, bias):
    stats = {"mean": np.zeros(5), "var": np.ones(5)}
    variables = {"params": {"scale": scale, "bias": bias}, "batch_stats": stats}
    return norm.apply(variables, x, mutable=["batch_stats"])

  def their_norm(x, scale, bias):
    y = torch.empty_like(x)
    for s in range(splits):
      parts = (x[s::splits], means[s], variances[s], scale, bias)
      y[s::splits] = theirs(functional.batch_norm(*parts, training=True, momentum=0.1))
    return y

  assert_layer(lambda *inputs: apply(*inputs)[0], their_norm, *inputs)
  updated = apply(*inputs)[1]["batch_stats"]
  assert_equal(updated["mean"], sum(means) / splits)
  assert_equal(updated["var"], sum(variances) / splits)


def test_norm_in_bfloat16_keeps_float32_statistics():
  x = jnp.asarray(100 + random(64, 8, 8, 4), jnp.bfloat16)
  norm = Norm(use_running_average=False, train_scale=False)
  variables = norm.init(jax.random.key(0), x)
  assert set(variables["params"]) == {"bias"}
  y, updated = norm.apply(variables, x, mutable=["batch_stats"])
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64)
  # Sums over 64 * 8 * 8 pixels; the variance is 1 beside a squared mean of 10,000.
  terms, stats = 64 * 8 * 8, updated["batch_stats"]
  assert_close(stats["mean"], 0.1 * exact.mean(axis=(0, 1, 2)), terms=terms)
  variance = 0.9 + 0.1 * exact.var(axis=(0, 1, 2), ddof=1)
  np.testing.assert_allclose(stats["var"], variance, atol=0.1 * 10_000 * rounding(terms))


def test_norm_refuses_a_batch_that_does_not_divide():
  norm = Norm(use_running_average=False, splits=3)
  with pytest.raises(UserError, match="8, does not divide into 3"):
    norm.init(jax.random.key(0), random(8, 2, 2, 4))


def test_whiten_convolves_and_is_not_trained():
  whiten = Whiten(dtype=jnp.float64)
  x = random(2, 8, 8, 3)
  variables = whiten.init(jax.random.key(0), x)
  y = whiten.apply(variables, x)
  theirs = functional.conv2d(to_torch(x), to_torch(variables["params"]["kernel"]), padding=1)
  assert_equal(y, to_numpy(theirs))
  grads = jax.grad(lambda v, x: whiten.apply(v, x).sum(), argnums=(0, 1))(variables, x)
  assert all(np.all(g == 0) for g in jax.tree.leaves(grads))


def test_what_a_gpu_runs_is_what_a_cpu_runs():
  """The branches that `lax.platform_dependent` chooses there, run here."""
  a, b = random(6, 2, 9, 4), random(6, 2, 9, 4, seed=1)
  for pair, apart in zip(_sum_of_pairs(a, b), _sums_apart(a, b), strict=True):
    assert_equal(pair, apart)

  x, kernel = random(4, 7, 7, 3), random(8, 2, 2, 3)
  for padding in (0, 1):
    ours = _sum_of_products(x, kernel, padding)
    assert_equal(ours, plain.convolve(x, kernel, 1, padding))
  half = _sum_of_products(jnp.asarray(x, jnp.bfloat16), kernel.astype(np.float32), 0)
  assert half.dtype == jnp.bfloat16

  x, kernel, grad = random(5, 3, 3, 6), random(8, 3, 3, 6), random(5, 3, 3, 8)
  small, small_vjp = jax.vjp(lambda x, k: _convolve_small_map(x, k, 1), x, kernel)
  large, large_vjp = jax.vjp(lambda x, k: plain.convolve(x, k, 1, 1), x, kernel)
  for ours, theirs in zip((small, *small_vjp(grad)), (large, *large_vjp(grad)), strict=True):
    assert_equal(ours, theirs)
