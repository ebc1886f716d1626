"""Batch norm with the activation after it, optionally in ghost batches."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation
from jaxspeed.errors import UserError
from jaxspeed.models.layers.activations import Activation, recompute


def ghosts(x, splits):
  """Reshape [n, h, w, c] to [n / splits, splits, h * w, c]: sample i is in split i mod splits."""
  n, h, w, c = x.shape
  return x.reshape(n // splits, splits, h * w, c)


def _activate(x, activation):
  return x if activation is None else activation(x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalize(x, scale, bias, splits, epsilon, activation):
  return normalize_forward(x, scale, bias, splits, epsilon, activation)[0]


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


def _normalize_backward(splits, epsilon, activation, residuals, cotangents):
  x, mean, inverse, scale, bias = residuals
  dtype = accumulation(x.dtype)

  def of_normed(x, grad):
    normed = (ghosts(x, splits).astype(dtype) - mean[:, None]) * inverse[:, None]
    grad = ghosts(grad, splits).astype(dtype)
    if activation is not None:
      grad = jax.vjp(activation, normed * scale + bias)[1](grad)[0]
    return normed, grad

  normed, grad = of_normed(x, cotangents[0])
  grad_bias, grad_scale = two_sums(grad, grad * normed)
  normed, grad = of_normed(*recompute(x, cotangents[0]))
  count = x.size // mean.size
  grad_x = (scale * inverse)[:, None] * (
    grad - (grad_bias[:, None] + normed * grad_scale[:, None]) / count
  )
  return grad_x.astype(x.dtype).reshape(x.shape), grad_scale.sum(axis=0), grad_bias.sum(axis=0)


_normalize.defvjp(normalize_forward, _normalize_backward)


class BatchNorm(nn.Module):
  """Fields, parameters and running statistics shared by `Norm` and its fused variants."""

  use_running_average: bool
  momentum: float = 0.9
  epsilon: float = 1e-5
  splits: int = 1
  train_scale: bool = True
  scale_init: nn.initializers.Initializer = nn.initializers.ones_init()

  def _check(self, images):
    if images % self.splits:
      raise UserError(
        f"ghost batch norm: the batch of one device, {images}, does not divide into "
        f"{self.splits} ghost batches; choose a multiple of {self.splits}"
      )

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

  def _update(self, running_mean, running_var, mean, var, count):
    if not self.is_initializing():
      unbiased = var * (count / max(count - 1, 1))
      keep = self.momentum
      running_mean.value = keep * running_mean.value + (1 - keep) * mean.mean(axis=0)
      running_var.value = keep * running_var.value + (1 - keep) * unbiased.mean(axis=0)


class Norm(BatchNorm):
  """Batch norm of one device's batch, in `splits` ghost batches, then `activation`.

  It takes and returns [n, h, w, c] in the dtype of the input; statistics and arithmetic use the
  `accumulation` dtype. The running variance is unbiased, as in PyTorch.

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

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h w c"]:
    variables = self._variables(x.shape[-1], x.dtype)
    if self.use_running_average:
      factor, offset = self._affine(*variables)
      y = x.astype(accumulation(x.dtype)) * factor + offset
      return _activate(y, self.activation).astype(x.dtype)

    self._check(x.shape[0])
    scale, bias, running_mean, running_var = variables
    y, mean, var = _normalize(x, scale, bias, self.splits, self.epsilon, self.activation)
    self._update(running_mean, running_var, mean, var, x.size // mean.size)
    return y
