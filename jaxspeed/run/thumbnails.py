"""The small images that a finished run leaves for its report."""

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Int32, UInt8
from PIL import Image

from jaxspeed.cluster import processes
from jaxspeed.data.batch import Batch, purpose_key
from jaxspeed.feeds.protocol import Feed
from jaxspeed.records.arrays import MOST_IMAGES, MOST_PIXELS, Predictions, Thumbnails, worst_rows
from jaxspeed.run.run import Run
from jaxspeed.steps import train_step
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState

_log = logging.getLogger("jaxspeed")
_NONE = np.zeros((0, 1, 1, 3), np.uint8)


def leave_thumbnails(run: Run, predictions: Predictions, state: TrainState) -> None:
  """Writes thumbnails.npz into a finished run's folder; all processes call it, the first writes.

  With `records.thumbnails` of 0 the folder has none. Nothing that goes wrong here ends a run: its
  result is written.
  """
  try:
    if not run.config.records.thumbnails:
      return
    thumbnails = _collect(run.spec, run.feed, predictions, state)
    if processes.is_primary():
      thumbnails.write(run.folder)
  except Exception as error:
    _log.info("the report of this run will lack images: %s: %s", type(error).__name__, error)


def _collect(
  spec: TrainSpec, feed: Feed, predictions: Predictions, state: TrainState
) -> Thumbnails:
  most = spec.config.records.thumbnails
  chosen = choose(predictions, most)
  numbers = predictions.index[chosen]
  shown = feed.show_evaluated(numbers, predictions.step) if len(numbers) else _NONE
  first = spec.plan.first_step_of(spec.plan.epoch_of(predictions.step - 1)[0])
  size = min(most + most % 2, spec.plan.phase_of(first).batch_size)
  batch = feed.show_trained(spec.config.seed, first, size - size % 2)  # mixing takes pairs
  images, partner, share = augmented(batch, state.key, first, spec)
  return Thumbnails(
    step=predictions.step,
    eval_index=numbers[: len(shown)].astype(np.int32),
    eval_image=small(shown),
    train_image=small(images)[:most],
    train_label=np.asarray(batch.label, np.int32)[:most],
    train_partner=partner[:most],
    train_share=share[:most],
    filters=filters_of(state.eval_variables()),
  )


def choose(predictions: Predictions, most: int) -> Int[np.ndarray, "k"]:
  """Rows of the images with the highest loss, the highest first, then of some correct ones.

  The correct ones are drawn with a fixed seed, so that they show what is usual.
  """
  worst = worst_rows(predictions, most)
  right = np.flatnonzero(predictions.label == predictions.predicted)
  right = np.setdiff1d(right, worst)
  drawn = np.random.default_rng(0).permutation(right)[:most]
  return np.concatenate([worst, drawn])


def augmented(
  batch: Batch, key: Any, step: int, spec: TrainSpec
) -> tuple[UInt8[np.ndarray, "n h w 3"], Int32[np.ndarray, "n"], Float[np.ndarray, "n"]]:
  """The first images of a step's batch as the model sees them, with what is mixed into them.

  They are the ones of the step itself: each option draws the same random numbers. `batch` has the
  first images of its global batch, before the devices augment them; `key` is the run's.

  Returns:
    Pixels; the labels of the partners, and the partners' share of each image.
  """
  keys = functools.partial(purpose_key, jnp.asarray(np.asarray(key)), number=step)
  run = functools.partial(
    train_step.augmented,
    keys,
    spec=spec,
    kind=spec.plan.kind_of(step),
    step=step,
    first=0,
    global_batch=spec.plan.phase_of(step).batch_size,
    dtype=spec.accumulation,
  )
  seen = jax.device_get(jax.jit(run)(batch))
  data = spec.config.data
  pixels = np.asarray(seen.image, np.float32) * np.float32(data.std) + np.float32(data.mean)
  return (
    np.clip(np.rint(pixels), 0, 255).astype(np.uint8),
    np.asarray(seen.partner, np.int32),
    np.asarray(seen.partner_weight, np.float32),
  )


def small(images: UInt8[np.ndarray, "n h w 3"]) -> UInt8[np.ndarray, "n h2 w2 3"]:
  """Images of at most `MOST_PIXELS` a side: means over squares of pixels."""
  factor = -(-max(images.shape[1:3]) // MOST_PIXELS)
  if factor == 1:
    return images
  return np.stack([np.asarray(Image.fromarray(each).reduce(factor)) for each in images])


def filters_of(variables: Any) -> UInt8[np.ndarray, "f h w 3"]:
  """The first kernels over three channels, as pictures; none for a model without such a layer.

  Each is scaled by its own largest magnitude, so that 128 is zero.
  """
  leaves = [leaf for leaf in jax.tree.leaves(variables) if jnp.ndim(leaf) == 4]
  # Our convolutions are [out, h, w, in]; Flax's, as of patches, are [h, w, in, out].
  ours = [leaf for leaf in leaves if leaf.shape[3] == 3]
  flax = [leaf.transpose(3, 0, 1, 2) for leaf in leaves if leaf.shape[2] == 3]
  found = next(iter(ours + flax), None)
  if found is None or max(found.shape[1:3]) > MOST_PIXELS:
    return _NONE
  kernel = np.asarray(found, np.float32)[:MOST_IMAGES]
  most = np.maximum(np.abs(kernel).max(axis=(1, 2, 3), keepdims=True), np.float32(1e-30))
  return np.rint(127.5 + 127.5 * kernel / most).astype(np.uint8)
