"""Averages of the model over the steps: the exponential moving average that is evaluated."""

import jax
from jaxtyping import Array, Float, PyTree


def ema(average: PyTree, new: PyTree, keep: Float[Array, ""]) -> PyTree:
  """keep * average + (1 - keep) * new, leaf by leaf; with keep = 1 exactly `average`.

  Over parameters and running statistics alike, as in davidcpage/cifar10-fast.
  """
  return jax.tree.map(lambda a, b: a * keep + b * (1.0 - keep), average, new)
