"""Parameter groups: the label of each parameter, which decides its learning rate and its decay."""

from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from jaxspeed.errors import UserError

# What a model's `param_groups` may say of a parameter; `optim.make` has what each is trained with.
LABELS = (
  "kernel",
  "scale",
  "bias",
  "embedding",
  "head",
  "head_bias",
  "whiten_bias",
  "frozen",
)

# From a tree of parameters to a tree of labels of the same structure.
Labels = Callable[[PyTree], PyTree]

_Path = tuple[str, ...]
_NAMED = 3


def labels_of(model: nn.Module, *, classes: int, image_size: int) -> Labels:
  """Return the function that labels a model's parameters.

  It is the model's method `param_groups`, checked, or `labels_by_shape` if it has none.

  Args:
    model: the model.
    classes: the number of classes.
    image_size: the side of the images on which the model is traced, in pixels.
  """
  if hasattr(model, "param_groups"):
    return lambda params: _checked(type(model).__name__, _groups(model, params), params)
  found: dict[_Path, str] = {}

  def by_shape(params: PyTree) -> PyTree:
    if not found:
      found.update(labels_by_shape(shapes_in_order(model, image_size), classes))
    return jax.tree_util.tree_map_with_path(lambda path, _: found[_names(path)], params)

  return by_shape


def _groups(model: Any, params: PyTree) -> PyTree:
  """What the model's own `param_groups` returns; its exceptions become UserErrors."""
  try:
    return model.param_groups(params)
  except Exception as error:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    raise UserError(
      f"param_groups of {type(model).__name__} fails ({reason}): it must map the parameters to a "
      "tree of labels."
    ) from error


def for_lars(labels: Labels) -> Labels:
  """The same labels, but the head is a kernel too, so that one pass computes all norms."""

  def relabelled(params: PyTree) -> PyTree:
    return jax.tree.map(lambda label: "kernel" if label == "head" else label, labels(params))

  return relabelled


def labels_by_shape(shapes: dict[_Path, tuple[int, ...]], classes: int) -> dict[_Path, str]:
  """Return the labels of parameters by rank and place; no name decides.

  Rank 2 and more is "kernel", and the last one with as many outputs (its last axis) as classes is
  "head". Of the others, one in the same module as a kernel is its "bias" ("head_bias" beside the
  head); one in a module without kernels, such as both vectors of a norm, is "scale".

  Args:
    shapes: the shape of each parameter by its path, in the order of the layers.
    classes: the number of classes.
  """
  kernels = [path for path, shape in shapes.items() if len(shape) >= 2]
  heads = [path for path in kernels if shapes[path][-1] == classes]
  head = heads[-1] if heads else None
  modules = {path[:-1] for path in kernels}

  def label(path: _Path) -> str:
    if path in kernels:
      return "head" if path == head else "kernel"
    if head and path[:-1] == head[:-1]:
      return "head_bias"
    return "bias" if path[:-1] in modules else "scale"

  return {path: label(path) for path in shapes}


def shapes_in_order(model: nn.Module, image_size: int) -> dict[_Path, tuple[int, ...]]:
  """Return the shape of each parameter by its path, in the order in which the model makes them."""
  shapes: dict[_Path, tuple[int, ...]] = {}

  def init(key: Array) -> PyTree:
    params = model.init(key, jnp.zeros((1, image_size, image_size, 3)), train=False)["params"]
    # Only the dicts of `init` keep the order of the layers; jax.tree sorts them.
    shapes.update(_leaves(params, ()))
    return params

  jax.eval_shape(init, jax.random.key(0))
  return shapes


def _leaves(tree: Any, prefix: _Path) -> Iterator[tuple[_Path, tuple[int, ...]]]:
  for name, value in tree.items():
    if hasattr(value, "items"):
      yield from _leaves(value, (*prefix, name))
    else:
      yield (*prefix, name), tuple(value.shape)


def _names(path: Any) -> _Path:
  return tuple(part.key for part in path)


def _checked(model: str, labels: PyTree, params: PyTree) -> PyTree:
  """Return the labels if each is one of `LABELS` and the parameters have the same structure.

  Raises:
    UserError: they do not.
  """
  for name, label in _dotted(labels).items():
    if label not in LABELS:
      raise UserError(
        f"{model}.param_groups labels {name} as {label!r}: use one of {', '.join(LABELS)}."
      )
  same_structure(f"{model}.param_groups", labels, params, "label")
  return labels


def same_structure(method: str, tree: PyTree, params: PyTree, what: str) -> None:
  """Makes sure that a model's method returned one value for each parameter.

  Args:
    method: the name of the method.
    tree: what it returned.
    params: the parameters.
    what: what a value is.

  Raises:
    UserError: the tree has another structure than the parameters.
  """
  if str(jax.tree.structure(tree)) == str(jax.tree.structure(params)):
    return
  differing = sorted(_dotted(tree).keys() ^ _dotted(params).keys())
  where = f", which differs at {', '.join(differing[:_NAMED])}" if differing else ""
  raise UserError(
    f"{method} returns a tree of another structure than the parameters{where}: return one {what} "
    "for each parameter, as jax.tree.map does."
  )


def _dotted(tree: PyTree) -> dict[str, Any]:
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
