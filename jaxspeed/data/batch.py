"""One batch of images, labels, mask and flips, and how batches are taken from a set on the device.

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
ORDER, AUGMENT, INIT, WARMUP, FLIP, CUTMIX, PROXY = range(7)


class Batch(flax.struct.PyTreeNode):
  """Images and labels of one device.

  Attributes:
    image: as stored.
    label: from 0.
    mask: false where the example does not count.
    flip: true where training flips the image left to right; None: nowhere.
  """

  image: UInt8[Any, "n h w 3"]
  label: Int[Any, "n"]
  mask: Bool[Any, "n"]
  flip: Bool[Any, "n"] | None = None


def seed_key(seed: int) -> UInt32[np.ndarray, "2"]:
  """The key of `jax.random.key(seed)`, made without compiling anything."""
  return np.array([0, seed], np.uint32)


def purpose_key(
  key: UInt32[Any, "2"], purpose: int, number: Int[Array, ""] | int
) -> UInt32[Array, "2"]:
  """The key for one purpose (ORDER, AUGMENT, ...) and one epoch or step."""
  folded = jax.random.fold_in(jax.random.wrap_key_data(key), purpose)
  return jax.random.key_data(jax.random.fold_in(folded, number))


class Order(flax.struct.PyTreeNode):
  """How an epoch visits a set: at each position which image, and whether it is flipped."""

  index: Int[Any, "n"]
  flip: Bool[Any, "n"]


def epoch_order(
  key: UInt32[Array, "2"], epoch: Int[Array, ""] | int, images: int, *, flip: str
) -> Order:
  """A permutation of the images, and flips.

  Args:
    key: of the run.
    epoch: from 0.
    images: in the set.
    flip: "none"; "random", each image with probability 1/2; "alternating", each image with
      probability 1/2 in the first epoch and then in every other epoch, so that two epochs in a
      row see both of its sides (KellerJordan/cifar10-airbench).
  """
  # Types are named: with JAX's 64-bit ones on, the numbers drawn would be others.
  index = jax.random.permutation(
    jax.random.wrap_key_data(purpose_key(key, ORDER, epoch)), jnp.arange(images, dtype=jnp.int32)
  )
  if flip == "none":
    return Order(index, jnp.zeros((images,), bool))
  drawn_in = epoch if flip == "random" else 0
  bits = jax.random.bernoulli(
    jax.random.wrap_key_data(purpose_key(key, FLIP, drawn_in)), jnp.float32(0.5), (images,)
  )
  if flip == "alternating":
    bits = bits ^ (epoch % 2 == 1)
  return Order(index, bits[index])


def carried_order(
  key: UInt32[Array, "2"],
  epoch: Int[Array, ""] | int,
  images: int,
  *,
  flip: str,
  used: int,
  epochs: int,
) -> Order:
  """Epochs of `used` images each out of one endless row of permutations.

  What one epoch leaves over, the next begins with, flipped as in the permutation that it belongs
  to (KellerJordan/cifar10-airbench, airbench96_faster.py).

  Args:
    key: of the run.
    epoch: from 0.
    images: in the set.
    flip: as for `epoch_order`, where a permutation counts as an epoch.
    used: in an epoch, at most `images`.
    epochs: of the run.

  Returns:
    An order whose first `used` images are those of the epoch.
  """
  # Divided here, as the product does not fit an int32 in long runs.
  begins = np.divmod(np.arange(epochs, dtype=np.int64) * used, images)
  turn, offset = (jnp.asarray(x.astype(np.int32))[epoch] for x in begins)
  pair = [epoch_order(key, turn + i, images, flip=flip) for i in range(2)]
  row = jax.tree.map(lambda *parts: jnp.concatenate(parts), *pair)
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, offset, images), row)


def take_batch(
  images: UInt8[Array, "n h w 3"],
  labels: Int[Array, "n"],
  order: Order,
  first: Int[Array, ""] | int,
  size: int,
) -> Batch:
  """`size` examples from position `first` of the order on."""
  part = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, size), order)
  return Batch(
    image=images.at[part.index].get(mode="promise_in_bounds"),
    label=labels.at[part.index].get(mode="promise_in_bounds"),
    mask=jnp.ones((size,), bool),
    flip=part.flip,
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
