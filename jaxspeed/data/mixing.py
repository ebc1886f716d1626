"""Mixup and CutMix: each image of a batch is mixed with its neighbour, and so are their labels."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped, UInt32

from jaxspeed.data.augment import box_mask, to_integers

# Between two of its quantiles, the distribution of `draw_beta` is off by less than their distance:
# 1 / 4,096, and in practice less.
_QUANTILES = 4096


def of_partner(array: Shaped[Array, "n *rest"]) -> Shaped[Array, "n *rest"]:
  """Swap neighbours: element i XOR 1 takes the place of element i, for an even n.

  The order of an epoch is random, so pairs of neighbours are random pairs. While a device's part
  is even, they do not depend on the number of devices and need no gather.
  """
  return array.reshape(-1, 2, *array.shape[1:])[:, ::-1].reshape(array.shape)


def draw_beta(uniform: Float[Array, ""], alpha: float) -> Float[Array, ""]:
  """Map a uniform number in [0, 1) to one from Beta(alpha, alpha), in float32.

  It interpolates in a table of quantiles from the host: `jax.random.beta` draws in a loop until a
  number is accepted.
  """
  # Its import takes 0.1 to 0.25 s; only mixed images need it.
  from scipy import special

  levels = np.linspace(0.0, 1.0, _QUANTILES + 1)
  # The quantiles of 0 and 1 are 0 and 1, from where large alphas would draw too often.
  levels[[0, -1]] = 0.25 / _QUANTILES, 1 - 0.25 / _QUANTILES
  table = jnp.asarray(special.betaincinv(alpha, alpha, levels), jnp.float32)
  place = uniform * _QUANTILES
  below = jnp.floor(place).astype(jnp.int32)
  low, high = (table.at[i].get(mode="promise_in_bounds") for i in (below, below + 1))
  return low + (high - low) * (place - below.astype(jnp.float32))


def cutmix_box(
  uniform: Float[Array, "3"], alpha: float, height: int, width: int
) -> tuple[Bool[Array, "1 height width 1"], Int[Array, ""]]:
  """Return the mask of CutMix's box and its number of pixels (Yun et al. 2019, arXiv 1905.04899).

  The box has the image's shape and a share 1 - lambda of its area, with lambda from
  Beta(alpha, alpha). Its centre is any pixel, and what lies outside the image is cut off, as in
  torchvision.transforms.v2.CutMix and timm.

  Args:
    uniform: numbers in [0, 1) for lambda and the centre's row and column.
    alpha: parameter of the Beta distribution.
    height, width: size of the images.
  """
  half = 0.5 * jnp.sqrt(1.0 - draw_beta(uniform[0], alpha))
  edges = []
  for place, size in ((uniform[1], height), (uniform[2], width)):
    centre = jnp.floor(place * size).astype(jnp.int32)
    reach = jnp.floor(half * size).astype(jnp.int32)
    edges += [jnp.maximum(centre - reach, 0), jnp.minimum(centre + reach, size)]
  top, bottom, left, right = edges
  mask = box_mask([edge[None] for edge in edges], height, width)
  return mask, (bottom - top) * (right - left)


def mix(
  key: UInt32[Array, "2"],
  images: Float[Array, "n h w c"],
  labels: Int[Array, "n"],
  mask: Bool[Array, "n"],
  *,
  mixup: float,
  cutmix: float,
) -> tuple[Float[Array, "n h w c"], Int[Array, "n"], Float[Array, "n"]]:
  """Mix each image with its partner by mixup or CutMix, with one lambda for the batch.

  Mixup is lambda * image + (1 - lambda) * partner (Zhang et al. 2018, arXiv 1710.09412); CutMix
  pastes a box of the partner (`cutmix_box`). With both, a batch takes either with probability 1/2,
  as timm's Mixup does with switch_prob=0.5. One lambda for the batch is timm's mode "batch" and
  torchvision's. No number depends on the number of devices.

  Args:
    key: this step's key.
    images: this device's part of the augmented global batch, an even number.
    labels: labels of the images.
    mask: false for padding; its partner stays as it is.
    mixup: parameter of the Beta distribution of mixup's lambda; 0: no mixup.
    cutmix: the same of CutMix; 0: no CutMix.

  Returns:
    The images, the labels of their partners, and the partners' share of each image. The loss is
    (1 - share) * loss(labels) + share * loss(partner labels).
  """
  _, h, w, _ = images.shape
  uniform = jax.random.uniform(jax.random.wrap_key_data(key), (5,), jnp.float32)
  share = jnp.zeros((), images.dtype)
  if mixup:
    share = (1.0 - draw_beta(uniform[0], mixup)).astype(images.dtype)
  weight = share.reshape(1, 1, 1, 1)
  if cutmix:
    box, pixels = cutmix_box(uniform[1:4], cutmix, h, w)
    chosen = uniform[4] < (0.5 if mixup else 1.0)
    weight = jnp.where(chosen, box.astype(images.dtype), weight)
    share = jnp.where(chosen, pixels.astype(images.dtype) / (h * w), share)
  mixed, paired = images * (1.0 - weight) + of_partner(images) * weight, of_partner(mask)
  mixed = jnp.where(paired[:, None, None, None], mixed, images)
  return mixed, of_partner(labels), jnp.where(paired, share, 0.0)


def cutmix(
  key: UInt32[Array, "2"],
  images: Float[Array, "n h w c"],
  labels: Int[Array, "n"],
  mask: Bool[Array, "n"],
  size: int,
  *,
  first: Int[Array, ""] | int,
  global_batch: int,
) -> tuple[Float[Array, "n h w c"], Int[Array, "n"], Float[Array, "n"]]:
  """Replace a square in each image by the same square of its partner.

  After tysam-code/hlb-CIFAR10: the square lies wholly inside, all places are equally likely, and
  mixing follows crop and flip. There an even-sized square never covers the last row and column.

  Args:
    key: this step's key; not that of `augment`, which draws the same numbers for crops.
    images, labels, mask: as in `mix`.
    size: side of the square, in pixels.
    first, global_batch: as in `augment`.

  Returns:
    As `mix`.
  """
  n, h, w, _ = images.shape
  whole = jax.random.uniform(jax.random.wrap_key_data(key), (2, global_batch), jnp.float32)
  uniform = jax.lax.dynamic_slice_in_dim(whole, first, n, axis=1)
  top, left = to_integers(uniform[0], 0, h - size), to_integers(uniform[1], 0, w - size)
  paired = of_partner(mask)
  square = box_mask((top, top + size, left, left + size), h, w) & paired[:, None, None, None]
  mixed = jnp.where(square, of_partner(images), images)
  return mixed, of_partner(labels), jnp.where(paired, size * size / (h * w), 0.0)
