"""Parameter groups: the label of each parameter, which decides its learning rate and its decay."""

from collections.abc import Callable, Iterator
from typing import Any

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

_Path = tuple[str, ...]
_NAMED = 3


def labels_of(model: Any, params: PyTree, *, classes: int, image_size: int) -> PyTree:
  """Return the label of each parameter of a model.

  The model's method `param_groups` says it, or `labels_by_shape` if it has none.

  Args:
    model: the model.
    params: its parameters, or their shapes.
    classes: the number of classes.
    image_size: the side of the images on which the model is traced, in pixels.
  """
  if hasattr(model, "param_groups"):
    choice = f"one of {', '.join(LABELS)}"
    return asked(model, "param_groups", params, "label", LABELS.__contains__, choice)
  found = labels_by_shape(shapes_in_order(model, image_size), classes)
  return jax.tree_util.tree_map_with_path(lambda path, _: found[_names(path)], params)


def for_lars(labels: PyTree) -> PyTree:
  """The same labels, but the head is a kernel too, so that one pass computes all norms."""
  return jax.tree.map(lambda label: "kernel" if label == "head" else label, labels)


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


def shapes_in_order(model: Any, image_size: int) -> dict[_Path, tuple[int, ...]]:
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


def asked(
  model: Any,
  method: str,
  params: PyTree,
  what: str,
  fits: Callable[[Any], bool],
  choice: str,
) -> PyTree:
  """What a method of a model says of each parameter, checked.

  Args:
    model: the model.
    method: the name of its method, which maps the parameters to a tree of the same structure.
    params: the parameters, or their shapes.
    what: what the method says of a parameter, for messages.
    fits: whether it may say a value.
    choice: the values that it may say, for messages.

  Raises:
    UserError: the method fails, or returns another structure or other values.
  """
  name = f"{type(model).__name__}.{method}"
  try:
    tree = getattr(model, method)(params)
  except Exception as error:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    raise UserError(
      f"{name} fails ({reason}): it must map the parameters to a tree with a {what} for each."
    ) from error
  found, wanted = _dotted(tree), _dotted(params)
  if str(jax.tree.structure(tree)) != str(jax.tree.structure(params)):
    differing = sorted(found.keys() ^ wanted.keys())
    where = f", which differs at {', '.join(differing[:_NAMED])}" if differing else ""
    raise UserError(
      f"{name} returns a tree of another structure than the parameters{where}: return one {what} "
      "for each parameter, as jax.tree.map does."
    )
  for parameter, value in found.items():
    if not fits(value):
      raise UserError(f"{name} gives {parameter} the {what} {value!r}: use {choice}.")
  return tree


def _dotted(tree: PyTree) -> dict[str, Any]:
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }
