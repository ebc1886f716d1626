"""Pools and activations with their gradients against PyTorch, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.models.layers.activations import add_relu, celu, gelu, relu
from jaxspeed.models.layers.pool import (
  blur_pool,
  global_max_pool,
  max_pool,
  max_pool_3x3,
  with_strided,
)

torch = pytest.importorskip("torch")
from torch_layers import assert_layer  # noqa: E402 (it needs torch)

functional = torch.nn.functional

pytestmark = [pytest.mark.equivalence, pytest.mark.usefixtures("float64")]


def random(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(
  "size, window",
  [
    ((8, 8), 2),
    ((31, 9), 2),
    ((7, 6), 3),
    ((4, 4), 4),
    *((size, "3x3") for size in ((8, 8), (7, 10), (1, 1), (2, 3))),
  ],
)
def test_max_pools_are_torchs_with_ties_and_odd_sizes(size, window):
  # Small whole numbers, none above 0 here and there: most windows hold a tie, at borders too.
  x = np.random.default_rng(0).integers(-2, 2, (2, *size, 3)).astype(np.float64)
  ours, arguments = functools.partial(max_pool, window=window), (window,)
  if window == "3x3":
    ours, arguments = max_pool_3x3, (3, 2, 1)
  assert_layer(
    ours, lambda x: functional.max_pool2d(x, *arguments), x, same=np.testing.assert_array_equal
  )


def test_max_pools_pass_nans_on():
  for k in range(9):
    x = random(9)
    x[k] = np.nan
    x = x.reshape(1, 3, 3, 1)
    assert np.isnan(max_pool(x, 3)).any()
    assert np.isnan(max_pool_3x3(x)).any()
    assert np.isnan(jax.vjp(max_pool_3x3, x)[0]).any()


def test_max_pool_3x3_keeps_its_dtype_and_sums_in_float32():
  # All of four windows choose the pixel (1, 1); one by one in bfloat16 256 + 1 is 256.
  x = jnp.zeros((1, 4, 4, 1), jnp.bfloat16).at[0, 1, 1, 0].set(1)
  y, pull = jax.vjp(max_pool_3x3, x)
  (grad,) = pull(jnp.array([256, 1, 1, 1], jnp.bfloat16).reshape(1, 2, 2, 1))
  assert y.dtype == grad.dtype == jnp.bfloat16
  assert float(grad[0, 1, 1, 0]) == float(jnp.bfloat16(259))
  assert jnp.count_nonzero(grad) == 1


@pytest.mark.parametrize("size", [(3, 5), (16, 16), (17, 17)])
def test_global_max_pool_is_the_maximum_of_each_map(size):
  x = random(2, *size, 4)
  np.testing.assert_array_equal(global_max_pool(x), x.max(axis=(1, 2)))
  grad = jax.grad(lambda x: global_max_pool(x).sum())(x)
  np.testing.assert_array_equal(grad, x == x.max(axis=(1, 2), keepdims=True))


@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (7, 10), (1, 1), (2, 3)])
def test_blur_pool_is_torchs(size, strides):
  line = torch.tensor([1.0, 2.0, 1.0]).double() / 4
  blur = torch.outer(line, line).expand(3, 1, 3, 3)

  def theirs(x):
    return functional.conv2d(x, blur, padding=1, stride=strides, groups=3)

  assert_layer(lambda x: blur_pool(x, strides), theirs, random(2, *size, 3))


@pytest.mark.parametrize("size, strides", [((8, 6), 2), ((7, 9), 2), ((7, 8), 3)])
def test_strided_pixels_have_the_gradient_of_their_slice(size, strides):
  def ours(x):
    whole, pixels = with_strided(x, strides)
    return jnp.sin(whole) + jnp.cos(pixels).sum()

  def theirs(x):
    return x.sin() + x[..., ::strides, ::strides].cos().sum()

  assert_layer(ours, theirs, random(2, *size, 3))


@pytest.mark.parametrize(
  "ours, theirs",
  [
    (gelu, functional.gelu),
    # PyTorch rounds alpha to float32 for its gradient: 0.25 is the same in both.
    (functools.partial(celu, alpha=0.25), functools.partial(functional.celu, alpha=0.25)),
  ],
  ids=["gelu", "celu"],
)
def test_activations_are_torchs(ours, theirs):
  assert_layer(ours, theirs, np.linspace(-9, 9, 400).reshape(2, 200))
  # At 0 the derivative is 1 from both sides.
  assert jax.grad(functools.partial(celu, alpha=0.3))(0.0) == 1


def test_relu_and_add_relu_have_torchs_gradients():
  x, shortcut = random(2, 3, 3, 4), random(2, 3, 3, 4, seed=2)
  x[0], shortcut[0, 1:] = 0, 0  # sums of 0 among them
  for ours in (add_relu, lambda x, shortcut: relu(x + shortcut)):
    theirs = lambda x, shortcut: torch.relu(x + shortcut)  # noqa: E731
    assert_layer(ours, theirs, x, shortcut, same=np.testing.assert_array_equal)
