"""Parameter groups, each with its own learning rate and weight decay."""

import jax
from jaxtyping import PyTree


def labels_of(params: PyTree) -> PyTree:
  """Return the group of each parameter, as a tree of labels.

  "filter" is the kernel of a convolution, "frozen" that of the whitening layer, and "head" the only
  kernel of a linear layer. The others are "head_bias", "scale", "bias" and "whiten_bias".
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
  """Like `labels_of`, but the head is a filter too, so that one pass computes all norms."""
  return jax.tree.map(lambda label: "filter" if label == "head" else label, labels_of(params))
