"""Norms fused with a pool or a border against the plain layers in turn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tolerances import assert_close, assert_equal

from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers.activations import gelu
from jaxspeed.models.layers.conv import Conv, add_border, border_before_pool, drop_border
from jaxspeed.models.layers.fused_norm import MaxPoolNorm
from jaxspeed.models.layers.norm import Norm, _sums_of_parts, gradient_sums, normalize_forward
from jaxspeed.models.layers.pool import max_pool

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]

VARIABLES = {
  "params": {"scale": np.asarray([1.0, -2.0, 0.5]), "bias": np.asarray([0.3, -0.2, -3.0])},
  "batch_stats": {"mean": np.asarray([0.1, 0.2, 0.3]), "var": np.asarray([1.0, 2.0, 0.5])},
}


def random(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def run(norm, before, params, x):
  y, updated = norm.apply(VARIABLES | {"params": params}, before(x), mutable=["batch_stats"])
  return y, updated["batch_stats"]


def results_of(function, *arguments):
  """The results of a function, their statistics, and the gradients of all its arguments."""
  y, vjp, stats = jax.vjp(function, *arguments, has_aux=True)
  return y, stats, vjp(random(*y.shape, seed=1))


@pytest.mark.parametrize(
  "size, splits, activation",
  [((8, 6), 1, gelu), ((7, 10), 2, jax.nn.silu), ((9, 5), 1, None), ((2, 3), 2, gelu)],
)
def test_a_norm_after_a_pool_is_the_two_in_turn(size, splits, activation):
  fields = dict(use_running_average=False, splits=splits, activation=activation)
  fused = functools.partial(run, MaxPoolNorm(**fields), lambda x: x)
  plain = functools.partial(run, Norm(**fields), lambda x: max_pool(x, 2))
  arguments = VARIABLES["params"], random(4, *size, 3)
  assert_equal(results_of(fused, *arguments), results_of(plain, *arguments))
  remembered = results_of(jax.checkpoint(fused), *arguments)
  assert_equal(remembered, results_of(fused, *arguments))

  evaluated = dict(use_running_average=True, activation=activation)
  ours = MaxPoolNorm(**evaluated).apply(VARIABLES, arguments[1])
  assert_equal(ours, Norm(**evaluated).apply(VARIABLES, max_pool(arguments[1], 2)))


@pytest.mark.parametrize("training", [True, False])
def test_a_norm_writes_its_border(training):
  fields = dict(use_running_average=not training, activation=jax.nn.silu, splits=2)
  border = ((1, 0), (2, 1))
  bordered = functools.partial(run, Norm(border=border, **fields), lambda x: x)

  def plain(params, x):
    y, stats = run(Norm(**fields), lambda x: x, params, x)
    return jnp.pad(y, ((0, 0), *border, (0, 0))), stats

  arguments = VARIABLES["params"], random(4, 5, 6, 3)
  assert_equal(results_of(bordered, *arguments), results_of(plain, *arguments))


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (9, 6), (2, 3)])
def test_a_pool_sees_no_difference_between_a_border_and_padding(size):
  x = random(2, *size, 3)
  border = border_before_pool(x)
  assert_equal(drop_border(add_border(x, border), border), x)
  same, valid = (Conv(4, dtype=jnp.float64, padding=padding) for padding in (1, 0))
  params = same.init(jax.random.key(0), x)

  def padded(params, x):
    return max_pool(same.apply(params, x), 2), ()

  def bordered(params, x):
    y = valid.apply(params, add_border(x, border))
    assert y.shape[1:3] == tuple(side // 2 * 2 for side in size)  # only what the pool reads
    return max_pool(y, 2), ()

  assert_equal(results_of(bordered, params, x), results_of(padded, params, x))


@pytest.mark.parametrize("images", [16, 6, 5])
def test_sums_in_two_stages_are_sums(images):
  """The branch that a GPU takes, run here."""
  a, b = random(images, 2, 9, 4), random(images, 2, 9, 4, seed=1)
  assert_equal(_sums_of_parts(a, b), (a.sum(axis=(0, 2)), b.sum(axis=(0, 2))))


def test_sums_in_float16_are_those_of_float64():
  """Each of them computes its own derivative there."""
  x, grad = random(6, 5, 4, 3), random(6, 5, 4, 3, seed=1)

  def sums(dtype):
    images, of_result = (each.astype(jnp.float16).astype(dtype) for each in (x, grad))
    vectors = (each.astype(accumulation(dtype)) for each in VARIABLES["params"].values())
    _, kept = normalize_forward(images, *vectors, 2, 1e-5, jax.nn.silu)
    return gradient_sums(images, of_result, kept, 2, jax.nn.silu)

  for half, whole in zip(sums(jnp.float16), sums(jnp.float64), strict=True):
    assert_close(half, whole, terms=x.size)  # all but the images is in float32
