"""Layers of the fast networks: convolution, (ghost) batch norm, pools, blur, CELU, whitening.

Activations are NHWC. Convolution kernels are kept as OHWI in float32, cuDNN's own layout, so that
a GPU transposes no weight and no gradient in a step.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspeed.errors import UserError

Activation = Callable[[Array], Array]

# PyTorch's default for convolutions, U(+-1/sqrt(fan_in)): `kaiming_uniform_` with a = sqrt(5).
conv_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=0)
dense_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


@jax.custom_jvp
def celu(x: Float[Array, "..."], alpha: float) -> Float[Array, "..."]:
  """CELU (Barron 2017): x above zero, alpha (exp(x / alpha) - 1) below; same shape as `x`."""
  return jnp.maximum(x, 0) + alpha * (jnp.exp(jnp.minimum(x, 0) / alpha) - 1)


@celu.defjvp
def _celu_jvp(primals, tangents):
  # One exponential, which XLA shares with the value.
  x, alpha = primals
  return celu(x, alpha), jnp.exp(jnp.minimum(x, 0) / alpha) * tangents[0]


@jax.custom_jvp
def relu(x: Float[Array, "..."]) -> Float[Array, "..."]:
  """max(x, 0); same shape as `x`, derivative 0 at 0.

  By the sign, where jax.nn.relu selects by a comparison: a GPU then writes no mask in the forward
  pass to read it in the backward one, in ResNet-50 at 224 pixels 2.5 of 92 GB a step.
  """
  return jnp.maximum(x, 0)


@relu.defjvp
def _relu_jvp(primals, tangents):
  y = relu(primals[0])
  return y, jnp.sign(y) * tangents[0]


@jax.custom_jvp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
  """GELU (Hendrycks and Gimpel 2016): x times the normal distribution function of x, exactly.

  By erf, a polynomial, where jax.nn.gelu takes erfc, which is two and an exponential.
  """
  return x * _normal_cdf(x)


@gelu.defjvp
def _gelu_jvp(primals, tangents):
  (x,) = primals
  cdf = _normal_cdf(x)
  density = jnp.exp(-0.5 * x * x) * (2 * jnp.pi) ** -0.5
  return x * cdf, (cdf + x * density) * tangents[0]


def _normal_cdf(x):
  return 0.5 * (1.0 + lax.erf(x * 0.5**0.5))


def _convolve(x, kernel, strides, padding):
  """Convolution of NHWC images with an OHWI kernel, as the backend runs it best."""
  on_cpu = functools.partial(_convolve_on_cpu, strides=strides, padding=padding)
  elsewhere = functools.partial(_convolve_with, layout="OHWI", strides=strides, padding=padding)
  if max(x.shape[1:3]) <= max(kernel.shape[1:3]) > 1 and strides == 1:
    elsewhere = functools.partial(_convolve_small_map, padding=padding)
  return lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_small_map(x, kernel, padding):
  """A convolution of maps no larger than its kernel, such as airbench's last, 3x3 of 3x3.

  XLA takes their weight gradient for a forward convolution and transposes both activations; of
  maps a row and a column larger it makes cuDNN's weight gradient.
  """
  return _convolve_with(x, kernel, "OHWI", 1, padding)


def _convolve_small_map_forward(x, kernel, padding):
  return _convolve_small_map(x, kernel, padding), (x, kernel)


def _convolve_small_map_backward(padding, residuals, grad):
  x, kernel = residuals

  def convolve(x, kernel):
    return _convolve_with(x, kernel, "OHWI", 1, padding)

  (grad_x,) = jax.vjp(lambda x: convolve(x, kernel), x)[1](grad)
  larger = ((0, 0), (0, 1), (0, 1), (0, 0))
  # Behind a barrier, or XLA folds the padding into the convolution and is where it was.
  x, grad = lax.optimization_barrier((jnp.pad(x, larger), jnp.pad(grad, larger)))
  (grad_kernel,) = jax.vjp(lambda kernel: convolve(x, kernel), kernel)[1](grad)
  return grad_x, grad_kernel


_convolve_small_map.defvjp(_convolve_small_map_forward, _convolve_small_map_backward)


def _convolve_with(x, kernel, layout, strides, padding):
  return lax.conv_general_dilated(
    x,
    kernel,
    window_strides=(strides, strides),
    padding=((padding, padding),) * 2,
    dimension_numbers=("NHWC", layout, "NHWC"),
  )


# Images whose weight gradient XLA:CPU computes at once. It transposes both operands, batch
# innermost; of 512 images that runs out of the first cache. Seconds of 512 images against 16
# chunks of 32: 64 -> 128 channels at 32 x 32 pixels 2.06 / 0.81, 128 -> 128 at 16 x 16 1.61 / 0.31.
_CHUNK = 32


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve_on_cpu(x, kernel, strides, padding):
  # XLA:CPU has a fast path for HWIO and a very slow one for the rest.
  return _convolve_with(x, kernel.transpose(1, 2, 3, 0), "HWIO", strides, padding)


def _convolve_on_cpu_forward(x, kernel, strides, padding):
  return _convolve_on_cpu(x, kernel, strides, padding), (x, kernel)


def _convolve_on_cpu_backward(strides, padding, residuals, grad):
  x, kernel = residuals
  hwio = kernel.transpose(1, 2, 3, 0)

  def convolve(x, kernel):
    return _convolve_with(x, kernel, "HWIO", strides, padding)

  with jax.named_scope("data_gradient"):
    (grad_x,) = jax.vjp(lambda x: convolve(x, hwio), x)[1](grad)
  # Unrolled: a loop around a convolution's gradient is 25 to 40 times slower here (jax 12868).
  parts = max(x.shape[0] // _CHUNK, 1)
  with jax.named_scope("weight_gradient"):
    grad_kernel = sum(
      jax.vjp(lambda kernel, part=part: convolve(part, kernel), hwio)[1](grad_part)[0]
      for part, grad_part in zip(
        jnp.array_split(x, parts), jnp.array_split(grad, parts), strict=True
      )
    )
  return grad_x, grad_kernel.transpose(3, 0, 1, 2)


_convolve_on_cpu.defvjp(_convolve_on_cpu_forward, _convolve_on_cpu_backward)


class Conv(nn.Module):
  """2-D convolution, [n, h, w, i] to [n, h', w', features], computed in `dtype`.

  The parameter `kernel` is float32 [features, kernel_size, kernel_size, i]. `padding` is a number
  of pixels on each side; None means kernel_size // 2, PyTorch's "same" for odd kernels.
  """

  features: int
  kernel_size: int = 3
  strides: int = 1
  padding: int | None = None
  use_bias: bool = False
  dtype: DTypeLike = jnp.float32
  kernel_init: nn.initializers.Initializer = conv_init

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    shape = (self.features, self.kernel_size, self.kernel_size, x.shape[-1])
    kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
    padding = self.kernel_size // 2 if self.padding is None else self.padding
    y = _convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.strides, padding)
    if self.use_bias:
      bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), jnp.float32)
      y = y + bias.astype(self.dtype)
    return y


def _ghosts(x, splits):
  """[n, h, w, c] to [n / splits, splits, h * w, c]: sample i is in ghost batch i mod splits."""
  n, h, w, c = x.shape
  return x.reshape(n // splits, splits, h * w, c)


def _activate(x, activation):
  return x if activation is None else activation(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalize(x, scale, bias, splits, epsilon, activation):
  return _normalize_forward(x, scale, bias, splits, epsilon, activation)[0]


def _unseen(*arrays):
  """The arrays, of which a GPU's compiler does not see that it had them before.

  What is made of them is then computed anew in the kernel that needs it, in place of being written
  in float32 and read again. A CPU rather reads: there the norm's backward pass would take 1.05 to
  1.4 times as long.
  """
  return lax.platform_dependent(
    *arrays, cpu=lambda *same: same, default=lambda *same: lax.optimization_barrier(same)
  )


def _two_sums(a, b):
  """Sums of two arrays [n, s, p, c] over n and p, in one pass."""
  # XLA:CPU has no fast code for sums of pairs.
  return lax.platform_dependent(a, b, cpu=_sums_apart, default=_sum_of_pairs)


def _sums_apart(a, b):
  return a.sum(axis=(0, 2)), b.sum(axis=(0, 2))


def _sum_of_pairs(a, b):
  """As `_sums_apart`; a GPU then finishes both sums in one kernel and not in two."""
  zero = jnp.zeros((), a.dtype)
  return lax.reduce((a, b), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0, 2))


def _normalize_forward(x, scale, bias, splits, epsilon, activation):
  values = _ghosts(x, splits).astype(jnp.float32)
  total, squares = _two_sums(values, values * values)
  count = x.size // total.size
  mean = total / count
  # One pass over x, and never below zero by rounding.
  var = jnp.maximum(squares / count - mean * mean, 0)
  inverse = lax.rsqrt(var + epsilon)
  factor = (inverse * scale)[:, None]
  offset = (bias - mean * inverse * scale)[:, None]
  y = _activate(values * factor + offset, activation).astype(x.dtype).reshape(x.shape)
  return (y, mean, var), (x, mean, inverse, scale, bias)


def _normalize_backward(splits, epsilon, activation, residuals, cotangents):
  x, mean, inverse, scale, bias = residuals

  def of_normed(x, grad):
    normed = (_ghosts(x, splits).astype(jnp.float32) - mean[:, None]) * inverse[:, None]
    grad = _ghosts(grad, splits).astype(jnp.float32)
    if activation is not None:
      grad = jax.vjp(activation, normed * scale + bias)[1](grad)[0]
    return normed, grad

  normed, grad = of_normed(x, cotangents[0])
  grad_bias, grad_scale = _two_sums(grad, grad * normed)
  normed, grad = of_normed(*_unseen(x, cotangents[0]))
  count = x.size // mean.size
  grad_x = (scale * inverse)[:, None] * (
    grad - (grad_bias[:, None] + normed * grad_scale[:, None]) / count
  )
  return grad_x.astype(x.dtype).reshape(x.shape), grad_scale.sum(axis=0), grad_bias.sum(axis=0)


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _product(a, b):
  """The sum over all pixels of a[p, i] b[p, j], in float32."""
  a, b = (x.reshape(-1, x.shape[-1]) for x in (a, b))
  # Of half precision the products are exact; of float32 a GPU would take TF32 by itself.
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  over_pixels = (((0,), (0,)), ((), ()))
  return lax.dot_general(a, b, over_pixels, precision, jnp.float32)


def _matmul(a, b):
  """A float32 product of small matrices."""
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _pointwise(x, matrix, offset):
  """A matrix [o, i] times each pixel, and an offset, on a GPU in one kernel with what follows."""
  y = _convolve(x, matrix.astype(x.dtype)[:, None, None], 1, 0)
  return y + offset.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _normalize_pointwise(x, kernel, scale, bias, shortcut, epsilon):
  """Batch norm of a 1x1 convolution that has at least as many outputs as inputs.

  With a `shortcut` it is added, and a ReLU follows. Returns also mean and variance.

  The statistics of y = W x are W m and the diagonal of W C W^T, with the mean m and the covariance
  C of x. So the norm is known before the convolution, and goes into its weights and its bias; the
  convolution's own output is never there. Neither is its gradient g: of the norm's three terms
  (g - mean g - y_hat mean(g y_hat)) / sigma the last is linear in x as well, and meets W in a
  matrix of the size of C.
  """
  return _normalize_pointwise_forward(x, kernel, scale, bias, shortcut, epsilon)[0]


def _normalize_pointwise_forward(x, kernel, scale, bias, shortcut, epsilon):
  weight, count = kernel[:, 0, 0], x.size // x.shape[-1]
  mean_x = jnp.sum(x, axis=(0, 1, 2), dtype=jnp.float32) / count
  spread = _matmul(weight, _product(x, x) / count - mean_x[:, None] * mean_x)
  mean = _matmul(weight, mean_x)
  var = jnp.maximum(jnp.sum(spread * weight, axis=1), 0)
  inverse = lax.rsqrt(var + epsilon)
  folded = ((scale * inverse)[:, None] * weight).astype(x.dtype)
  # What rounding the weights does to the mean is taken back.
  y = _pointwise(x, folded, bias - _matmul(folded.astype(jnp.float32), mean_x))
  if shortcut is not None:
    y = jnp.maximum(y + shortcut, 0)
  kept = (x, None if shortcut is None else y, weight, spread, mean_x, inverse, scale, folded)
  return (y, mean[None], var[None]), kept


def _normalize_pointwise_backward(epsilon, residuals, cotangents):
  x, y, weight, spread, mean_x, inverse, scale, folded = residuals
  count, grad = x.size // x.shape[-1], cotangents[0]
  if y is not None:
    (y,) = _unseen(y)
    grad = jnp.where(y > 0, grad, 0)
  grad_bias = jnp.sum(grad, axis=(0, 1, 2), dtype=jnp.float32)
  with jax.named_scope("weight_gradient"):
    product = _product(grad, x)
  product = product - grad_bias[:, None] * mean_x
  grad_scale = inverse * jnp.sum(weight * product, axis=1)
  share = (inverse * grad_scale)[:, None]
  grad_weight = (scale * inverse)[:, None] * (product - share * spread)
  mixed = _matmul(((scale * inverse / count)[:, None] * weight).T, -share * weight)
  mixed = mixed.astype(x.dtype)
  offset = -_matmul(mixed.astype(jnp.float32), mean_x)
  offset = offset - _matmul(grad_bias / count, folded.astype(jnp.float32))
  grad_x = _convolve(grad, folded.T[:, None, None], 1, 0) + _pointwise(x, mixed, offset)
  grad_kernel = grad_weight[:, None, None]
  return grad_x, grad_kernel, grad_scale, grad_bias, None if y is None else grad


_normalize_pointwise.defvjp(_normalize_pointwise_forward, _normalize_pointwise_backward)


@jax.custom_vjp
def add_relu(
  x: Float[Array, "n h w c"], shortcut: Float[Array, "n h w c"]
) -> Float[Array, "n h w c"]:
  """max(x + shortcut, 0), whose backward pass keeps what it returns and nothing else."""
  return jnp.maximum(x + shortcut, 0)


def _add_relu_forward(x, shortcut):
  y = add_relu(x, shortcut)
  return y, y


def _add_relu_backward(y, grad):
  # Seen, a GPU would add anew instead, which reads two arrays for one and takes the mask out of
  # the kernel of the norm's sums: in ResNet-50 at 224 pixels 4.6 of 97 GB a step.
  (y,) = _unseen(y)
  grad = jnp.where(y > 0, grad, 0)
  return grad, grad


add_relu.defvjp(_add_relu_forward, _add_relu_backward)


class _BatchNorm(nn.Module):
  """Fields, parameters and running statistics of `Norm` and of its sums with its neighbours."""

  use_running_average: bool
  momentum: float = 0.9
  epsilon: float = 1e-5
  splits: int = 1
  train_scale: bool = True
  scale_init: nn.initializers.Initializer = nn.initializers.ones_init()

  def _check(self, images):
    if images % self.splits:
      raise UserError(
        f"ghost batch norm: the batch of a device, {images}, does not divide into "
        f"{self.splits} ghost batches; choose a multiple of {self.splits}"
      )

  def _variables(self, channels):
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
    bias = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
    if self.train_scale:
      scale = self.param("scale", self.scale_init, (channels,), jnp.float32)
    else:
      scale = jnp.ones(channels, jnp.float32)
    return scale, bias, running_mean, running_var

  def _affine(self, scale, bias, running_mean, running_var):
    """Factor and offset that evaluation takes."""
    factor = scale * lax.rsqrt(running_var.value + self.epsilon)
    return factor, bias - running_mean.value * factor

  def _update(self, running_mean, running_var, mean, var, count):
    if not self.is_initializing():
      unbiased = var * (count / max(count - 1, 1))
      keep = self.momentum
      running_mean.value = keep * running_mean.value + (1 - keep) * mean.mean(axis=0)
      running_var.value = keep * running_var.value + (1 - keep) * unbiased.mean(axis=0)


class Norm(_BatchNorm):
  """Batch norm over what one device sees, in `splits` ghost batches, then `activation`.

  Takes and returns [n, h, w, c] in the dtype of the input; statistics and arithmetic are float32.
  Sample i belongs to ghost batch i mod `splits`, as in cifar10-fast, which keeps running
  statistics for each ghost batch and averages them to evaluate; the average is kept here, and
  since the update is linear the two agree. The running variance is unbiased, as PyTorch's.
  The backward pass keeps the input and vectors of a channel, nothing else of the size of `x`,
  and gives no gradient to the statistics it returns.

  `momentum` is the share of the old running statistics (1 - PyTorch's). Without `train_scale`
  the scale is 1 and no parameter.

  Raises:
    UserError: the batch does not divide into `splits` (training only).
  """

  activation: Activation | None = None

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w c"]:
    variables = self._variables(x.shape[-1])
    if self.use_running_average:
      factor, offset = self._affine(*variables)
      return _activate(x.astype(jnp.float32) * factor + offset, self.activation).astype(x.dtype)

    self._check(x.shape[0])
    scale, bias, running_mean, running_var = variables
    y, mean, var = _normalize(x, scale, bias, self.splits, self.epsilon, self.activation)
    self._update(running_mean, running_var, mean, var, x.size // mean.size)
    return y


class PointwiseKernel(nn.Module):
  """The parameter `kernel` of a 1x1 convolution whose norm computes it: `PointwiseNorm`."""

  features: int
  kernel_init: nn.initializers.Initializer = conv_init

  @nn.compact
  def __call__(self, inputs: int) -> Float[Array, "o 1 1 i"]:
    return self.param("kernel", self.kernel_init, (self.features, 1, 1, inputs), jnp.float32)


class PointwiseNorm(_BatchNorm):
  """A 1x1 convolution and its `Norm`, with a shortcut their sum and a ReLU: [n, h, w, i] to o.

  One kernel on a GPU, with no pass over the convolution's output for statistics or the norm's
  gradient: `_normalize_pointwise`. Not with ghost batches, whose statistics do not go into one set
  of weights.
  """

  @nn.compact
  def __call__(
    self,
    x: Float[Array, "n h w i"],
    kernel: Float[Array, "o 1 1 i"],
    shortcut: Float[Array, "n h w o"] | None = None,
  ) -> Float[Array, "n h w o"]:
    scale, bias, running_mean, running_var = self._variables(kernel.shape[0])
    if self.use_running_average:
      factor, offset = self._affine(scale, bias, running_mean, running_var)
      y = _pointwise(x, factor[:, None] * kernel[:, 0, 0], offset)
      return y if shortcut is None else jnp.maximum(y + shortcut, 0)
    y, mean, var = _normalize_pointwise(x, kernel, scale, bias, shortcut, self.epsilon)
    self._update(running_mean, running_var, mean, var, x.size // x.shape[-1])
    return y


def max_pool(x: Float[Array, "n h w c"], window: int) -> Float[Array, "n h2 w2 c"]:
  """Non-overlapping max pool; rows and columns beyond a multiple of `window` are left out.

  The first maximum of a window takes the gradient, as in PyTorch. The backward pass keeps one
  byte an output and writes in one pass: XLA's own is a scatter-add, slow on GPUs and CPUs.
  """
  with jax.named_scope("pool"):
    return _max_pool(x, (window, window))


def global_max_pool(x: Float[Array, "n h w c"]) -> Float[Array, "n c"]:
  """Maximum over each map, with the gradient of `max_pool`; 255 pixels at most."""
  with jax.named_scope("pool"):
    return _max_pool(x, x.shape[1:3])[:, 0, 0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x, window):
  return _max_pool_forward(x, window)[0]


def _max_pool_forward(x, window):
  (n, h, w, c), (high, wide) = x.shape, window
  rows, columns = h // high, w // wide
  tiles = x[:, : rows * high, : columns * wide].reshape(n, rows, high, columns, wide, c)
  best, place = tiles[:, :, 0, :, 0], jnp.zeros((n, rows, columns, c), jnp.uint8)
  for k in range(1, high * wide):
    candidate = tiles[:, :, k // wide, :, k % wide]
    place = jnp.where(candidate > best, jnp.uint8(k), place)
    best = jnp.maximum(best, candidate)
  return best, (place, (h, w))


def _max_pool_backward(window, residuals, grad):
  (place, (h, w)), (high, wide) = residuals, window
  n, rows, columns, c = grad.shape
  places = jnp.arange(high * wide, dtype=jnp.uint8).reshape(high, 1, wide, 1)
  tiles = jnp.where(place[:, :, None, :, None] == places, grad[:, :, None, :, None], 0)
  tiles = tiles.reshape(n, rows * high, columns * wide, c)
  grad_x = jnp.pad(tiles, ((0, 0), (0, h - rows * high), (0, w - columns * wide), (0, 0)))
  # XLA would write both this and the part without the padding, one for each of the convolution's
  # gradients.
  return (lax.optimization_barrier(grad_x),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def _shifted(x, down, right):
  """x[:, i + down, j + right] at i, j, with zeros beyond the end; shifts are 0 or 1."""
  return jnp.pad(x, ((0, 0), (0, down), (0, right), (0, 0)))[:, down:, right:]


def _interleaved(terms, shape):
  """Four arrays a pixel, [n, rows, 2, columns, 2, c], summed to one map cropped to `shape`."""
  total = sum(terms)
  n, rows, _, columns, _, c = total.shape
  return total.reshape(n, 2 * rows, 2 * columns, c)[:, : shape[0], : shape[1]]


def max_pool_3x3(x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
  """3x3 max pool of stride 2 over a border of -inf, 1 pixel wide: h2 = (h + 1) // 2.

  The first maximum of a window takes the gradient, as in PyTorch. The backward pass keeps one
  byte an output and gathers, in one kernel, where XLA's own gradient scatters: forward and
  backward of [256, 112, 112, 64] in bfloat16 are 2 kernels and 1.13 GB on an H100 for 5 and 4.99,
  and on a CPU a third of the time (results/stem_pool.json).
  """
  with jax.named_scope("pool"):
    return _max_pool_3x3(x)


@jax.custom_vjp
def _max_pool_3x3(x):
  # Without a gradient XLA's pool is the same kernel on a GPU and 0.4 of the time on a CPU.
  return lax.reduce_window(
    x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
  )


def _first_maxima(x, *others):
  """The maxima of 3x3 windows, their first places as bytes, and other arrays at these places."""
  _, h, w, _ = x.shape
  rows, columns = (h + 1) // 2, (w + 1) // 2
  border = ((0, 0), (1, 2 * rows - h), (1, 2 * columns - w), (0, 0))
  padded = [jnp.pad(x, border, constant_values=-jnp.inf), *(jnp.pad(y, border) for y in others)]

  def window_of(k: int) -> list[Array]:
    i, j = divmod(k, 3)
    return [y[:, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2] for y in padded]

  best = window_of(0)
  place = jnp.zeros(best[0].shape, jnp.uint8)
  for k in range(1, 9):
    window = window_of(k)
    larger = window[0] > best[0]
    place = jnp.where(larger, jnp.uint8(k), place)
    best = [jnp.maximum(window[0], best[0])] + [
      jnp.where(larger, new, old) for new, old in zip(window[1:], best[1:], strict=True)
    ]
  return best[0], place, *best[1:]


def _max_pool_3x3_forward(x):
  best, place = _first_maxima(x)
  return best, (place, x.shape[1:3])


def _max_pool_3x3_backward(residuals, grad):
  place, shape = residuals
  return (_to_first_maxima(place, shape, grad).astype(grad.dtype),)


# A place that is in no window.
_NOWHERE = 9


def _to_first_maxima(place, shape, grad):
  """The gradients of 3x3 windows at their places, summed in float32 on a map of a shape."""
  # A pixel lies in up to four windows: (i, j) of four by (p, q) pixels is place (1 + p, 1 + q) of
  # window (i, j), two less in the next. Odd pixels alone are in two windows.
  terms = []
  for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
    places = np.full((2, 1, 2, 1), 255, np.uint8)
    for p, q in ((p, q) for p in range(down, 2) for q in range(right, 2)):
      places[p, 0, q, 0] = 3 * (1 + p - 2 * down) + 1 + q - 2 * right
    here = _shifted(place, down, right)[:, :, None, :, None] == places
    value = _shifted(grad, down, right)[:, :, None, :, None].astype(jnp.float32)
    terms.append(jnp.where(here, value, 0))
  return _interleaved(terms, shape)


_max_pool_3x3.defvjp(_max_pool_3x3_forward, _max_pool_3x3_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _normalize_pool(x, scale, bias, splits, epsilon):
  """Batch norm, ReLU and `max_pool_3x3`; returns also mean and variance.

  The norm's gradient is 0 but at the maxima, so its sums need a quarter of the map: the input at
  the maxima, which the forward pass keeps.
  """
  return _normalize_pool_forward(x, scale, bias, splits, epsilon)[0]


def _normalize_pool_forward(x, scale, bias, splits, epsilon):
  (y, mean, var), (x, mean, inverse, scale, bias) = _normalize_forward(
    x, scale, bias, splits, epsilon, relu
  )
  best, place, x_best = _first_maxima(y, x)
  place = jnp.where(best > 0, place, jnp.uint8(_NOWHERE))
  best, place, x_best = _unseen(best, place, x_best)
  return (best, mean, var), (x, x_best, place, mean, inverse, scale)


def _normalize_pool_backward(splits, epsilon, residuals, cotangents):
  x, x_best, place, mean, inverse, scale = residuals
  grad, count = cotangents[0], x.size // mean.size

  def normed(x):
    return (_ghosts(x, splits).astype(jnp.float32) - mean[:, None]) * inverse[:, None]

  kept = _ghosts(jnp.where(place == _NOWHERE, 0, grad), splits).astype(jnp.float32)
  grad_bias, grad_scale = _two_sums(kept, kept * normed(x_best))
  spread = _ghosts(_to_first_maxima(place, x.shape[1:3], grad), splits)
  grad_x = (scale * inverse)[:, None] * (
    spread - (grad_bias[:, None] + normed(x) * grad_scale[:, None]) / count
  )
  return grad_x.astype(x.dtype).reshape(x.shape), grad_scale.sum(axis=0), grad_bias.sum(axis=0)


_normalize_pool.defvjp(_normalize_pool_forward, _normalize_pool_backward)


class PooledNorm(_BatchNorm):
  """`Norm`, ReLU and `max_pool_3x3`: [n, h, w, c] to half the side."""

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
    scale, bias, running_mean, running_var = self._variables(x.shape[-1])
    if self.use_running_average:
      factor, offset = self._affine(scale, bias, running_mean, running_var)
      return max_pool_3x3(relu(x.astype(jnp.float32) * factor + offset).astype(x.dtype))
    self._check(x.shape[0])
    y, mean, var = _normalize_pool(x, scale, bias, self.splits, self.epsilon)
    self._update(running_mean, running_var, mean, var, x.size // mean.size)
    return y


def blur_pool(x: Float[Array, "n h w c"], strides: int) -> Float[Array, "n h2 w2 c"]:
  """[1 2 1] x [1 2 1] / 16 over each channel with a border of zeros; a stride of 1 or 2.

  Zhang 2019, 1904.11486, with the border of libffcv/ffcv-imagenet, train_imagenet.py. As sums in
  float32, one kernel: convolutions of single channels are slow on GPUs.
  """
  with jax.named_scope("pool"):
    return _blur_pool(x, strides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _blur_pool(x, strides):
  _, h, w, _ = x.shape
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(jnp.float32)
  taps = [
    padded[:, i : i + h : strides, j : j + w : strides] * ((2 - abs(i - 1)) * (2 - abs(j - 1)) / 16)
    for i in range(3)
    for j in range(3)
  ]
  return functools.reduce(jnp.add, taps).astype(x.dtype)


def _blur_pool_forward(x, strides):
  return _blur_pool(x, strides), x.shape[1:3]


def _blur_pool_backward(strides, shape, grad):
  if strides == 1:
    return (_blur_pool(grad, 1),)  # its own transpose
  terms = []
  for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
    row, column = (np.array([0, 1] if shift else [2, 1], np.float32) for shift in (down, right))
    weights = np.outer(row, column).reshape(2, 1, 2, 1) / 16
    terms.append(_shifted(grad, down, right)[:, :, None, :, None].astype(jnp.float32) * weights)
  return (_interleaved(terms, shape).astype(grad.dtype),)


_blur_pool.defvjp(_blur_pool_forward, _blur_pool_backward)


def _whiten_on_cpu(x, kernel, padding):
  return _convolve_on_cpu(x, kernel.astype(x.dtype), 1, padding)


def _sum_of_products(x, kernel, padding):
  """A convolution as elementwise products, for few taps of few channels, in float32.

  A GPU does it, what follows and the cast in one kernel that reads the images once; cuDNN's is
  slow at 3 channels and leaves bias and activation a pass of their own: 141 MB a step of airbench.
  """
  # Behind the barrier: XLA could augment the images anew for every product.
  dtype, x = x.dtype, lax.optimization_barrier(x)
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))).astype(jnp.float32)
  _, high, wide, channels = kernel.shape
  rows, columns = x.shape[1] - high + 1, x.shape[2] - wide + 1
  y = sum(
    x[:, i : i + rows, j : j + columns, c : c + 1] * kernel[:, i, j, c]
    for i in range(high)
    for j in range(wide)
    for c in range(channels)
  )
  return y.astype(dtype)


class Whiten(nn.Module):
  """Frozen convolution whose `kernel` comes from `whitening_kernel`: [n, h, w, c] to `features`.

  The kernel is among the parameters, so that it is saved with them, but gets no gradient, and
  the weight gradient of a convolution of 3 channels, slow everywhere, is never computed. With a
  `bias_init` there is a trained `bias`, as in airbench.
  """

  features: int = 27
  patch: int = 3
  padding: int = 1
  bias_init: nn.initializers.Initializer | None = None
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 o"]:
    shape = (self.features, self.patch, self.patch, x.shape[-1])
    kernel = lax.stop_gradient(self.param("kernel", conv_init, shape, jnp.float32))
    x = lax.stop_gradient(x)
    y = lax.platform_dependent(
      x.astype(self.dtype),
      kernel,
      cpu=functools.partial(_whiten_on_cpu, padding=self.padding),
      default=functools.partial(_sum_of_products, padding=self.padding),
    )
    if self.bias_init is not None:
      bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
      y = y + bias.astype(self.dtype)
    return y


def whitening_kernel(
  images: Float[Array, "n h w c"],
  *,
  filters: int = 27,
  patch: int = 3,
  epsilon: float = 1e-2,
  centered: bool = False,
) -> Float[Array, "filters p p c"]:
  """Filters that decorrelate the patches of normalised float32 images.

  Filter i is the i-th eigenvector, largest first, of the covariance X^T X / (patches - 1) of all
  patches over sqrt(eigenvalue + epsilon): cifar10-fast, bag_of_tricks.ipynb. The covariance is
  about zero, or about the mean patch where `centered` (hlb-CIFAR10). Of 2 * patch * patch * c
  `filters` the second half are the negatives of the first (hlb-CIFAR10, airbench).
  The work is done 256 images at a time, in 26 MB at CIFAR-10's size, where all patches of
  10,000 images would fill 1 GB.
  """
  n, h, w, c = images.shape
  rows, columns, size = h - patch + 1, w - patch + 1, patch * patch * c
  chunk = min(n, 256)
  # Black images add nothing to a sum that is not centred.
  chunks = jnp.pad(images, ((0, -n % chunk), (0, 0), (0, 0), (0, 0))).reshape(-1, chunk, h, w, c)

  def add_chunk(total, chunk_images):
    shifted = [
      chunk_images[:, i : i + rows, j : j + columns] for i in range(patch) for j in range(patch)
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, size)
    products, sums = total
    product = jnp.matmul(patches.T, patches, precision=lax.Precision.HIGHEST)
    return (products + product, sums + patches.sum(axis=0)), None

  zero = jnp.zeros((size, size), jnp.float32), jnp.zeros((size,), jnp.float32)
  (products, sums), _ = lax.scan(add_chunk, zero, chunks)
  count = n * rows * columns
  if centered:
    products = products - jnp.outer(sums, sums) / count
  eigenvalues, vectors = jnp.linalg.eigh(products / (count - 1))
  rows_first = (vectors / jnp.sqrt(eigenvalues + epsilon))[:, ::-1].T
  kernel = rows_first.reshape(size, patch, patch, c)
  return kernel if filters == size else jnp.concatenate([kernel, -kernel])
