"""Mixup and CutMix against the papers' formulas, scipy's Beta distribution and its laws."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tolerances import assert_equal

from jaxspeed.data.mixing import cutmix_box, draw_beta, mix

ALPHAS = (0.1, 0.2, 0.4, 0.8, 1.0, 2.0, 16.0)
DRAWS = 2000

jitted_mix = jax.jit(mix, static_argnames=("mixup", "cutmix"))
jitted_beta = jax.jit(draw_beta, static_argnames="alpha")


def keys(n):
  return jnp.stack([jnp.zeros(n, jnp.uint32), jnp.arange(n, dtype=jnp.uint32)], axis=1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_table_is_scipys_beta_distribution_within_a_4096th(alpha):
  uniform = np.linspace(0, 1, 30_011, dtype=np.float32)[:-1]
  drawn = np.asarray(jax.jit(jax.vmap(lambda u: draw_beta(u, alpha)))(uniform))
  assert drawn.dtype == np.float32 and 0 <= drawn.min() and drawn.max() <= 1
  assert (np.diff(drawn) >= 0).all()
  # A float32 below 1 stands for the numbers up to 2**-24 away.
  least, most = (np.clip(drawn.astype(np.float64) + side * 2**-23, 0, 1) for side in (-1, 1))
  distribution = stats.beta(alpha, alpha)
  off = np.maximum(distribution.cdf(least) - uniform, uniform - distribution.cdf(most))
  assert off.max() <= 1 / 4096


def test_boxes_are_torchvisions_with_the_share_that_is_left_of_them():
  """CutMix.make_params of torchvision.transforms.v2 with our uniform numbers."""
  height, width, n = 20, 33, 500
  uniform = np.random.default_rng(0).random((n, 3), np.float32)
  boxes = jax.jit(jax.vmap(lambda u: cutmix_box(u, 1.0, height, width)))
  masks, pixels = (np.asarray(x) for x in boxes(uniform))
  compared = 0
  for mask, count, (u, y, x) in zip(masks[:, 0, ..., 0], pixels, uniform, strict=True):
    assert mask.sum() == count
    lam = float(jitted_beta(jnp.float32(u), alpha=1.0))
    r = 0.5 * math.sqrt(1.0 - lam)
    r_y, r_x = math.floor(y * np.float32(height)), math.floor(x * np.float32(width))
    # Within a float32's rounding of a whole number, either is right.
    if min(abs(r * side - round(r * side)) for side in (height, width)) < 1e-4:
      continue
    h, w = int(r * height), int(r * width)
    expected = np.zeros((height, width), bool)
    expected[max(r_y - h, 0) : min(r_y + h, height), max(r_x - w, 0) : min(r_x + w, width)] = True
    np.testing.assert_array_equal(mask, expected)
    compared += 1
  assert compared > 0.9 * n
  # Most boxes lie partly outside.
  assert (1 - pixels / (height * width)).mean() > 0.5 + 5 * math.sqrt(1 / 12 / n)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("fields", [dict(mixup=0.8, cutmix=0.0), dict(mixup=0.0, cutmix=0.8)])
def test_images_labels_and_shares_are_those_of_the_formulas(fields):
  images = np.random.default_rng(0).normal(size=(8, 9, 7, 3))
  labels = np.arange(8, dtype=np.int32)
  mask = np.array([True] * 5 + [False] * 3)
  for key in keys(3):
    mixed, partner, share = (np.asarray(x) for x in jitted_mix(key, images, labels, mask, **fields))
    np.testing.assert_array_equal(partner, labels ^ 1)
    # Images 0 to 3 and the padding next to image 4 have a partner that counts.
    lam = 1 - share[0]
    np.testing.assert_array_equal(share, share[0] * mask[partner])
    other = images[partner]
    np.testing.assert_array_equal(mixed[[4, 6, 7]], images[[4, 6, 7]])
    if fields["mixup"]:
      assert 0 < lam < 1
      assert_equal(mixed[:4], lam * images[:4] + (1 - lam) * other[:4])
      continue
    pasted = (mixed[:4] == other[:4]).all(axis=-1)
    np.testing.assert_array_equal(pasted, np.broadcast_to(pasted[0], pasted.shape))
    np.testing.assert_array_equal(mixed[:4], np.where(pasted[..., None], other[:4], images[:4]))
    assert share[0] == pasted[0].mean()


def shares_of(size, **fields):
  """Shares of many steps, and whether an image of zeros has other values than 0 and 1 then."""
  images = jnp.zeros((2, size, size, 1)).at[1].set(1.0)

  def step(key):
    mixed, _, share = mix(key, images, jnp.arange(2), jnp.ones(2, bool), **fields)
    return share[0], jnp.any((mixed > 0) & (mixed < 1)), mixed[0].mean()

  return (np.asarray(x) for x in jax.jit(jax.vmap(step))(keys(DRAWS)))


def test_with_both_a_batch_takes_either_with_equal_probability():
  _, blended, _ = shares_of(8, mixup=1.0, cutmix=1.0)
  assert abs(blended.mean() - 0.5) < 5 * 0.5 / math.sqrt(DRAWS)
  assert not list(shares_of(8, mixup=0.0, cutmix=1.0))[1].any()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("devices", [8])
def test_a_devices_part_is_mixed_as_in_the_whole_batch(devices):
  images = np.random.default_rng(0).normal(size=(16, 6, 6, 3))
  labels, mask, size = np.arange(16), np.arange(16) < 13, 16 // devices
  parts = dict(mixup=0.4, cutmix=1.0)
  for key in keys(4):
    whole = jitted_mix(key, images, labels, mask, **parts)
    for first in range(0, 16, size):
      own = slice(first, first + size)
      part = jitted_mix(key, images[own], labels[own], mask[own], **parts)
      for ours, all_of_them in zip(part, whole, strict=True):
        np.testing.assert_array_equal(ours, all_of_them[own])
