"""Averages of the model over the steps: the exponential moving average, and lookahead."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict

# Kinds of `config.average`, and which weights an evaluation is of with each.
KINDS = {"none": "live", "ema": "average", "lookahead": "lookahead"}


def describe(fields: ConfigDict) -> str:
  """The weights that are evaluated with `config.average`, in words."""
  if fields.kind == "none":
    return "the live ones"
  every = "every step" if fields.every == 1 else f"every {fields.every} steps"
  if fields.kind == "lookahead":
    return f"the live ones, which go back to their average {every} and after the last (lookahead)"
  reach = f", over at most {fields.reach:.0%} of the steps so far" if fields.reach else ""
  return f"their exponential moving average (decay {fields.decay:g} a step, {every}{reach})"


def ema(average: PyTree, new: PyTree, keep: Float[Array, ""]) -> PyTree:
  """keep * average + (1 - keep) * new, leaf by leaf; with keep = 1 exactly `average`.

  Over parameters and running statistics alike, as in davidcpage/cifar10-fast.
  """
  return jax.tree.map(lambda a, b: a * keep + b * (1.0 - keep), average, new)


def lookahead(
  average: PyTree, new: PyTree, keep: Float[Array, ""], pull: Float[Array, ""]
) -> tuple[PyTree, PyTree]:
  """The average moves to the model, then the model goes back to the average.

  Over parameters and running statistics alike, as in tysam-code/hlb-CIFAR10 and
  KellerJordan/cifar10-airbench.

  Args:
    average: of the steps before.
    new: the model after this step.
    keep: the average becomes keep * average + (1 - keep) * new. It is exactly `average` with 1,
      exactly `new` with 0, and a leaf that never changes never drifts.
    pull: the model becomes the average where this is 1, else stays exactly `new`.

  Returns:
    The new average and the new model.
  """

  def move(a, b):
    # From the nearer end: each end is then reached without rounding.
    return jnp.where(keep >= 0.5, a + (1.0 - keep) * (b - a), b - keep * (b - a))

  average = jax.tree.map(move, average, new)
  return average, jax.tree.map(lambda a, b: jnp.where(pull > 0, a, b), average, new)
