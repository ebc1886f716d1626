"""Batch norm with the activation after it, optionally in ghost batches."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation
from jaxspeed.errors import UserError
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import Activation, recompute, relu
from jaxspeed.models.layers.conv import Border, add_border, drop_border
from jaxspeed.models.layers.plain import or_plain


def ghosts(x, splits):
  """Reshape [n, h, w, c] to [n / splits, splits, h * w, c]: sample i is in split i mod splits."""
  n, h, w, c = x.shape
  return x.reshape(n // splits, splits, h * w, c)


def _activate(x, activation):
  return x if activation is None else activation(x)


@or_plain(plain.norm)
@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _norm(x, scale, bias, splits, epsilon, activation, border):
  return _norm_forward(x, scale, bias, splits, epsilon, activation, border)[0]


def _norm_forward(x, scale, bias, splits, epsilon, activation, border):
  (y, mean, var), kept = normalize_forward(x, scale, bias, splits, epsilon, activation)
  return (add_border(y, border), mean, var), kept


def two_sums(a, b):
  """Return the sums of two arrays [n, s, p, c] over n and p, on a GPU in one pass."""
  # XLA:CPU has no fast code for sums of pairs.
  return lax.platform_dependent(a, b, cpu=_sums_apart, default=_sum_of_pairs)


def _sums_apart(a, b):
  return a.sum(axis=(0, 2)), b.sum(axis=(0, 2))


def _sum_of_pairs(a, b):
  """Like `_sums_apart`, but a GPU finishes both sums in one kernel."""
  zero = jnp.zeros((), a.dtype)
  return lax.reduce((a, b), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0, 2))


def _sums_in_stages(a, b):
  """Like `two_sums`, for gradients behind an activation such as GELU.

  XLA:GPU does not compute derivatives with an exponential within a sum of pairs. It would write
  them in float32 before: 2 x 230 MB a step of airbench's 94_muon on an H100. Here each sum over a
  few images is one of its own, in one kernel, and another kernel finishes both.
  """
  return lax.platform_dependent(a, b, cpu=_sums_apart, default=_sums_of_parts)


# Images and pixels per part of a sum, at most; of larger parts XLA makes two kernels again.
_IMAGES, _PIXELS = 8, 512


def _sums_of_parts(a, b):
  n, splits, pixels, c = a.shape
  size = _IMAGES
  while size > 1 and (n % size or size * pixels > _PIXELS):
    size //= 2
  parts = [x.reshape(n // size, size, splits, pixels, c).sum(axis=(1, 3)) for x in (a, b)]
  # The barrier keeps XLA from making one sum of two again.
  first, second = lax.optimization_barrier(parts)
  return _sum_of_pairs(first[:, :, None], second[:, :, None])


def normalize_forward(x, scale, bias, splits, epsilon, activation):
  values = ghosts(x, splits).astype(accumulation(x.dtype))
  total, squares = two_sums(values, values * values)
  count = x.size // total.size
  mean = total / count
  # This form of the variance needs one pass over x; rounding must not make it negative.
  var = jnp.maximum(squares / count - mean * mean, 0)
  inverse = lax.rsqrt(var + epsilon)
  factor = (inverse * scale)[:, None]
  offset = (bias - mean * inverse * scale)[:, None]
  y = _activate(values * factor + offset, activation).astype(x.dtype).reshape(x.shape)
  return (y, mean, var), (x, mean, inverse, scale, bias)


def _norm_backward(splits, epsilon, activation, border, residuals, cotangents):
  x, grad = residuals[0], cotangents[0]
  sums = gradient_sums(x, drop_border(grad, border), residuals, splits, activation)
  # Behind the barrier, so that no kernel writes the gradient without its border.
  x, grad = recompute(x, grad)
  grad = drop_border(grad, border)
  grad_x = input_gradient(x, grad, residuals, sums, splits, activation, x.size // sums[0].size)
  return grad_x, sums[1].sum(axis=0), sums[0].sum(axis=0)


def _of_normed(x, grad, residuals, splits, activation):
  """Return the normalized input and the gradient of the norm's result before its activation."""
  _, mean, inverse, scale, bias = residuals
  dtype = accumulation(x.dtype)
  normed = (ghosts(x, splits).astype(dtype) - mean[:, None]) * inverse[:, None]
  grad = ghosts(grad, splits).astype(dtype)
  if activation is not None:
    grad = jax.vjp(activation, normed * scale + bias)[1](grad)[0]
  return normed, grad


