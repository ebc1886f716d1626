"""Groups of parameters that have learning rates and decays of their own."""

import jax
from jaxtyping import PyTree


def labels_of(params: PyTree) -> PyTree:
  """The kind of each parameter.

  Filters are the kernels of convolutions, except for the whitening layer's, which is frozen; the
  head's is the only kernel of a linear layer. The others are "head_bias", "scale", "bias" and
  "whiten_bias".
  """

  def label(path, leaf):
    names = [part.key for part in path]
    if "whiten" in names:
      return "whiten_bias" if names[-1] == "bias" else "frozen"
    if names[-1] in ("bias", "scale"):
      return "head_bias" if "head" in names else names[-1]
    return "filter" if leaf.ndim == 4 else "head"

  return jax.tree_util.tree_map_with_path(label, params)


def labels_of_lars(params: PyTree) -> PyTree:
  """As `labels_of`, with the head among the filters: one pass for all norms."""
  return jax.tree.map(lambda label: "filter" if label == "head" else label, labels_of(params))
