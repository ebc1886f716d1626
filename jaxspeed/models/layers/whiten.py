"""The whitening convolution of the fast CIFAR-10 models, and its filters."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from jaxspeed.devices.precision import accumulation
from jaxspeed.models.layers import plain
from jaxspeed.models.layers.conv import conv_init, convolve_in_loops
from jaxspeed.models.layers.plain import or_plain


@or_plain(plain.whiten)
def _whiten(x, kernel, strides, padding):
  return lax.platform_dependent(
    x,
    kernel,
    cpu=lambda x, kernel: convolve_in_loops(x, kernel.astype(x.dtype), strides, padding),
    default=functools.partial(_sum_of_products, strides=strides, padding=padding),
  )


def _sum_of_products(x, kernel, strides, padding):
  """Convolve by elementwise products in the accumulation dtype, for few taps and channels.

  A GPU runs this, the cast and the next operations in one kernel that reads the images once. cuDNN
  is slow with 3 channels and needs another pass for bias and activation: 141 MB per airbench step.
  """
  # Without the barrier XLA could augment the images again for every product.
  dtype, x = x.dtype, lax.optimization_barrier(x)
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))).astype(
    accumulation(dtype)
  )
  _, high, wide, channels = kernel.shape
  rows, columns = x.shape[1] - high + 1, x.shape[2] - wide + 1
  y = sum(
    x[:, i : i + rows : strides, j : j + columns : strides, c : c + 1] * kernel[:, i, j, c]
    for i in range(high)
    for j in range(wide)
    for c in range(channels)
  )
  return y.astype(dtype)


class Whiten(nn.Module):
  """Convolution with a frozen `kernel` from `whitening_kernel`, with `features` output channels.

  The kernel is a parameter, so that it is saved, but it gets no gradient: the weight gradient of a
  convolution with 3 channels is slow everywhere. With a `bias_init` there is also a trained `bias`,
  as in airbench.
  """

  features: int = 27
  patch: int = 3
  strides: int = 1
  padding: int = 1
  bias_init: nn.initializers.Initializer | None = None
  dtype: DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 o"]:
    shape = (self.features, self.patch, self.patch, x.shape[-1])
    masters = accumulation(self.dtype)
    kernel = lax.stop_gradient(self.param("kernel", conv_init, shape, masters))
    x = lax.stop_gradient(x)
    y = _whiten(x.astype(self.dtype), kernel, self.strides, self.padding)
    if self.bias_init is not None:
      bias = self.param("bias", self.bias_init, (self.features,), masters)
      y = y + bias.astype(self.dtype)
    return y


def init_whitening(
  params: PyTree,
  images: Callable[[], Float[Array, "n h w c"]],
  *,
  epsilon: float,
  centered: bool,
) -> PyTree:
  """Return parameters with the filters of `whitening_kernel` in the module `whiten`, if any."""
  if "whiten" not in params:
    return params
  filters, patch, _, _ = params["whiten"]["kernel"].shape
  kernel = whitening_kernel(
    images(), filters=filters, patch=patch, epsilon=epsilon, centered=centered
  )
  return params | {"whiten": params["whiten"] | {"kernel": kernel}}


def whitening_kernel(
  images: Float[Array, "n h w c"],
  *,
  filters: int = 27,
  patch: int = 3,
  epsilon: float = 1e-2,
  centered: bool = False,
) -> Float[Array, "filters p p c"]:
  """Compute filters that decorrelate the patches of normalised images, in the images' dtype.

  Filter i is the i-th eigenvector, largest first, of the covariance X^T X / (patches - 1) of all
  patches, divided by sqrt(eigenvalue + epsilon): cifar10-fast, bag_of_tricks.ipynb. Airbench and
  hiverge divide by the number of patches, 922,560 or more: 5.5e-7 of a filter at most. The
  covariance is about zero, or about the mean patch if `centered` (hlb-CIFAR10). If `filters` is
  2 * patch * patch * c, the second half are the negatives of the first (hlb-CIFAR10, airbench).
  Chunks of 256 images need 26 MB at CIFAR-10's size; all patches of 10,000 images would fill 1 GB.
  """
  n, h, w, c = images.shape
  rows, columns, size = h - patch + 1, w - patch + 1, patch * patch * c
  chunk = min(n, 256)
  # The padding images are zero and add nothing to the sums.
  chunks = jnp.pad(images, ((0, -n % chunk), (0, 0), (0, 0), (0, 0))).reshape(-1, chunk, h, w, c)

  def add_chunk(total, chunk_images):
    shifted = [
      chunk_images[:, i : i + rows, j : j + columns] for i in range(patch) for j in range(patch)
    ]
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, size)
    products, sums = total
    product = jnp.matmul(patches.T, patches, precision=lax.Precision.HIGHEST)
    return (products + product, sums + patches.sum(axis=0)), None

  zero = jnp.zeros((size, size), images.dtype), jnp.zeros((size,), images.dtype)
  (products, sums), _ = lax.scan(add_chunk, zero, chunks)
  count = n * rows * columns
  if centered:
    products = products - jnp.outer(sums, sums) / count
  eigenvalues, vectors = jnp.linalg.eigh(products / (count - 1))
  rows_first = (vectors / jnp.sqrt(eigenvalues + epsilon))[:, ::-1].T
  kernel = rows_first.reshape(size, patch, patch, c)
  return kernel if filters == size else jnp.concatenate([kernel, -kernel])
