"""Max pools without a scatter in their backward pass, blur pool, and every second pixel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.activations import recompute
from jaxspeed.models.layers.plain import or_plain

# Positions that one byte can encode.
_BYTE = 256


@or_plain(plain.max_pool)
def max_pool(x: Float[Array, "n h w c"], window: int) -> Float[Array, "n h2 w2 c"]:
  """Non-overlapping max pool; rows and columns beyond a multiple of `window` are ignored.

  The first maximum of a window gets the gradient, as in PyTorch. The backward pass keeps one byte
  per output and writes in one pass; XLA's own is a scatter-add, slow on GPUs and CPUs.
  """
  with jax.named_scope("pool"):
    return _max_pool(x, (window, window))


@or_plain(plain.global_max_pool)
def global_max_pool(x: Float[Array, "n h w c"]) -> Float[Array, "n c"]:
  """Return the maximum over each map, with the gradient of `max_pool`."""
  n, h, w, c = x.shape
  with jax.named_scope("pool"):
    if h * w <= _BYTE:
      return _max_pool(x, (h, w))[:, 0, 0]
    # One scatter of n * c numbers; the branch above needs one operation per pixel.
    flat = x.reshape(n, h * w, c)
    return jnp.take_along_axis(flat, flat.argmax(axis=1, keepdims=True), axis=1)[:, 0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max_pool(x, window):
  return max_pool_forward(x, window)[0]


def max_pool_forward(x, window):
  """Return the maxima, and what `at_maxima` needs: their places in the windows and the sides."""
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
  return (at_maxima(grad[:, :, None, :, None], residuals, window),)


def at_maxima(tiles, residuals, window):
  """Return a map with values of `tiles` at the places of the maxima, and zeros elsewhere.

  Args:
    tiles: [n, rows, high or 1, columns, wide or 1, c], a value per pixel of a window or one for it.
    residuals: what `max_pool_forward` returns for them.
    window: its height and width.
  """
  (place, (h, w)), (high, wide) = residuals, window
  n, rows, columns, c = place.shape
  places = np.arange(high * wide, dtype=np.uint8).reshape(high, 1, wide, 1)
  tiles = jnp.where(place[:, :, None, :, None] == places, tiles, 0)
  tiles = tiles.reshape(n, rows * high, columns * wide, c)
  spread = jnp.pad(tiles, ((0, 0), (0, h - rows * high), (0, w - columns * wide), (0, 0)))
  # Without the barrier XLA would write this twice, padded and unpadded, once for each gradient of
  # the convolution.
  return lax.optimization_barrier(spread)


_max_pool.defvjp(max_pool_forward, _max_pool_backward)


def _shifted(x, down, right):
  """Return x[:, i + down, j + right] at (i, j), zeros beyond the end; both shifts are 0 or 1."""
  return jnp.pad(x, ((0, 0), (0, down), (0, right), (0, 0)))[:, down:, right:]


def _interleaved(terms, shape):
  """Sum arrays [n, rows, 2, columns, 2, c] into one map, cropped to the pixels of `shape`."""
  total = sum(terms)
  n, rows, _, columns, _, c = total.shape
  return total.reshape(n, 2 * rows, 2 * columns, c)[:, : shape[0], : shape[1]]


@or_plain(plain.max_pool_3x3)
def max_pool_3x3(x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c"]:
  """3x3 max pool of stride 2 with a border of -inf, 1 pixel wide: h2 = (h + 1) // 2.

  The first maximum of a window gets the gradient, as in PyTorch. The backward pass keeps one byte
  per output and gathers in one kernel, where XLA's own scatters. For [256, 112, 112, 64] in
  bfloat16, forward and backward on an H100 take 2 kernels and 1.13 GB instead of 5 and 4.99, and on
  a CPU a third of the time (results/stem_pool.json).
  """
  with jax.named_scope("pool"):
    return _max_pool_3x3(x)


@jax.custom_vjp
def _max_pool_3x3(x):
  # Without a gradient, XLA's pool is the same kernel on a GPU and takes 0.4 of the time on a CPU.
  return lax.reduce_window(
    x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
  )


def first_maxima(x, *others):
  """Return the maxima of 3x3 windows, their positions as bytes, and `others` at these positions."""
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
  best, place = first_maxima(x)
  return best, (place, x.shape[1:3])


def _max_pool_3x3_backward(residuals, grad):
  place, shape = residuals
  return (to_first_maxima(place, shape, grad).astype(grad.dtype),)


# A position that is in no window.
NOWHERE = 9


def to_first_maxima(place, shape, grad):
  """Sum the gradients of 3x3 windows at the positions of the maxima, in the accumulation dtype."""
  # A pixel lies in up to four windows. Pixel (p, q) of 2x2 tile (i, j) has position (1 + p, 1 + q)
  # in window (i, j). Odd pixels are also in the next window, at a position that is two less.
  terms = []
  for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
    places = np.full((2, 1, 2, 1), 255, np.uint8)
    for p, q in ((p, q) for p in range(down, 2) for q in range(right, 2)):
      places[p, 0, q, 0] = 3 * (1 + p - 2 * down) + 1 + q - 2 * right
    here = _shifted(place, down, right)[:, :, None, :, None] == places
    value = _shifted(grad, down, right)[:, :, None, :, None].astype(accumulation(grad.dtype))
    terms.append(jnp.where(here, value, 0))
  return _interleaved(terms, shape)


_max_pool_3x3.defvjp(_max_pool_3x3_forward, _max_pool_3x3_backward)


@or_plain(plain.with_strided)
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def with_strided(
  x: Float[Array, "n h w c"], strides: int
) -> tuple[Float[Array, "n h w c"], Float[Array, "n h2 w2 c"]]:
  """Return `x` and its pixels x[:, ::strides, ::strides].

  On a GPU the kernel that uses the gradient of `x` spreads that of the pixels. Without the barrier,
  a kernel would write them among zeros, for the convolution that gives the other gradient: 1.6 GB
  a step in ResNet-50, 224 px, batch 256.
  """
  return x, x[:, ::strides, ::strides]


def _with_strided_forward(x, strides):
  return with_strided(x, strides), x.shape[1:3]


def _with_strided_backward(strides, sides, grads):
  (grad,) = recompute(grads[0])
  _, rows, columns, _ = grads[1].shape
  among_zeros = [
    (0, side - (pixels - 1) * strides - 1, strides - 1)
    for side, pixels in zip(sides, (rows, columns), strict=True)
  ]
  zero = jnp.zeros((), grad.dtype)
  return (grad + lax.pad(grads[1], zero, ((0, 0, 0), *among_zeros, (0, 0, 0))),)


with_strided.defvjp(_with_strided_forward, _with_strided_backward)


@or_plain(plain.blur_pool)
def blur_pool(x: Float[Array, "n h w c"], strides: int) -> Float[Array, "n h2 w2 c"]:
  """Blur each channel with [1 2 1] x [1 2 1] / 16 and a border of zeros; the stride is 1 or 2.

  Source: Zhang 2019, 1904.11486, with the border of libffcv/ffcv-imagenet, train_imagenet.py. As
  sums it takes one kernel; depthwise convolutions are slow on GPUs.
  """
  with jax.named_scope("pool"):
    return _blur_pool(x, strides)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _blur_pool(x, strides):
  _, h, w, _ = x.shape
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))).astype(accumulation(x.dtype))
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
  terms, dtype = [], accumulation(grad.dtype)
  for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
    row, column = (np.array([0, 1] if shift else [2, 1], dtype) for shift in (down, right))
    weights = np.outer(row, column).reshape(2, 1, 2, 1) / 16
    terms.append(_shifted(grad, down, right)[:, :, None, :, None].astype(dtype) * weights)
  return (_interleaved(terms, shape).astype(grad.dtype),)


_blur_pool.defvjp(_blur_pool_forward, _blur_pool_backward)
