"""Evaluation: views of each image, averaged logits, exact counts and each image's prediction."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt8

from jaxspeed.data.augment import normalize
from jaxspeed.data.batch import Batch
from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.steps.losses import MetricSums, cross_entropy, masked_sums
from jaxspeed.steps.outcomes import EvalResult, outcomes_of
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec

# The weight of each view in an image's logits, in the order of `make_views`, or for "five" of
# `five_crops`.
WEIGHTS = {
  "center": (1.0,),
  "flip": (1 / 2,) * 2,
  "six": (1 / 4,) * 2 + (1 / 8,) * 4,
  "selective": (1 / 6,) * 6,
  "five": (1 / 5,) * 5,
  "rect": (1.0,),
  "rect_flip": (1 / 2,) * 2,
}
# The share of images, the least confident ones, that "selective" evaluates again (hiverge).
SELECTED = 0.25


def make_views(images: Float[Array, "n h w c"], count: int) -> list[Float[Array, "n h w c"]]:
  """Return the first `count` of six views of each image.

  The views are the image, the image moved one pixel down and right with a reflected border, and the
  image moved up and left; each is followed by its flipped copy.
  """
  _, h, w, _ = images.shape
  views = [images]
  if count > 2:
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    views += [padded[:, :h, :w], padded[:, 2:, 2:]]
  return [side for view in views for side in (view, view[:, :, ::-1])][:count]


def five_crops(images: Float[Array, "n h w c"], size: int) -> list[Float[Array, "n s s c"]]:
  """Crop the four corners and the middle of each image, as squares of `size` pixels."""
  end = images.shape[1] - size
  places = [(0, 0), (0, end), (end, 0), (end, end), (end // 2, end // 2)]
  return [images[:, y : y + size, x : x + size] for y, x in places]


def logits_of(
  variables: dict[str, Any],
  images: Float[Array, "n h w 3"],
  views: str,
  *,
  spec: TrainSpec,
  size: int = 0,
) -> Float[Array, "n classes"]:
  """Return the logits of normalised images, the weighted mean over the views of a mode.

  "center" and "rect" use the image; "flip" and "rect_flip" also its flipped copy
  (davidcpage/cifar10-fast, Kakao Brain); "six" also both of these moved by one pixel to two
  corners, at half the weight (KellerJordan/cifar10-airbench), as "selective" does for the images
  that it selects from a data set (hiverge/cifar10-speedrun). Only "five" uses `size`.
  """
  weights = WEIGHTS[views]
  if views == "five":
    parts = five_crops(images, size)
  else:
    parts = make_views(images, len(weights))
  # All views in one batch. Six calls would move as many bytes, but with airbench's model (H100,
  # 1,000 images) they need 104 kernels instead of 46, and 12 s to compile instead of 4.
  every = jnp.concatenate(parts)
  logits: Any = spec.model.apply(variables, every, train=False)
  logits = logits.reshape(len(weights), len(images), -1)
  # A sum, because GPUs would compute a matrix product in TF32.
  return sum(weight * view for weight, view in zip(weights, logits, strict=True))


def logits_in_batches(
  variables: dict[str, Any], images: UInt8[Array, "n h w 3"], views: str, *, spec: TrainSpec
) -> Float[Array, "n classes"]:
  """Return the logits of uint8 images, in batches of at most `plan.eval_batch_size`."""
  config = spec.config
  # Equal batches: 2,500 images make three of 834, not three of 1,000 with a half-empty last one.
  batches = -(-len(images) // spec.plan.eval_batch_size)

  def one(batch: UInt8[Array, "n h w 3"]) -> Float[Array, "n classes"]:
    normal = normalize(batch, config.data.mean, config.data.std, spec.accumulation)
    return logits_of(variables, normal.astype(precision.DTYPES[config.precision]), views, spec=spec)

  # A loop instead of one large batch: activations of 1,000 images already take much memory.
  logits = lax.map(one, images.reshape(batches, -1, *images.shape[1:]))
  return logits.reshape(len(images), -1)


def result_of(*parts: tuple[Float[Array, "n classes"], Batch], spec: TrainSpec) -> EvalResult:
  """Return the sums and outcomes, over all devices, of the examples with a true mask.

  Args:
    parts: logits with their examples; each image has a true mask in just one part of one device.
  """
  sums, images = [], []
  for logits, batch in parts:
    # The reported loss is the cross entropy without the label smoothing of training.
    target = jax.nn.one_hot(
      batch.label, logits.shape[-1], dtype=precision.accumulation(logits.dtype)
    )
    losses = cross_entropy(logits, target)
    sums.append(masked_sums(logits, losses, batch.label, batch.mask))
    saved = logits.astype(losses.dtype) if spec.saves_logits else None
    images.append(outcomes_of(logits, losses, batch).replace(logits=saved))
  total = lax.psum(functools.reduce(operator.add, sums), AXIS)
  return EvalResult(total, lax.all_gather(tuple(images), AXIS, tiled=True))


def share_of_first(data: Batch, order: Int[Array, "m"], count: int, *, spec: TrainSpec) -> Batch:
  """Return this device's share of the first `count` images in `order`, in equal batches.

  All shares have the same size, and images beyond `count` are masked. The shares fit into the data
  set, because it is padded to whole batches on every device.
  """
  share = -(-count // spec.devices)
  batches = -(-share // spec.plan.eval_batch_size)
  share = batches * -(-share // batches)
  first = lax.axis_index(AXIS) * share
  index = lax.dynamic_slice_in_dim(order, first, share)
  taken = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), data)
  return taken.replace(mask=taken.mask & (first + jnp.arange(share, dtype=jnp.int32) < count))


def evaluate(variables: dict[str, Any], data: Batch, *, spec: TrainSpec) -> EvalResult:
  """Evaluate the whole data set; each device evaluates its own part.

  With "selective" views the model first sees every image once. For the least confident quarter, by
  the largest softmax probability, the mean over six views then replaces the logits. `data` is the
  whole data set on every device, padded and masked by `data.batch.pad_batches`.
  """
  views = spec.config.eval.mode
  size = len(data.mask) // spec.devices
  first = lax.axis_index(AXIS) * size
  part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, size), data)
  if views != "selective":
    return result_of((logits_in_batches(variables, part.image, views, spec=spec), part), spec=spec)

  logits = logits_in_batches(variables, part.image, "center", spec=spec)
  confidence = jnp.where(part.mask, jax.nn.softmax(logits).max(axis=-1), jnp.inf)
  order = jnp.argsort(lax.all_gather(confidence, AXIS, tiled=True), stable=True)
  selected = int(SELECTED * spec.plan.eval_images)
  # `argsort` inverts a permutation, which gives each image's place in the order.
  place = lax.dynamic_slice_in_dim(jnp.argsort(order), first, size)
  parts = [(logits, part.replace(mask=part.mask & (place >= selected)))]
  if selected:
    again = share_of_first(data, order, selected, spec=spec)
    parts.append((logits_in_batches(variables, again.image, views, spec=spec), again))
  return result_of(*parts, spec=spec)


def evaluate_batch(
  variables: dict[str, Any],
  batch: Batch,
  sums: MetricSums,
  *,
  spec: TrainSpec,
  mode: str,
  size: int,
) -> EvalResult:
  """Evaluate one streamed batch over all devices; its sums are added to those so far.

  `batch` holds this device's uint8 images. With the `mode` "center" they are the middle squares of
  the resized images; with "rect", rectangles that keep almost all of them (fast.ai's DAWNBench
  entry; `disk.rectangles`). "flip" and "rect_flip" average each of these with its flipped copy
  (libffcv/ffcv-imagenet). "five" averages the four corners and the middle of the middle square,
  each a square of `size` pixels.
  """
  config = spec.config
  normal = normalize(batch.image, config.data.mean, config.data.std, spec.accumulation)
  images = normal.astype(precision.DTYPES[config.precision])
  logits = logits_of(variables, images, mode, spec=spec, size=size)
  found = result_of((logits, batch), spec=spec)
  return found.replace(sums=sums + found.sums)


def evaluate_on_mesh(spec: TrainSpec) -> Any:
  """`evaluate` on all devices, with the variables and the data set replicated."""
  return on_mesh(evaluate, spec)
