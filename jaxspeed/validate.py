"""The only code that turns predictions into accuracy: views of an image, averages, exact counts."""

import functools
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from jaxspeed import precision
from jaxspeed.build import Job
from jaxspeed.data.augment import normalize
from jaxspeed.data.feed import Batch
from jaxspeed.losses import Sums, masked_sums, smoothed_cross_entropy
from jaxspeed.mesh import AXIS


def predict_logits(
  variables: dict[str, Any], images: Float[Array, "n h w 3"], *, job: Job
) -> Float[Array, "n classes"]:
  """Logits of normalised images, the mean over the views of `config.eval.views`.

  "flip" takes the image and its mirror image (davidcpage/cifar10-fast, Kakao Brain).
  """
  views = [images, images[:, :, ::-1]] if job.config.eval.views == "flip" else [images]
  logits: list[Any] = [job.model.apply(variables, view, train=False) for view in views]
  return sum(logits) / len(logits)


def evaluate(variables: dict[str, Any], data: Batch, *, job: Job) -> Sums:
  """Sums over this device's part of the set, then over all devices.

  Args:
    variables: params and batch_stats, as `TrainState.evaluated` gives them.
    data: whole batches of `plan.eval_batch_size`, padded and masked by `feed.pad_batches`.
    job: what does not change.
  """
  config = job.config
  batch = job.plan.eval_batch_size
  batches = jax.tree.map(lambda x: x.reshape(-1, batch, *x.shape[1:]), data)

  def one(part: Batch) -> Sums:
    image = normalize(part.image, config.data.mean, config.data.std)
    logits = predict_logits(variables, image.astype(precision.DTYPES[config.precision]), job=job)
    # The loss that is reported is the cross entropy, without the smoothing of the training loss.
    losses = smoothed_cross_entropy(logits, part.label)
    return masked_sums(logits, losses, part.label, part.mask)

  # A loop and not one large batch: activations of 1,000 images at a time fill memory enough.
  sums = lax.map(one, batches)
  return lax.psum(jax.tree.map(lambda x: x.sum(axis=0), sums), AXIS)


def evaluate_on_mesh(job: Job) -> Any:
  """`evaluate` with variables on every device and the set split over the devices."""
  return jax.shard_map(
    functools.partial(evaluate, job=job),
    mesh=job.mesh,
    in_specs=(P(), P(AXIS)),
    out_specs=P(),
    check_vma=False,
  )
