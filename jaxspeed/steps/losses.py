"""Cross entropy with label smoothing, and the masked sums that accuracies are made of."""

import math
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxspeed.devices.precision import accumulation


def smoothed_cross_entropy(
  logits: Float[Array, "n classes"], labels: Int[Array, "n"], smoothing: float = 0.0
) -> Float[Array, "n"]:
  """(1 - s) * -log p[label] + s * mean over classes of -log p, per example.

  The definition of torch.nn.CrossEntropyLoss(label_smoothing=s) and of davidcpage/cifar10-fast.
  """
  log_p = jax.nn.log_softmax(logits.astype(accumulation(logits.dtype)))
  # A one-hot product and no gather: the gradient of a gather is a scatter.
  target = jax.nn.one_hot(labels, logits.shape[-1], dtype=log_p.dtype)
  target = target * (1.0 - smoothing) + smoothing / logits.shape[-1]
  return -jnp.sum(target * log_p, axis=-1)


class MetricSums(flax.struct.PyTreeNode):
  """Sums over examples; divided only when they are read, so that every example counts once."""

  loss: Float[Any, ""]
  top1: Int[Any, ""]
  top5: Int[Any, ""]
  count: Int[Any, ""]

  @classmethod
  def zero(cls, dtype: DTypeLike = np.float32) -> "MetricSums":
    """Sums over nothing; the loss is in `dtype`."""
    # NumPy: an array of JAX's made here would compile a program, perhaps inside the clock.
    return cls(np.zeros((), dtype), *(np.zeros((), np.int32) for _ in range(3)))

  def __add__(self, other: "MetricSums") -> "MetricSums":
    return jax.tree.map(jnp.add, self, other)

  def means(self, classes: int) -> dict[str, float]:
    """Mean loss and accuracies as fractions; of no examples, NaN.

    Args:
      classes: that are told apart; without top5 where there is none (`has_top5`).
    """
    count = float(self.count)
    sums = {"loss": self.loss, "top1": self.top1}
    sums |= {"top5": self.top5} if has_top5(classes) else {}
    return {name: float(x) / count if count else math.nan for name, x in sums.items()}


def has_top5(classes: int) -> bool:
  """Whether top-5 means anything: of five classes or fewer, all are among the five likeliest."""
  return classes > 5


def masked_sums(
  logits: Float[Array, "n classes"],
  losses: Float[Array, "n"],
  labels: Int[Array, "n"],
  mask: Bool[Array, "n"],
) -> MetricSums:
  """Sums over the examples whose mask is true.

  The rank of the label is the number of classes that score higher, or as high and come before it:
  the order of a stable sort, so that a net that answers a constant is not right by ties.
  """
  classes = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  is_label = classes[None, :] == labels[:, None]
  own = jnp.sum(jnp.where(is_label, logits, 0), axis=-1, keepdims=True)
  ahead = (logits > own) | ((logits == own) & (classes[None, :] < labels[:, None]))
  # A NaN compares as not ahead: without these a diverged net would be right everywhere.
  ahead |= jnp.isnan(logits)
  rank = jnp.where(jnp.isfinite(own[:, 0]), jnp.sum(ahead & ~is_label, axis=-1), classes.size)
  return MetricSums(
    loss=jnp.sum(jnp.where(mask, losses, 0.0)),
    top1=jnp.sum((rank < 1) & mask, dtype=jnp.int32),
    top5=jnp.sum((rank < 5) & mask, dtype=jnp.int32),
    count=jnp.sum(mask, dtype=jnp.int32),
  )
