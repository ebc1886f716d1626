"""What an evaluation says of each image, beside its sums."""

from typing import Any

import flax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxspeed.data.batch import Batch
from jaxspeed.devices.precision import accumulation
from jaxspeed.steps.losses import MetricSums


class Outcomes(flax.struct.PyTreeNode):
  """The evaluation of a batch, image by image.

  Attributes:
    index: the image's number in its split; -1 for an example that does not count.
    label: its class.
    predicted: the class of the largest logit, the first of equals; -1 if that logit is infinite or
      any is NaN. It is the label just where `losses.masked_sums` counts the image in top1.
    probability: the softmax probability of the predicted class, its confidence.
    loss: the cross entropy, without label smoothing.
    logits: the mean logits of its views; None unless they are to be saved.
  """

  index: Int[Any, "n"]
  label: Int[Any, "n"]
  predicted: Int[Any, "n"]
  probability: Float[Any, "n"]
  loss: Float[Any, "n"]
  logits: Float[Any, "n classes"] | None = None


class EvalResult(flax.struct.PyTreeNode):
  """The result of an evaluation: its sums, and parts that hold each counted image once."""

  sums: MetricSums
  images: tuple[Outcomes, ...]


def outcomes_of(
  logits: Float[Array, "n classes"], losses: Float[Array, "n"], batch: Batch
) -> Outcomes:
  """Return what the logits predict for each image; `losses` are its cross entropies."""
  assert batch.index is not None
  classes = logits.shape[-1]
  largest = jnp.max(logits, axis=-1, keepdims=True)
  # A smallest number, not an argmax: it shares its pass over the logits with the other sums.
  numbers = jnp.arange(classes, dtype=jnp.int32)
  first = jnp.min(jnp.where(logits == largest, numbers, classes), axis=-1)
  # XLA:CPU's fast maximum of numbers and a NaN need not be NaN.
  known = jnp.isfinite(largest[:, 0]) & ~jnp.any(jnp.isnan(logits), axis=-1)
  # The largest of softmax's numerators is exp(0).
  above = logits.astype(accumulation(logits.dtype)) - largest.astype(accumulation(logits.dtype))
  return Outcomes(
    index=jnp.where(batch.mask, batch.index, -1),
    label=batch.label,
    predicted=jnp.where(known, first, -1),
    probability=1 / jnp.sum(jnp.exp(above), axis=-1),
    loss=losses,
  )
