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
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import recompute
from jaxspeed.models.layers.plain import or_plain

# PyTorch's default for convolutions, U(+-1/sqrt(fan_in)): `kaiming_uniform_` with a = sqrt(5).
conv_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=0)
dense_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def uniform_init(fan_in: int) -> nn.initializers.Initializer:
  """PyTorch's default for a bias, and for the weights of a linear layer."""
  bound = fan_in**-0.5
  return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


@or_plain(plain.convolve)
def convolve(x, kernel, strides, padding):
  """Convolve NHWC images with an OHWI kernel, in the fastest form of the backend."""
  on_cpu = functools.partial(_convolve_on_cpu, strides=strides, padding=padding)
  elsewhere = functools.partial(plain.convolve, strides=strides, padding=padding)
  if max(x.shape[1:3]) <= max(kernel.shape[1:3]) > 1 and strides == 1:
    elsewhere = functools.partial(_convolve_small_map, padding=padding)
  return lax.platform_dependent(x, kernel, cpu=on_cpu, default=elsewhere)


def _convolve_on_cpu(x, kernel, strides, padding):
  """Convolve images that XLA:CPU has computed before.

  It drops optimization barriers, and would compute the norm and the pool before a convolution a
  second time in the transposed order of the weight gradient's operand. It repeats no division; by
  one, that changes no bit. CPU time of a step, two cores of an EPYC: ResNet-18 at 128 px 1.82 s
  without, 1.48 s with it, ResNet-9 3.7 and 3.2 s, 94_muon 2.5 and 2.4 s.
  """
  one = lax.stop_gradient(1 + 0 * kernel[0, 0, 0, 0])  # XLA cannot know that the kernel is finite
  return convolve_in_loops(x / one, kernel, strides, padding)


def convolve_in_loops(x, kernel, strides, padding):
  """As `plain.convolve`, in the one layout that XLA:CPU gives to Eigen inside a loop too.

  Evaluation is a loop over batches. With OHWI its convolutions take nine times as long on a CPU,
  since XLA brings them to HWIO outside of loops only.
  """
  return plain.convolve(x, kernel.transpose(1, 2, 3, 0), strides, padding, layout="HWIO")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve_small_map(x, kernel, padding):
  """Convolve maps no larger than the kernel, such as airbench's last: a 3x3 map and a 3x3 kernel.

  XLA mistakes their weight gradient for a forward convolution and transposes both activations. It
  uses cuDNN's weight gradient if the maps have one more row and column.
  """
  return plain.convolve(x, kernel, 1, padding)


def _convolve_small_map_forward(x, kernel, padding):
  return _convolve_small_map(x, kernel, padding), (x, kernel)


def _convolve_small_map_backward(padding, residuals, grad):
  x, kernel = residuals

  def convolve(x, kernel):
    return plain.convolve(x, kernel, 1, padding)

  (grad_x,) = jax.vjp(lambda x: convolve(x, kernel), x)[1](grad)
  larger = ((0, 0), (0, 1), (0, 1), (0, 0))
  # The barrier keeps XLA from folding the padding into the convolution, which would undo it.
  x, grad = lax.optimization_barrier((jnp.pad(x, larger), jnp.pad(grad, larger)))
  (grad_kernel,) = jax.vjp(lambda kernel: convolve(x, kernel), kernel)[1](grad)
  return grad_x, grad_kernel


_convolve_small_map.defvjp(_convolve_small_map_forward, _convolve_small_map_backward)


# Zeros around a map: rows above and below, columns left and right. The kernel that writes the map
# writes them, and the next convolution pads nothing: cuDNN pads all sides alike, and before another
# padding XLA copies the map.
Border = tuple[tuple[int, int], tuple[int, int]]


def border_before_pool(x: Float[Array, "n h w c"]) -> Border:
  """Return the zeros with which a 3x3 convolution gives a 2x2 max pool what it reads, no more.

  The pool ignores the last row and column of a map with odd sides. With one row and one column less
  of zeros the convolution does not compute them: 30 x 30 of 31 x 31 pixels, 14 x 14 of 15 x 15 and
  6 x 6 of 7 x 7 are 10.8 % of the operations of airbench's convolutions.
  """
  _, h, w, _ = x.shape
  return (1, 1 - h % 2), (1, 1 - w % 2)


def border_before_stride(x: Float[Array, "n h w c"]) -> Border:
  """Return the zeros that a 3x3 convolution of stride 2 reads with 1 pixel of padding, no more."""
  _, h, w, _ = x.shape
  return (1, h % 2), (1, w % 2)


@or_plain(plain.add_border)
def add_border(x: Float[Array, "n h w c"], border: Border | None) -> Float[Array, "n h2 w2 c"]:
  """Return `x` with its border of zeros."""
  if border is None:
    return x
  # Without the barrier XLA would fold the zeros into the convolution, and copy the map before it.
  (x,) = recompute(jnp.pad(x, ((0, 0), *border, (0, 0))))
  return x


def drop_border(x: Float[Array, "n h2 w2 c"], border: Border | None) -> Float[Array, "n h w c"]:
  """Return `x` without its border."""
  if border is None:
    return x
  (top, bottom), (left, right) = border
  return x[:, top : x.shape[1] - bottom, left : x.shape[2] - right]


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
  dtype: DTypeLike = jnp.float32
  kernel_init: nn.initializers.Initializer = conv_init

  @nn.compact
  def __call__(self, x: Float[Array, "n h w i"]) -> Float[Array, "n h2 w2 o"]:
    shape = (self.features, self.kernel_size, self.kernel_size, x.shape[-1])
    masters = accumulation(self.dtype)
    kernel = self.param("kernel", self.kernel_init, shape, masters)
    padding = self.kernel_size // 2 if self.padding is None else self.padding
    return convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.strides, padding)
