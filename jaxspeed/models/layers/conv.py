"""Convolutions in the form that is fastest on each backend.

Activations are NHWC. Kernels are stored as OHWI in float32, cuDNN's own layout, so that a GPU
transposes no weight and no gradient in a step.
"""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation

# PyTorch's default for convolutions, U(+-1/sqrt(fan_in)): `kaiming_uniform_` with a = sqrt(5).
conv_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=0)
dense_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def convolve(x, kernel, strides, padding):
  """Convolve NHWC images with an OHWI kernel, in the fastest form of the backend."""
  on_cpu = functools.partial(convolve_on_cpu, strides=strides, padding=padding)
  elsewhere = functools.partial(_convolve_with, layout="OHWI", strides=strides, padding=padding)
  if max(x.shape[1:3]) <= max(kernel.shape[1:3]) > 1 and strides == 1:
    elsewhere = functools.partial(_convolve_small_map, padding=padding)
  return lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_small_map(x, kernel, padding):
  """Convolve maps no larger than the kernel, such as airbench's last: a 3x3 map and a 3x3 kernel.

  XLA mistakes their weight gradient for a forward convolution and transposes both activations. It
  uses cuDNN's weight gradient if the maps have one more row and column.
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
  # The barrier keeps XLA from folding the padding into the convolution, which would undo it.
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


# Images per weight gradient on XLA:CPU. It transposes both operands to put the batch innermost;
# with 512 images they do not fit the L1 cache. Seconds for 512 images at once / in 16
# chunks of 32: 64 -> 128 channels at 32 x 32 pixels 2.06 / 0.81, 128 -> 128 at 16 x 16 1.61 / 0.31.
_CHUNK = 32


# Traced once for all parts of one shape: 1,152 traces took 2.4 s of a start of cifar10.py.
@functools.partial(jax.jit, static_argnums=(3, 4), inline=True)
def _weight_gradient(x, kernel, grad, strides, padding):
  def convolve(kernel):
    return _convolve_with(x, kernel, "HWIO", strides, padding)

  return jax.linear_transpose(convolve, kernel)(grad)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve_on_cpu(x, kernel, strides, padding):
  # XLA:CPU has a fast path for HWIO and is very slow with other layouts.
  return _convolve_with(x, kernel.transpose(1, 2, 3, 0), "HWIO", strides, padding)


def _convolve_on_cpu_forward(x, kernel, strides, padding):
  return convolve_on_cpu(x, kernel, strides, padding), (x, kernel)


def _convolve_on_cpu_backward(strides, padding, residuals, grad):
  x, kernel = residuals
  hwio = kernel.transpose(1, 2, 3, 0)

  def convolve(x, kernel):
    return _convolve_with(x, kernel, "HWIO", strides, padding)

  with jax.named_scope("data_gradient"):
    (grad_x,) = jax.vjp(lambda x: convolve(x, hwio), x)[1](grad)
  # Unrolled: a loop around a convolution's gradient is 25 to 40 times slower (jax issue 12868).
  size, larger = divmod(x.shape[0], parts := max(x.shape[0] // _CHUNK, 1))
  sizes = [size + 1] * larger + [size] * (parts - larger)
  with jax.named_scope("weight_gradient"):
    grad_kernel = sum(
      _weight_gradient(part, hwio, grad_part, strides, padding)
      for part, grad_part in zip(lax.split(x, sizes), lax.split(grad, sizes), strict=True)
    )
  return grad_x, grad_kernel.transpose(3, 0, 1, 2)


convolve_on_cpu.defvjp(_convolve_on_cpu_forward, _convolve_on_cpu_backward)


class Conv(nn.Module):
  """2-D convolution from [n, h, w, i] to [n, h', w', features], computed in `dtype`.

  The parameter `kernel` is [features, kernel_size, kernel_size, i] in the `accumulation` dtype.
  `padding` is a number of pixels on each side; None means kernel_size // 2, PyTorch's "same" for
  odd kernels.
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
    masters = accumulation(self.dtype)
    kernel = self.param("kernel", self.kernel_init, shape, masters)
    padding = self.kernel_size // 2 if self.padding is None else self.padding
    y = convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.strides, padding)
    if self.use_bias:
      bias = self.param("bias", nn.initializers.zeros_init(), (self.features,), masters)
      y = y + bias.astype(self.dtype)
    return y
