"""Orders, batches, padding: each example once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspeed.config import fields
from jaxspeed.data import batch as batch_lib
from jaxspeed.data.augment import augment


def key(seed):
  return jnp.array([0, seed], jnp.uint32)


def some_set(n):
  """Images that tell their own number in every pixel, and as their label."""
  labels = np.arange(n)
  images = np.broadcast_to(labels[:, None, None, None], (n, 2, 2, 3)).astype(np.uint8)
  return images, labels


def test_an_order_is_a_function_of_seed_and_epoch_alone():
  order_of = functools.partial(batch_lib.epoch_order, images=500, flip="random")
  found = {(s, e): order_of(key(s), e) for s in (0, 1) for e in (0, 1)}
  for (seed, epoch), order in found.items():
    np.testing.assert_array_equal(np.sort(order.index), np.arange(500))
    compiled = jax.jit(order_of)(key(seed), jnp.int32(epoch))
    jax.tree.map(np.testing.assert_array_equal, compiled, order)
  orders = {name: np.asarray(order.index) for name, order in found.items()}
  distinct = {order.tobytes() for order in orders.values()}
  assert len(distinct) == 4
  # Of two independent permutations one position in 500 agrees, on average one a pair.
  assert (orders[0, 0] == orders[0, 1]).sum() < 10


def test_half_of_the_images_are_mirrored_anew_in_each_epoch():
  images, epochs = 4000, 8
  mirrored = np.zeros((epochs, images), bool)
  for epoch in range(epochs):
    order = batch_lib.epoch_order(key(3), epoch, images, flip="random")
    mirrored[epoch, np.asarray(order.index)] = order.flip
  # Standard deviation of the share in an epoch: 0.5 / sqrt(4000) = 0.008.
  np.testing.assert_allclose(mirrored.mean(axis=1), 0.5, atol=0.04)
  assert 0.45 < (mirrored[1:] != mirrored[:-1]).mean() < 0.55


def test_alternating_epochs_are_those_of_airbenchs_loader():
  """CifarLoader: random flips once, before the first epoch; all flipped again in odd epochs."""
  torch = pytest.importorskip("torch")
  images = np.random.default_rng(0).integers(256, size=(40, 6, 6, 3), dtype=np.uint8)
  labels = jnp.arange(40)
  start = batch_lib.epoch_order(key(3), 0, 40, flip="alternating")
  flips = np.zeros(40, bool)
  flips[np.asarray(start.index)] = start.flip
  theirs = torch.tensor(images.transpose(0, 3, 1, 2).copy())
  theirs = torch.where(torch.tensor(flips).view(-1, 1, 1, 1), theirs.flip(-1), theirs)
  for epoch in range(4):
    order = batch_lib.epoch_order(key(3), epoch, 40, flip="alternating")
    batch = batch_lib.take_batch(jnp.asarray(images), labels, order, 0, 40)
    parts = dict(first=0, global_batch=40, flip=batch.flip, mean=(0.0,) * 3, std=(1.0,) * 3)
    ours = augment(lambda purpose: key(9), batch.image, fields.base().augment, **parts)
    shown = theirs.flip(-1) if epoch % 2 == 1 else theirs
    expected = shown[torch.tensor(np.array(batch.label))]
    np.testing.assert_array_equal(ours.transpose(0, 3, 1, 2), expected)


@pytest.mark.parametrize("images, batch", [(40, 16), (40, 40), (50, 7), (9, 5)])
def test_carried_epochs_are_one_row_of_permutations_as_in_airbenchs_endless_loader(images, batch):
  """InfiniteCifarLoader: a batch takes what is left of a permutation and goes on in the next."""
  steps, epochs = images // batch, 9
  parts = dict(flip="alternating", used=steps * batch, epochs=epochs)
  carried = jax.jit(functools.partial(batch_lib.carried_order, images=images, **parts))
  ours = [jax.device_get(carried(key(3), jnp.int32(epoch))) for epoch in range(epochs)]
  assert {order.index.shape for order in ours} == {(images,)}
  theirs = [
    batch_lib.epoch_order(key(3), turn, images, flip="alternating") for turn in range(epochs)
  ]
  rows = [np.concatenate([getattr(o, name) for o in theirs]) for name in ("index", "flip")]
  for step in range(epochs * steps):
    epoch, step_in_epoch = divmod(step, steps)
    part = slice(step_in_epoch * batch, (step_in_epoch + 1) * batch)
    row = slice(step * batch, (step + 1) * batch)
    np.testing.assert_array_equal(ours[epoch].index[part], rows[0][row])
    np.testing.assert_array_equal(ours[epoch].flip[part], rows[1][row])


def test_a_carried_epoch_begins_where_it_must_after_more_images_than_an_int32_counts():
  images, used, epoch = 50_000, 30_000, 90_000
  parts = dict(images=images, flip="alternating", used=used, epochs=epoch + 1)
  order = batch_lib.carried_order(key(0), epoch, **parts)
  turn, offset = divmod(epoch * used, images)
  assert epoch * used > 2**31
  expected = batch_lib.epoch_order(key(0), turn, images, flip="alternating")
  np.testing.assert_array_equal(order.index[: images - offset], expected.index[offset:])
  np.testing.assert_array_equal(order.flip[: images - offset], expected.flip[offset:])


def test_take_batch_follows_the_order():
  images, labels = some_set(10)
  order = batch_lib.Order(jnp.array([7, 2, 9, 0, 1, 3, 4, 5, 6, 8]), jnp.arange(10) % 2 == 0)
  batch = batch_lib.take_batch(jnp.asarray(images), jnp.asarray(labels, jnp.int32), order, 3, 4)
  np.testing.assert_array_equal(batch.label, [0, 1, 3, 4])
  np.testing.assert_array_equal(batch.image, images[[0, 1, 3, 4]])
  np.testing.assert_array_equal(batch.mask, [True] * 4)
  np.testing.assert_array_equal(batch.flip, [False, True, False, True])
  assert (batch.image.dtype, batch.label.dtype, batch.mask.dtype) == (jnp.uint8, jnp.int32, bool)


@pytest.mark.parametrize("n, size, total", [(16, 8, 16), (17, 8, 24), (1, 8, 8), (10, 3, 12)])
def test_padding_is_the_least_that_makes_whole_batches(n, size, total):
  images, labels = some_set(n)
  padded = batch_lib.pad_batches(images, labels, size)
  assert padded.image.shape == (total, 2, 2, 3)
  assert (padded.image.dtype, padded.label.dtype, padded.mask.dtype) == (np.uint8, np.int32, bool)
  np.testing.assert_array_equal(padded.mask, np.arange(total) < n)
  np.testing.assert_array_equal(padded.index, np.arange(total))
  for found, expected in ((padded.image, images), (padded.label, labels)):
    np.testing.assert_array_equal(found[:n], expected)
    assert not found[n:].any()
