"""Cross entropy with soft labels, and the masked sums behind losses and accuracies."""

import dataclasses
import math
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxspeed.data.batch import Batch
from jaxspeed.devices.precision import accumulation


def cross_entropy(
  logits: Float[Array, "n classes"],
  target: Float[Array, "n classes"],
  smoothing: float = 0.0,
  weights: Float[Any, "classes"] | None = None,
) -> Float[Array, "n"]:
  """Return (1 - s) * (target * -log p).sum() + s * mean over classes of -log p, per example.

  The same as torch.nn.CrossEntropyLoss(label_smoothing=s) and davidcpage/cifar10-fast. Class
  weights multiply each class's -log p in both terms, as `weight` does there. A `target` in place of
  labels is also faster: the gradient of a gather is a scatter.
  """
  log_p = jax.nn.log_softmax(logits.astype(accumulation(logits.dtype)))
  target = target * (1.0 - smoothing) + smoothing / logits.shape[-1]
  if weights is not None:
    target = target * jnp.asarray(weights, target.dtype)
  return -jnp.sum(target * log_p, axis=-1)


def mixed_labels(batch: Batch, classes: int) -> Float[Array, "n classes"]:
  """The labels of augmented images as vectors, each with its share of its partner's."""
  assert batch.partner_weight is not None
  weight = batch.partner_weight[:, None]
  learned = batch.label if batch.learned is None else batch.learned
  own, partner = (
    jax.nn.one_hot(label, classes, dtype=weight.dtype) for label in (learned, batch.partner)
  )
  return (1 - weight) * own + weight * partner


class MetricSums(flax.struct.PyTreeNode):
  """Sums over examples; they are divided only when read, so that every example counts once."""

  loss: Float[Any, ""]
  top1: Int[Any, ""]
  top5: Int[Any, ""]
  count: Int[Any, ""]

  @classmethod
  def zero(cls, dtype: DTypeLike = np.float32) -> "MetricSums":
    """Return sums over no examples; the loss is in `dtype`."""
    # NumPy, because a JAX array would compile a program, perhaps while the clock runs.
    dtypes = {field.name: np.int32 for field in dataclasses.fields(cls)} | {"loss": dtype}
    return cls(**{name: np.zeros((), each) for name, each in dtypes.items()})

  def __add__(self, other: "MetricSums") -> "MetricSums":
    return jax.tree.map(jnp.add, self, other)

  def means(self, classes: int) -> dict[str, float]:
    """Return the mean loss and the accuracies as fractions; NaN if there are no examples.

    Args:
      classes: the number of classes; with too few there is no top5 (`has_top5`).
    """
    count = float(self.count)
    sums = {"loss": self.loss, "top1": self.top1}
    sums |= {"top5": self.top5} if has_top5(classes) else {}
    return {name: float(x) / count if count else math.nan for name, x in sums.items()}


def has_top5(classes: int) -> bool:
  """Whether top-5 is meaningful: with five classes or fewer it is always 100 %."""
  return classes > 5


def masked_sums(
  logits: Float[Array, "n classes"],
  losses: Float[Array, "n"],
  labels: Int[Array, "n"],
  mask: Bool[Array, "n"],
) -> MetricSums:
  """Sum the metrics of the examples with a true mask; none of the sums has a gradient.

  The rank of the label counts the classes with a higher logit, and those with an equal logit that
  come before it, as in a stable sort. So ties do not make a model with constant logits right.
  """
  logits, losses = lax.stop_gradient((logits, losses))
  classes = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  is_label = classes[None, :] == labels[:, None]
  own = jnp.sum(jnp.where(is_label, logits, 0), axis=-1, keepdims=True)
  ahead = (logits > own) | ((logits == own) & (classes[None, :] < labels[:, None]))
  # A NaN never compares as higher: without this, a diverged model would always be right.
  ahead |= jnp.isnan(logits)
  rank = jnp.where(jnp.isfinite(own[:, 0]), jnp.sum(ahead & ~is_label, axis=-1), classes.size)
  # One sum of three numbers: on a GPU one kernel.
  terms = {"loss": jnp.where(mask, losses, 0.0)}
  terms |= {f"top{k}": ((rank < k) & mask).astype(jnp.int32) for k in (1, 5)}
  zeros = jax.tree.map(lambda x: jnp.zeros((), x.dtype), terms)
  sums = lax.reduce(terms, zeros, lambda x, y: jax.tree.map(jnp.add, x, y), (0,))
  return MetricSums(**sums, count=jnp.sum(mask, dtype=jnp.int32))
