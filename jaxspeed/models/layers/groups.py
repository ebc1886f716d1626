"""The labels of our models' parameters, by the names that our layers give them."""

import jax
from jaxtyping import PyTree


def groups_by_name(params: PyTree) -> PyTree:
  """Return the label of each parameter of one of our models.

  "frozen" is the kernel of the module `whiten` and "whiten_bias" its bias; "head" and "head_bias"
  are those of the module `head`; "embedding" are a ViT's class token and positions. Elsewhere
  `kernel`, `scale` and `bias` are what their names say.
  """

  def label(path, _):
    names = [part.key for part in path]
    if "whiten" in names:
      return "whiten_bias" if names[-1] == "bias" else "frozen"
    if "head" in names:
      return "head_bias" if names[-1] == "bias" else "head"
    return "embedding" if names[-1] in ("class_token", "positions") else names[-1]

  return jax.tree_util.tree_map_with_path(label, params)
