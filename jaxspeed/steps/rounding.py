"""Loops of steps in which the end of one step rounds the parameters for the next."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxspeed.steps.state import Carry

Step = Callable[[Carry], tuple[Carry, Array]]
Rounded = tuple[Array, ...]


def hoist_casts(
  step: Step, carry: Carry
) -> tuple[Callable[[Carry], Rounded], Callable[[Carry, Rounded], tuple[Carry, Array]]]:
  """Splits a step into the rounding of its parameters and all else.

  A loop that carries the rounded parameters computes the same numbers, and the kernel that updates
  a parameter also rounds it: cifar10.py on an H100 has 125 kernels a step if each step rounds its
  own (results/h100_step.json). A cast inside a part of the step, such as a micro-batch's loop,
  stays there. Labels of parameters do not say which to round: of ResNet-50's kernels 33 of 53,
  since some layers compute with theirs in float32 too, and a ViT's biases as well.

  Args:
    step: from a carry to the next one and a loss.
    carry: the shapes that it is traced for.

  Returns:
    A function that rounds what the step rounds first of all, and the step that takes the result.
  """
  closed, shapes = jax.make_jaxpr(step, return_shape=True)(carry)
  jaxpr, tree = closed.jaxpr, jax.tree.structure(shapes)
  places: dict[Any, int] = {variable: place for place, variable in enumerate(jaxpr.invars)}
  casts = [line for line in jaxpr.eqns if _rounds(line) and line.invars[0] in places]
  kept = [line for line in jaxpr.eqns if not any(line is cast for cast in casts)]
  rounded_in = [cast.outvars[0] for cast in casts]
  debug = jaxpr.debug_info.with_unknown_names()
  rest = jax.extend.core.jaxpr_as_fun(
    closed.replace(
      jaxpr=jaxpr.replace(invars=[*jaxpr.invars, *rounded_in], eqns=kept, debug_info=debug)
    )
  )

  def rounded(carry: Carry) -> Rounded:
    leaves = jax.tree.leaves(carry)
    return tuple(leaves[places[cast.invars[0]]].astype(_dtype(cast.outvars[0])) for cast in casts)

  def stepped(carry: Carry, rounded: Sequence[Array]) -> tuple[Carry, Array]:
    return jax.tree.unflatten(tree, rest(*jax.tree.leaves(carry), *rounded))

  return rounded, stepped


def _rounds(line: Any) -> bool:
  """Whether an equation of a jaxpr only rounds an array to a narrower type of floats."""
  if line.primitive.name != "convert_element_type":
    return False
  wide, narrow = _dtype(line.invars[0]), _dtype(line.outvars[0])
  floats = jnp.issubdtype(wide, jnp.floating) and jnp.issubdtype(narrow, jnp.floating)
  return floats and narrow.itemsize < wide.itemsize and line.outvars[0].aval.ndim > 0


def _dtype(variable: Any) -> Any:
  return variable.aval.dtype
