"""Floating-point operations beside counts by hand and XLA's own."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxspeed.devices.flops import count_flops

convolve = functools.partial(
  lax.conv_general_dilated, padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
)
X = jax.ShapeDtypeStruct((2, 9, 9, 4), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 4, 6), jnp.float32)
# 7 x 7 places of 2 images, 6 channels, each with 3 x 3 x 4 products; with stride 2, 4 x 4 places.
ONE, STRIDED = 2 * 2 * 49 * 6 * 36, 2 * 2 * 16 * 6 * 36


def flops_of(function, *arguments):
  return count_flops(jax.jit(function).trace(*arguments).jaxpr)


def loss(x, kernel, stride):
  return convolve(x, kernel, (stride, stride)).sum()


def test_a_convolution_and_its_gradients():
  assert flops_of(lambda x, k: convolve(x, k, (1, 1)), X, KERNEL) == ONE
  grouped = jax.ShapeDtypeStruct((3, 3, 2, 6), jnp.float32)
  one = functools.partial(convolve, window_strides=(1, 1), feature_group_count=2)
  assert flops_of(one, X, grouped) == ONE / 2
  # The forward pass is not needed for the gradient of a sum, and a gradient has as many products.
  weights = jax.grad(functools.partial(loss, stride=1), argnums=1)
  assert flops_of(weights, X, KERNEL) == ONE
  strided = jax.grad(functools.partial(loss, stride=2), argnums=1)
  assert flops_of(strided, X, KERNEL) == STRIDED


def test_zeros_between_the_inputs_of_a_strided_gradient_are_no_products():
  images = jax.grad(functools.partial(loss, stride=2))
  # 81 places of input, of which each of the 9 x 4 x 6 weights meets a quarter.
  assert flops_of(images, X, KERNEL) == 2 * 2 * 81 * 4 * 54 / 4


def test_a_scan_counts_with_its_length_and_of_loops_and_branches_the_largest():
  a = jax.ShapeDtypeStruct((8, 8), jnp.float32)

  def scanned(a):
    return lax.scan(lambda carry, _: (carry @ a, None), a, length=7)[0]

  def chosen(a):
    return lax.cond(a[0, 0] > 0, lambda: a @ a @ a, lambda: a @ a)

  def an_epoch(a):
    """Steps of two kinds, as those of a run with a frozen whitening bias."""
    for number, power in ((5, 2), (9, 1)):
      step = functools.partial(
        lambda power, _, a: functools.reduce(jnp.matmul, [a] * power, a), power
      )
      a = lax.fori_loop(0, jnp.int32(a[0, 0]) + number, step, a)
    return a

  product = 2 * 8**3
  assert flops_of(scanned, a) == 7 * product
  assert flops_of(an_epoch, a) == 2 * product
  assert flops_of(chosen, a) == 2 * product
  assert flops_of(jax.checkpoint(lambda a: a @ a), a) == product


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_without_padding_it_is_xlas_count(strides):
  traced = jax.jit(functools.partial(convolve, window_strides=strides)).trace(X, KERNEL)
  assert count_flops(traced.jaxpr) == traced.lower().cost_analysis()["flops"]
