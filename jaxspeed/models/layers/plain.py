"""Every layer of the speed recipes in plain JAX, which derives the gradients.

The fused forms in the other files compute the same, with the same arguments, in fewer passes over
memory; `config.model.layers` chooses (`or_plain`). SiLU, linear layers and vision transformers have
one form. Maps are [n, h, w, c], kernels [o, h, w, i], sums in the `accumulation` dtype, and what a
layer returns is rounded to the dtype of its input.
"""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxspeed.devices.precision import accumulation


def convolve(x, kernel, strides, padding, layout="OHWI"):
  """A convolution, with a border of zeros `padding` pixels wide."""
  return lax.conv_general_dilated(
    x, kernel, (strides,) * 2, ((padding,) * 2,) * 2, dimension_numbers=("NHWC", layout, "NHWC")
  )


def whiten(x, kernel, strides, padding):
  """The convolution with frozen filters, in the dtype of the images (cifar10-fast, airbench)."""
  return convolve(x, kernel.astype(x.dtype), strides, padding)


# Barron 2017; with the derivative 0 at 0; Hendrycks and Gimpel 2016.
celu, relu, gelu = jax.nn.celu, jax.nn.relu, functools.partial(jax.nn.gelu, approximate=False)


def add_relu(x, shortcut, conv_fusion=False):
  """The end of a residual block (He et al. 2015); `conv_fusion` is for the fused form."""
  return relu(x + shortcut)


def add_border(x, border):
  """`x` with zeros in ((above, below), (left, right)); None: none."""
  return x if border is None else jnp.pad(x, ((0, 0), *border, (0, 0)))


def _max_over(x, window, strides, padding):
  """Maxima of windows; the first maximum of a window gets the gradient, as in PyTorch."""
  sides, steps = (1, *window, 1), (1, *strides, 1)
  around = ((0, 0), (padding,) * 2, (padding,) * 2, (0, 0))
  return lax.reduce_window(x, -jnp.inf, lax.max, sides, steps, around)


def max_pool(x, window):
  """Maxima of windows beside each other; the rest of an odd side is left out."""
  return _max_over(x, (window,) * 2, (window,) * 2, 0)


def max_pool_3x3(x):
  """The pool of ResNet's stem: 3x3 windows at every second pixel."""
  return _max_over(x, (3, 3), (2, 2), 1)


def global_max_pool(x):
  """The maximum over each map, [n, c]."""
  return _max_over(x, x.shape[1:3], (1, 1), 0)[:, 0, 0]


def with_strided(x, strides):
  """`x`, and its pixels that a 1x1 convolution of this stride reads."""
  return x, x[:, ::strides, ::strides]


def blur_pool(x, strides):
  """Each channel times [1 2 1] x [1 2 1] / 16, which is [1 1] x [1 1] twice (Zhang 2019)."""
  values, window = x.astype(accumulation(x.dtype)), (1, 2, 2, 1)
  padding = ((0, 0), (1, 1), (1, 1), (0, 0))
  once = lax.reduce_window(values, 0.0, lax.add, window, (1, 1, 1, 1), padding)
  y = lax.reduce_window(once, 0.0, lax.add, window, (1, strides, strides, 1), "VALID")
  return (y / 16).astype(x.dtype)


def norm(x, scale, bias, splits, epsilon, activation=None, border=None):
  """Batch norm (Ioffe and Szegedy 2015), its activation, and a border for the next convolution.

  Each of `splits` ghost batches (Hoffer et al. 2017) is normalized by itself; image i is in number
  i mod splits. Also returns their means and variances, [splits, c], for the running statistics.
  """
  n, h, w, c = x.shape
  values = x.reshape(n // splits, splits, h, w, c).astype(accumulation(x.dtype))
  mean, var = values.mean((0, 2, 3)), values.var((0, 2, 3))
  centered = values - mean[:, None, None]
  y = centered * (lax.rsqrt(var + epsilon) * scale)[:, None, None] + bias
  y = y if activation is None else activation(y)
  return add_border(y.astype(x.dtype).reshape(x.shape), border), mean, var


def max_pool_norm(x, scale, bias, splits, epsilon, activation):
  """airbench's order: a 2x2 max pool, norm, activation."""
  return norm(max_pool(x, 2), scale, bias, splits, epsilon, activation)


def norm_relu_max_pool(x, scale, bias, splits, epsilon):
  """The rest of ResNet's stem: norm, ReLU and `max_pool_3x3`."""
  y, mean, var = norm(x, scale, bias, splits, epsilon, relu)
  return max_pool_3x3(y), mean, var


def conv1x1_norm(x, kernel, scale, bias, shortcut, epsilon, conv_fusion=False):
  """A 1x1 convolution and its norm; with a shortcut, its sum and a ReLU."""
  y, mean, var = norm(convolve(x, kernel.astype(x.dtype), 1, 0), scale, bias, 1, epsilon)
  return (y if shortcut is None else add_relu(y, shortcut)), mean, var


Layers = Literal["auto", "fused", "plain"]
_Function = TypeVar("_Function", bound=Callable[..., Any])

FORM = contextvars.ContextVar[Layers]("layers", default="fused")  # of what is traced now


def or_plain(plain: Callable[..., Any]) -> Callable[[_Function], _Function]:
  """A decorator of a fused layer, for `plain` with the same arguments in place of it."""

  def decorate(fused: _Function) -> _Function:
    @functools.wraps(fused)
    def either(*args: Any, **kwargs: Any) -> Any:
      return (plain if FORM.get() == "plain" else fused)(*args, **kwargs)

    for define in ("defjvp", "defvjp"):  # of the fused form's derivative
      if hasattr(fused, define):
        setattr(either, define, getattr(fused, define))
    return either  # type: ignore[return-value]

  return decorate


def with_layers(call: _Function) -> _Function:
  """A decorator of a model's `__call__`, for the form in `layers`; "auto" is fused here."""

  @functools.wraps(call)
  def chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
    token = FORM.set(self.layers)
    try:
      return call(self, *args, **kwargs)
    finally:
      FORM.reset(token)

  return chosen  # type: ignore[return-value]
