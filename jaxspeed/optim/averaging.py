"""Averages of the model over training: exponential moving average and lookahead."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict


def describe(fields: ConfigDict) -> str:
  """Describe in words the weights that are evaluated with `config.average`."""
  if fields.kind == "none":
    return "the live weights"
  every = "every step" if fields.every == 1 else f"every {fields.every} steps"
  if fields.kind == "lookahead":
    return f"the live weights, set to their average {every} and after the last step (lookahead)"
  reach = f", over at most {fields.reach:.0%} of the steps so far" if fields.reach else ""
  return f"an exponential moving average (decay {fields.decay:g} per step, {every}{reach})"


def ema(average: PyTree, new: PyTree, keep: Float[Array, ""]) -> PyTree:
  """Return keep * average + (1 - keep) * new, leaf by leaf; keep = 1 gives exactly `average`.

  It covers parameters and running statistics, as in davidcpage/cifar10-fast.
  """
  return jax.tree.map(lambda a, b: a * keep + b * (1.0 - keep), average, new)


def lookahead(
  average: PyTree, new: PyTree, keep: Float[Array, ""], pull: Float[Array, ""]
) -> tuple[PyTree, PyTree]:
  """Move the average towards the model, then set the model to the average where `pull` is 1.

  Both include parameters and running statistics, as in tysam-code/hlb-CIFAR10 and
  KellerJordan/cifar10-airbench.

  Args:
    average: the average before this step.
    new: the model after this step.
    keep: the share to keep: the average becomes keep * average + (1 - keep) * new. It is exactly
      `average` with 1, exactly `new` with 0, and a leaf that never changes never drifts.
    pull: 1 sets the model to the average; 0 leaves it exactly `new`.

  Returns:
    The new average and the new model.
  """

  def move(a, b):
    # Starting from the nearer end reaches both ends without rounding.
    return jnp.where(keep >= 0.5, a + (1.0 - keep) * (b - a), b - keep * (b - a))

  average = jax.tree.map(move, average, new)
  return average, jax.tree.map(lambda a, b: jnp.where(pull > 0, a, b), average, new)
