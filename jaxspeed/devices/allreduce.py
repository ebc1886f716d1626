"""The all-reduce of gradients, in groups that start while the backward pass runs.

Fujitsu (Yamazaki et al. 2019, arXiv 1903.12650) sums groups of layers of a few megabytes as soon as
their gradients are ready, the last layers' first. XLA combines all-reduces too, but not by layer.
So each group is one flat vector here, which XLA would build anyway, and XLA's own combining is off.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from jaxspeed.devices import precision
from jaxspeed.devices.mesh import AXIS

_MEGABYTE = 1e6
# A line of a compiled program with an all-reduce, or with the start of an asynchronous one.
_ALL_REDUCE = re.compile(r"^[^=\n]*= ([^=\n]*?) all-reduce(?:-start)?\(", re.MULTILINE)
_ARRAY = re.compile(r"(pred|[a-z]+\d+)\[([\d,]*)\]")


def layer_order(
  make_variables: Callable[..., Any], image_size: int, frozen: Collection[str] = ()
) -> tuple[int, ...]:
  """Positions of the gradients of a model in jax.tree.leaves, in the order of its layers.

  `make_variables` is its `init`. What is in one of its `frozen` parts has no gradient.
  """
  order: list[tuple[str, ...]] = []

  def init(key: Array) -> PyTree:
    images = jnp.zeros((1, image_size, image_size, 3))
    params = make_variables(key, images, train=False)["params"]
    params = {part: tree for part, tree in params.items() if part not in frozen}
    order.extend(_paths(params))  # these dicts keep the order of the layers
    return params

  jax.eval_shape(init, jax.random.key(0))
  leaves = sorted(order)  # as jax.tree sorts dicts
  return tuple(leaves.index(path) for path in order)


def _paths(tree: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
  if not isinstance(tree, dict):
    return [prefix]
  # A shortcut's gradient is ready with its block's, however early the shortcut runs in the block.
  names = sorted(tree, key=lambda name: name.startswith("shortcut"))
  return [path for name in names for path in _paths(tree[name], (*prefix, name))]


def make_groups(sizes: Sequence[int], limit: float) -> list[list[int]]:
  """Consecutive positions in groups; a group ends once its size reaches the limit.

  Args:
    sizes: the sizes of the gradients, in the order in which they are ready.
    limit: the limit, in the unit of the sizes; 0: a single group.
  """
  groups: list[list[int]] = [[]]
  filled = 0.0
  for position, size in enumerate(sizes):
    if limit and filled >= limit:
      groups.append([])
      filled = 0.0
    groups[-1].append(position)
    filled += size
  return groups


def sum_over_devices(
  gradient: PyTree, rest: PyTree, *, order: Sequence[int], group_mb: float, dtype: str
) -> tuple[PyTree, PyTree]:
  """Sums of the gradients and of some small values over the devices.

  Args:
    gradient: a tree of gradients of one dtype.
    rest: scalars and statistics of that dtype, or integers with sums below 2 ** 24, which one
      more all-reduce sums.
    order: the positions of the gradient's leaves, first layers first (`layer_order`).
    group_mb: the megabytes (1e6 bytes) at which a group ends; 0: a single group.
    dtype: float32 | bfloat16 | float16, in which gradients are sent and summed; float32: the
      gradients' own dtype.

  Returns:
    The summed gradient and rest, the same on all devices.
  """
  leaves, structure = jax.tree.flatten(gradient)
  # The backward pass computes the last layers' gradients first.
  ready = list(reversed(order))
  own = leaves[0].dtype
  wire = own if dtype == "float32" else precision.DTYPES[dtype]
  bytes_of = [leaves[i].size * jnp.dtype(wire).itemsize for i in ready]
  for group in make_groups(bytes_of, group_mb * _MEGABYTE):
    positions = [ready[i] for i in group]
    summed = _sum_flat([leaves[i] for i in positions], wire)
    for i, leaf in zip(positions, summed, strict=True):
      leaves[i] = leaf
  small, small_structure = jax.tree.flatten(rest)
  summed = _sum_flat(small, own)
  return jax.tree.unflatten(structure, leaves), jax.tree.unflatten(small_structure, summed)


def _sum_flat(leaves: Sequence[Array], dtype: Any) -> list[Array]:
  """Sums each array over the devices, all of them in one vector."""
  vector = jnp.concatenate([leaf.reshape(-1).astype(dtype) for leaf in leaves])
  total = lax.psum(vector, AXIS)
  ends = np.cumsum([leaf.size for leaf in leaves])
  parts = (total[end - leaf.size : end] for leaf, end in zip(leaves, ends, strict=True))
  return [
    part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves, strict=True)
  ]


def compiler_options(platform: str, devices: int) -> dict[str, Any]:
  """XLA options for a training program that keep the groups apart and start them early."""
  if devices == 1 or platform == "tpu":
    return {}
  if platform == "cpu":
    # This pass would merge all independent all-reduces, whatever their size.
    return {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}
  return {
    "xla_gpu_all_reduce_combine_threshold_bytes": 1,
    "xla_gpu_enable_latency_hiding_scheduler": True,
  }


def count(program: str) -> list[int]:
  """Bytes of each all-reduce of a compiled program.

  Args:
    program: the optimised HLO, from `compiled.as_text()`.
  """
  return [
    sum(
      int(np.prod([int(n) for n in shape.split(",") if n]))
      * (1 if kind == "pred" else int(re.sub(r"\D", "", kind)) // 8)
      for kind, shape in _ARRAY.findall(result)
    )
    for result in _ALL_REDUCE.findall(program.replace("/*index=", "/*"))  # = in long tuples
  ]


def describe(program: str) -> str:
  """A compiled program's all-reduces, as "13 all-reduces of 0.4 to 9.4 MB, 102.2 MB in all"."""
  found = count(program)
  if not found:
    return "no all-reduce"
  megabytes = [size / _MEGABYTE for size in found]
  span = (
    f"{min(megabytes):.3g} to {max(megabytes):.3g}" if len(found) > 1 else f"{megabytes[0]:.3g}"
  )
  return f"{len(found)} all-reduces of {span} MB, {sum(megabytes):.4g} MB in all"
