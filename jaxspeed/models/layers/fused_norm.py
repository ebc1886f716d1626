"""Batch norm fused with the 1x1 convolution before it, or with a pool before or after it."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import Activation, recompute, relu, where_positive
from jaxspeed.models.layers.conv import conv_init, convolve
from jaxspeed.models.layers.norm import (
  BatchNorm,
  ghosts,
  gradient_sums,
  input_gradient,
  normalize_forward,
  two_sums,
)
from jaxspeed.models.layers.plain import or_plain
from jaxspeed.models.layers.pool import (
  NOWHERE,
  at_maxima,
  first_maxima,
  max_pool,
  max_pool_3x3,
  max_pool_forward,
  to_first_maxima,
)


def _product(a, b):
  """Return the sum over all pixels p of a[p, i] b[p, j], in the accumulation dtype."""
  a, b = (x.reshape(-1, x.shape[-1]) for x in (a, b))
  # Products of half precision are exact; for float32 a GPU would use TF32 by default.
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  over_pixels = (((0,), (0,)), ((), ()))
  return lax.dot_general(a, b, over_pixels, precision, accumulation(a.dtype))


def _matmul(a, b):
  """Multiply small matrices in full precision."""
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _conv1x1(x, matrix, offset):
  """Multiply each pixel by a matrix [o, i] and add an offset; a GPU fuses the next operations.

  After the i channels, x may have ones (`_with_ones`); the offset is then the weight of the first.
  """
  matrix, offset = matrix.astype(x.dtype), offset.astype(x.dtype)
  if ones := x.shape[-1] - matrix.shape[1]:
    matrix = jnp.concatenate([matrix, jnp.pad(offset[:, None], ((0, 0), (0, ones - 1)))], axis=1)
    return convolve(x, matrix[:, None, None], 1, 0)
  return convolve(x, matrix[:, None, None], 1, 0) + offset


def _with_ones(x):
  """Append 8 channels of ones to x, in the kernel that writes x: cuDNN needs a multiple of 8."""
  (x,) = recompute(jnp.pad(x, ((0, 0),) * 3 + ((0, 8),), constant_values=1))
  return x


@or_plain(plain.conv1x1_norm)
@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _conv1x1_norm(x, kernel, scale, bias, shortcut, epsilon, conv_fusion):
  """1x1 convolution and batch norm, for outputs >= inputs; also returns mean and variance.

  A `shortcut` is added to the result, and a ReLU follows.

  The mean and variance of y = W x are W m and the diagonal of W C W^T, with the mean m and the
  covariance C of x. So the norm is known before the convolution and is folded into its weights and
  bias; y itself is never computed. Nor is its gradient, (g - mean g - y_hat mean(g y_hat)) / sigma:
  its last term is linear in x too, and becomes a matrix of the size of C.

  With `conv_fusion`, x has a channel of ones. The products that give C and the gradient of W then
  give m and the bias's gradient too, in a pass less over x and g, and offsets are weights.
  """
  return _conv1x1_norm_forward(x, kernel, scale, bias, shortcut, epsilon, conv_fusion)[0]


def _conv1x1_norm_forward(x, kernel, scale, bias, shortcut, epsilon, conv_fusion):
  weight, count, dtype = kernel[:, 0, 0], x.size // x.shape[-1], accumulation(x.dtype)
  inputs = x.shape[-1]
  if conv_fusion:
    x = _with_ones(x)
  products = _product(x, x) / count
  if conv_fusion:
    products, mean_x = products[:inputs, :inputs], products[:inputs, inputs]
  else:
    mean_x = jnp.sum(x, axis=(0, 1, 2), dtype=dtype) / count
  spread = _matmul(weight, products - mean_x[:, None] * mean_x)
  mean = _matmul(weight, mean_x)
  var = jnp.maximum(jnp.sum(spread * weight, axis=1), 0)
  inverse = lax.rsqrt(var + epsilon)
  folded = ((scale * inverse)[:, None] * weight).astype(x.dtype)
  # The offset uses the rounded weights, so that rounding does not shift the mean.
  y = _conv1x1(x, folded, bias - _matmul(folded.astype(dtype), mean_x))
  if shortcut is not None:
    y = jnp.maximum(y + shortcut, 0)
  kept = (x, None if shortcut is None else y, weight, spread, mean_x, inverse, scale, folded)
  return (y, mean[None], var[None]), kept


def _conv1x1_norm_backward(epsilon, conv_fusion, residuals, cotangents):
  x, y, weight, spread, mean_x, inverse, scale, folded = residuals
  count, grad, dtype = x.size // x.shape[-1], cotangents[0], accumulation(x.dtype)
  if y is not None:
    grad = where_positive(y, grad, as_product=conv_fusion)
  with jax.named_scope("weight_gradient"):
    product = _product(grad, x)
  if conv_fusion:
    inputs = weight.shape[1]
    product, grad_bias = product[:, :inputs], product[:, inputs]
  else:
    grad_bias = jnp.sum(grad, axis=(0, 1, 2), dtype=dtype)
  product = product - grad_bias[:, None] * mean_x
  grad_scale = inverse * jnp.sum(weight * product, axis=1)
  share = (inverse * grad_scale)[:, None]
  grad_weight = (scale * inverse)[:, None] * (product - share * spread)
  mixed = _matmul(((scale * inverse / count)[:, None] * weight).T, -share * weight)
  mixed = mixed.astype(x.dtype)
  offset = -_matmul(mixed.astype(dtype), mean_x)
  offset = offset - _matmul(grad_bias / count, folded.astype(dtype))
  grad_x = convolve(grad, folded.T[:, None, None], 1, 0) + _conv1x1(x, mixed, offset)
  grad_kernel = grad_weight[:, None, None]
  return grad_x, grad_kernel, grad_scale, grad_bias, None if y is None else grad


_conv1x1_norm.defvjp(_conv1x1_norm_forward, _conv1x1_norm_backward)


class Conv1x1Kernel(nn.Module):
  """The parameter `kernel` of a 1x1 convolution that `Conv1x1Norm` computes."""

  features: int
  kernel_init: nn.initializers.Initializer = conv_init
  dtype: DTypeLike = jnp.float32  # the model's dtype

  @nn.compact
  def __call__(self, inputs: int) -> Float[Array, "o 1 1 i"]:
    shape = (self.features, 1, 1, inputs)
    return self.param("kernel", self.kernel_init, shape, accumulation(self.dtype))


class Conv1x1Norm(BatchNorm):
  """A 1x1 convolution and its `Norm`, [n, h, w, i] to [n, h, w, o]; with a shortcut, add and ReLU.

  A GPU runs it in one kernel, without a pass over the convolution's output for statistics or the
  norm's gradient (`_conv1x1_norm`, which `conv_fusion` goes to). It does not support ghost
  batches, because their statistics do not fit into one set of weights.
  """

  conv_fusion: bool = False

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "n h w i"],
    kernel: Float[Array, "o 1 1 i"],
    shortcut: Float[Array, "n h w o"] | None = None,
  ) -> Float[Array, "n h w o"]:
    scale, bias, running_mean, running_var = self._variables(kernel.shape[0], x.dtype)
    if self.use_running_average:
      factor, offset = self._affine(scale, bias, running_mean, running_var)
      y = _conv1x1(x, factor[:, None] * kernel[:, 0, 0], offset)
      return y if shortcut is None else jnp.maximum(y + shortcut, 0)
    static = self.epsilon, self.conv_fusion
    y, mean, var = _conv1x1_norm(x, kernel, scale, bias, shortcut, *static)
    self._update(running_mean, running_var, mean, var, x.size // x.shape[-1])
    return y


@or_plain(plain.norm_relu_max_pool)
@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _norm_relu_max_pool(x, scale, bias, splits, epsilon):
  """Batch norm, ReLU and `max_pool_3x3`; also returns mean and variance.

  The gradient of the norm's output is 0 except at the maxima. So its sums need only a quarter of
  the map: the input at the maxima, which the forward pass keeps.
  """
  return _norm_relu_max_pool_forward(x, scale, bias, splits, epsilon)[0]


def _norm_relu_max_pool_forward(x, scale, bias, splits, epsilon):
  (y, mean, var), (x, mean, inverse, scale, bias) = normalize_forward(
    x, scale, bias, splits, epsilon, relu
  )
  best, place, x_best = first_maxima(y, x)
  place = jnp.where(best > 0, place, jnp.uint8(NOWHERE))
  best, place, x_best = recompute(best, place, x_best)
  return (best, mean, var), (x, x_best, place, mean, inverse, scale)


def _norm_relu_max_pool_backward(splits, epsilon, residuals, cotangents):
  x, x_best, place, mean, inverse, scale = residuals
  grad, count, dtype = cotangents[0], x.size // mean.size, accumulation(x.dtype)

  def normed(x):
    return (ghosts(x, splits).astype(dtype) - mean[:, None]) * inverse[:, None]

  kept = ghosts(jnp.where(place == NOWHERE, 0, grad), splits).astype(dtype)
  grad_bias, grad_scale = two_sums(kept, kept * normed(x_best))
  spread = ghosts(to_first_maxima(place, x.shape[1:3], grad), splits)
  grad_x = (scale * inverse)[:, None] * (
    spread - (grad_bias[:, None] + normed(x) * grad_scale[:, None]) / count
  )
  return grad_x.astype(x.dtype).reshape(x.shape), grad_scale.sum(axis=0), grad_bias.sum(axis=0)


_norm_relu_max_pool.defvjp(_norm_relu_max_pool_forward, _norm_relu_max_pool_backward)


class NormReluMaxPool(BatchNorm):
  """`Norm`, ReLU and `max_pool_3x3`: [n, h, w, c] to maps of half the side."""

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
    if self.use_running_average:
      return max_pool_3x3(self._evaluated(x, relu))
    return self._trained(_norm_relu_max_pool, x, x.shape)


@or_plain(plain.max_pool_norm)
@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _max_pool_norm(x, scale, bias, splits, epsilon, activation):
  """2x2 max pool, batch norm and activation; also returns mean and variance."""
  return _max_pool_norm_forward(x, scale, bias, splits, epsilon, activation)[0]


def _max_pool_norm_forward(x, scale, bias, splits, epsilon, activation):
  with jax.named_scope("pool"):
    best, (place, sides) = max_pool_forward(x, (2, 2))
    best, place = recompute(best, place)
  results, kept = normalize_forward(best, scale, bias, splits, epsilon, activation)
  return results, (kept, (place, sides))


def _max_pool_norm_backward(splits, epsilon, activation, residuals, cotangents):
  (kept, places), grad = residuals, cotangents[0]
  best = kept[0]
  sums = gradient_sums(best, grad, kept, splits, activation)
  # Each pixel of a window computes the norm's gradient for itself. So the kernel that writes the
  # pool's gradient takes it from two small maps, and none of it is written between.
  best, grad = (_in_windows(x) for x in recompute(best, grad))
  count = kept[0].size // sums[0].size
  grad_x = input_gradient(best, grad, kept, sums, splits, activation, count)
  with jax.named_scope("pool"):
    n, rows, columns, c = kept[0].shape
    grad_x = at_maxima(grad_x.reshape(n, rows, 2, columns, 2, c), places, (2, 2))
  return grad_x, sums[1].sum(axis=0), sums[0].sum(axis=0)


def _in_windows(x):
  """Repeat each pixel of [n, h, w, c] in its window: [n, 2 h, 2 w, c]."""
  n, rows, columns, c = x.shape
  tiles = jnp.broadcast_to(x[:, :, None, :, None], (n, rows, 2, columns, 2, c))
  return tiles.reshape(n, 2 * rows, 2 * columns, c)


_max_pool_norm.defvjp(_max_pool_norm_forward, _max_pool_norm_backward)


class MaxPoolNorm(BatchNorm):
  """`max_pool` in windows of 2x2, then `Norm` with `activation`: [n, h, w, c] to half the side.

  Its backward pass writes one map, the input's gradient, and reads two of a quarter of its size.
  """

  activation: Activation | None = None

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
    if self.use_running_average:
      return self._evaluated(max_pool(x, 2), self.activation)
    n, h, w, _ = x.shape
    return self._trained(_max_pool_norm, x, (n, h // 2, w // 2), self.activation)