def gradient_sums(x, grad, residuals, splits, activation):
  """Return the gradients of bias and scale of each ghost batch, [splits, c].

  Args:
    x, grad: the norm's input and its result's gradient, [n, h, w, c].
    residuals: what `normalize_forward` keeps.
    splits, activation: of the norm.
  """
  normed, of_normed = _of_normed(x, grad, residuals, splits, activation)
  if activation in (None, relu):
    return two_sums(of_normed, of_normed * normed)
  bias_terms = of_normed
  if x.dtype == jnp.float16:
    # That is for GPUs before Ampere. For a V100 XLA would write the derivative in float32, unless
    # each sum computes its own: 5.59 and 5.20 GB a step of cifar10.py (results/v100_step.json).
    x, grad = recompute(x, grad)
    normed, of_normed = _of_normed(x, grad, residuals, splits, activation)
  return _sums_in_stages(bias_terms, of_normed * normed)


def input_gradient(x, grad, residuals, sums, splits, activation, count):
  """Return the gradient of the norm's input in the shape and dtype of `x`.

  Args:
    x, grad, residuals, splits, activation: as in `gradient_sums`.
    sums: what `gradient_sums` returns.
    count: number of pixels over which a statistic was taken.
  """
  _, _, inverse, scale, _ = residuals
  normed, of_normed = _of_normed(x, grad, residuals, splits, activation)
  grad_bias, grad_scale = sums
  grad_x = (scale * inverse)[:, None] * (
    of_normed - (grad_bias[:, None] + normed * grad_scale[:, None]) / count
  )
  return grad_x.astype(x.dtype).reshape(x.shape)


_norm.defvjp(_norm_forward, _norm_backward)


class BatchNorm(nn.Module):
  """Fields, parameters and running statistics shared by `Norm` and its fused variants."""

  use_running_average: bool
  momentum: float = 0.9
  epsilon: float = 1e-5
  splits: int = 1
  train_scale: bool = True
  scale_init: nn.initializers.Initializer = nn.initializers.ones_init()

  def _variables(self, channels, dtype):
    """Return scale, bias, running mean and running variance for maps in `dtype`."""
    masters = accumulation(dtype)
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), masters)
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), masters)
    bias = self.param("bias", nn.initializers.zeros_init(), (channels,), masters)
    if self.train_scale:
      scale = self.param("scale", self.scale_init, (channels,), masters)
    else:
      scale = jnp.ones(channels, masters)
    return scale, bias, running_mean, running_var

  def _affine(self, scale, bias, running_mean, running_var):
    """Return the factor and the offset that evaluation uses."""
    factor = scale * lax.rsqrt(running_var.value + self.epsilon)
    return factor, bias - running_mean.value * factor

  def _evaluated(self, x, activation):
    """The norm of a map with the running statistics, and its activation."""
    factor, offset = self._affine(*self._variables(x.shape[-1], x.dtype))
    y = x.astype(accumulation(x.dtype)) * factor + offset
    return _activate(y, activation).astype(x.dtype)

  def _trained(self, function, x, normalized, *static):
    """The result of a fused norm, whose statistics are of a map of the shape `normalized`."""
    scale, bias, running_mean, running_var = self._variables(x.shape[-1], x.dtype)
    if x.shape[0] % self.splits:
      raise UserError(
        f"ghost batch norm: the batch of one device, {x.shape[0]}, does not divide into "
        f"{self.splits} ghost batches; choose a multiple of {self.splits}"
      )
    y, mean, var = function(x, scale, bias, self.splits, self.epsilon, *static)
    self._update(running_mean, running_var, mean, var, math.prod(normalized[:3]) // self.splits)
    return y

  def _update(self, running_mean, running_var, mean, var, count):
    if not self.is_initializing():
      unbiased = var * (count / max(count - 1, 1))
      keep = self.momentum
      running_mean.value = keep * running_mean.value + (1 - keep) * mean.mean(axis=0)
      running_var.value = keep * running_var.value + (1 - keep) * unbiased.mean(axis=0)


class Norm(BatchNorm):
  """Batch norm of one device's batch, in `splits` ghost batches, then `activation`.

  It takes and returns [n, h, w, c] in the dtype of the input, with a `border` larger by its zeros;
  statistics and arithmetic use the `accumulation` dtype. The running variance is unbiased, as in
  PyTorch.

  Sample i belongs to ghost batch i mod `splits`, as in cifar10-fast. That code keeps running
  statistics of each ghost batch and averages them to evaluate. Here only their average is kept,
  which is the same because the update is linear. One difference: its moving average of the model is
  evaluated with ghost batch 0 alone after its first epoch, ours with all of them.

  The backward pass keeps the input and vectors of one number per channel, nothing else of the size
  of `x`. The returned statistics get no gradient.

  `momentum` is the share kept of the running statistics (1 - PyTorch's momentum). Without
  `train_scale` the scale is 1 and not a parameter.

  Raises:
    UserError: the batch does not divide into `splits` parts (only in training).
  """

  activation: Activation | None = None
  border: Border | None = None

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
    if self.use_running_average:
      return add_border(self._evaluated(x, self.activation), self.border)
    return self._trained(_norm, x, x.shape, self.activation, self.border)
