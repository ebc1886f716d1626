"""The only code that turns predictions into accuracy: views of an image, averages, exact counts."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt8

from jaxspeed.data.augment import normalize
from jaxspeed.data.batch import Batch
from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.steps.losses import MetricSums, masked_sums, smoothed_cross_entropy
from jaxspeed.steps.programs import on_mesh
from jaxspeed.steps.spec import TrainSpec

# What each view counts for in the logits of its image, in the order of `make_views`; of "five" in
# that of `five_crops`.
WEIGHTS = {
  "center": (1.0,),
  "flip": (1 / 2,) * 2,
  "six": (1 / 4,) * 2 + (1 / 8,) * 4,
  "selective": (1 / 6,) * 6,
  "five": (1 / 5,) * 5,
  "rect": (1.0,),
  "rect_flip": (1 / 2,) * 2,
}
# Of the evaluation images "selective" looks at the least confident again (hiverge).
SELECTED = 0.25


def make_views(images: Float[Array, "n h w c"], count: int) -> list[Float[Array, "n h w c"]]:
  """The first `count` of six views of each image.

  These are the image, then the image moved one pixel down and right over a reflecting border,
  then moved up and left; each is followed by its mirror image.
  """
  _, h, w, _ = images.shape
  views = [images]
  if count > 2:
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    views += [padded[:, :h, :w], padded[:, 2:, 2:]]
  return [side for view in views for side in (view, view[:, :, ::-1])][:count]


def five_crops(images: Float[Array, "n h w c"], size: int) -> list[Float[Array, "n s s c"]]:
  """The four corners of squares, and their middles."""
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
  """Logits of normalised images, the weighted mean over their views; `size` is of "five"."""
  weights = WEIGHTS[views]
  if views == "five":
    parts = five_crops(images, size)
  else:
    parts = make_views(images, len(weights))
  # One batch of all views. Six calls move as many bytes, but of airbench's net (H100, 1,000 images)
  # are 104 kernels in place of 46, and take 12 s to compile instead of 4.
  every = jnp.concatenate(parts)
  logits: Any = spec.model.apply(variables, every, train=False)
  logits = logits.reshape(len(weights), len(images), -1)
  # A sum and no product of matrices, which GPUs would compute in TF32.
  return sum(weight * view for weight, view in zip(weights, logits, strict=True))


def predict_logits(
  variables: dict[str, Any], images: Float[Array, "n h w 3"], *, spec: TrainSpec
) -> Float[Array, "n classes"]:
  """Logits of normalised images, the mean over the views of `config.eval.mode`.

  "center" takes the image; "flip" also its mirror image (davidcpage/cifar10-fast, Kakao Brain);
  "six" also both of the image moved by a pixel to each of two corners, at half the weight
  (KellerJordan/cifar10-airbench). "selective" (hiverge/cifar10-speedrun), which chooses among the
  images of a set, takes the plain mean of the six here, as for the images that it chooses.
  """
  return logits_of(variables, images, spec.config.eval.mode, spec=spec)


def logits_in_batches(
  variables: dict[str, Any], images: UInt8[Array, "n h w 3"], views: str, *, spec: TrainSpec
) -> Float[Array, "n classes"]:
  """Logits of images as they are stored, at most `plan.eval_batch_size` of them at a time."""
  config = spec.config
  # Batches of one size: 2,500 images are three of 834, not three of 1,000, half of the last empty.
  batches = -(-len(images) // spec.plan.eval_batch_size)

  def one(batch: UInt8[Array, "n h w 3"]) -> Float[Array, "n classes"]:
    normal = normalize(batch, config.data.mean, config.data.std, spec.accumulation)
    return logits_of(variables, normal.astype(precision.DTYPES[config.precision]), views, spec=spec)

  # A loop and not one large batch: activations of 1,000 images at a time fill memory enough.
  logits = lax.map(one, images.reshape(batches, -1, *images.shape[1:]))
  return logits.reshape(len(images), -1)


def sums_of(logits: Float[Array, "n classes"], batch: Batch) -> MetricSums:
  """Sums over the examples whose mask is true."""
  # The loss that is reported is the cross entropy, without the smoothing of the training loss.
  losses = smoothed_cross_entropy(logits, batch.label)
  return masked_sums(logits, losses, batch.label, batch.mask)


def share_of_first(data: Batch, order: Int[Array, "m"], count: int, *, spec: TrainSpec) -> Batch:
  """This device's share of the first `count` images of an order of the set, in equal batches.

  Shares are of one size; what of them lies behind `count` is masked. As the set itself is whole
  batches on every device, they end within it.
  """
  share = -(-count // spec.devices)
  batches = -(-share // spec.plan.eval_batch_size)
  share = batches * -(-share // batches)
  first = lax.axis_index(AXIS) * share
  index = lax.dynamic_slice_in_dim(order, first, share)
  taken = jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), data)
  return taken.replace(mask=taken.mask & (first + jnp.arange(share, dtype=jnp.int32) < count))


def evaluate(variables: dict[str, Any], data: Batch, *, spec: TrainSpec) -> MetricSums:
  """Sums over the whole set, of which each device looks at its own part.

  With "selective" views the net first sees every image once. For the least confident quarter of
  all, by the largest softmax probability, the mean over six views then replaces the logits.

  Args:
    variables: params and batch_stats, as `TrainState.evaluated` gives them.
    data: the set on every device, padded and masked by `data.batch.pad_batches`.
    spec: what does not change.
  """
  views = spec.config.eval.mode
  size = len(data.mask) // spec.devices
  first = lax.axis_index(AXIS) * size
  part = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, first, size), data)
  if views != "selective":
    return lax.psum(sums_of(logits_in_batches(variables, part.image, views, spec=spec), part), AXIS)

  logits = logits_in_batches(variables, part.image, "center", spec=spec)
  confidence = jnp.where(part.mask, jax.nn.softmax(logits).max(axis=-1), jnp.inf)
  order = jnp.argsort(lax.all_gather(confidence, AXIS, tiled=True), stable=True)
  selected = int(SELECTED * spec.plan.eval_images)
  # Each image's place in the order: the inverse of a permutation is what sorts it.
  place = lax.dynamic_slice_in_dim(jnp.argsort(order), first, size)
  sums = sums_of(logits, part.replace(mask=part.mask & (place >= selected)))
  if selected:
    again = share_of_first(data, order, selected, spec=spec)
    sums += sums_of(logits_in_batches(variables, again.image, views, spec=spec), again)
  return lax.psum(sums, AXIS)


def evaluate_batch(
  variables: dict[str, Any],
  batch: Batch,
  sums: MetricSums,
  *,
  spec: TrainSpec,
  mode: str,
  size: int,
) -> MetricSums:
  """Sums over a batch of a stream, added to those over the batches before.

  "center" takes the middle square of `size` pixels of the resized image, "rect" a rectangle that
  keeps almost all of it (fast.ai's DAWNBench entry; `disk.rectangles`), "flip" and "rect_flip" the
  mean of that and its mirror image (libffcv/ffcv-imagenet), "five" the mean of the four corners
  and the middle of the middle square of the resized image.

  Args:
    variables: params and batch_stats.
    batch: this device's images, as they are stored.
    sums: over all devices, so far.
    spec: what does not change.
    mode: one of the above.
    size: side of the squares that "five" cuts out.
  """
  config = spec.config
  normal = normalize(batch.image, config.data.mean, config.data.std, spec.accumulation)
  images = normal.astype(precision.DTYPES[config.precision])
  logits = logits_of(variables, images, mode, spec=spec, size=size)
  return sums + lax.psum(sums_of(logits, batch), AXIS)


def evaluate_on_mesh(spec: TrainSpec) -> Any:
  """`evaluate` with variables and set whole on every device."""
  return on_mesh(evaluate, spec)
