"""What a step eats: batches of uint8 images, labels and a mask, from a set on the device.

The order of an epoch is a function of (seed, epoch) alone, so a run resumes at any step, and on
any number of devices sees the same global batches.
"""

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

# Names of what a seed is spent on; a key is folded with one, then with the epoch or the step.
ORDER, AUGMENT, INIT, WARMUP = 0, 1, 2, 3


class Batch(flax.struct.PyTreeNode):
  """Images and labels of one device; examples whose mask is false do not count."""

  image: UInt8[Any, "n h w 3"]
  label: Int[Any, "n"]
  mask: Bool[Any, "n"]


def purpose_key(
  key: UInt32[Any, "2"], purpose: int, number: Int[Array, ""] | int
) -> UInt32[Array, "2"]:
  """The key for one purpose (ORDER, AUGMENT, ...) and one epoch or step."""
  folded = jax.random.fold_in(jax.random.wrap_key_data(key), purpose)
  return jax.random.key_data(jax.random.fold_in(folded, number))


def epoch_order(
  key: UInt32[Array, "2"], epoch: Int[Array, ""] | int, images: int
) -> Int[Array, "images"]:
  """The permutation in which an epoch visits the images."""
  order_key = jax.random.wrap_key_data(purpose_key(key, ORDER, epoch))
  return jax.random.permutation(order_key, images)


def take_batch(
  images: UInt8[Array, "n h w 3"],
  labels: Int[Array, "n"],
  order: Int[Array, "n"],
  first: Int[Array, ""] | int,
  size: int,
) -> Batch:
  """`size` examples from position `first` of the order on."""
  index = jax.lax.dynamic_slice_in_dim(order, first, size)
  return Batch(
    image=images.at[index].get(mode="promise_in_bounds"),
    label=labels.at[index].get(mode="promise_in_bounds"),
    mask=jnp.ones((size,), bool),
  )


def pad_batches(
  images: UInt8[np.ndarray, "n h w 3"], labels: Int[np.ndarray, "n"], *, batch: int, devices: int
) -> Batch:
  """A set as whole batches on every device, the rest padded and masked: each example counts once.

  Returns:
    Host arrays of m >= n examples, m a multiple of batch * devices. Split over the devices in
    order, each device holds m / devices of them, which are whole batches.
  """
  padding = -len(images) % (batch * devices)
  return Batch(
    image=np.concatenate([images, np.zeros((padding, *images.shape[1:]), np.uint8)]),
    label=np.concatenate([labels, np.zeros((padding,), np.int32)]).astype(np.int32),
    mask=np.arange(len(images) + padding) < len(images),
  )
