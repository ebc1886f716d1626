"""Floating-point operations of a traced program, counted in its equations.

XLA's own count is of no use here: GPU plugins have none of a program that is not compiled, and in a
compiled one cuDNN's convolutions are calls that it cannot look into.
"""

import math
from collections.abc import Iterator
from typing import Any


def count_flops(jaxpr: Any) -> float:
  """Operations of the matrix products and convolutions of one call, two for each product.

  The body of a loop counts once, and of several branches the largest; products with the padding
  of a convolution count, as in published figures, and everything else does not, 1 % of a ResNet.

  Args:
    jaxpr: of a `jax.stages.Traced`, or any other, closed or not.
  """
  total = 0.0
  for equation in _needed(getattr(jaxpr, "jaxpr", jaxpr)):
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
      ((contracted, _), _) = parameters["dimension_numbers"]
      sides = equation.invars[0].aval.shape
      products = math.prod(sides[axis] for axis in contracted)
    elif name == "conv_general_dilated":
      kernel, layout = equation.invars[1].aval.shape, parameters["dimension_numbers"].rhs_spec
      # A product for each weight of an output channel: its input channels and its places.
      products = math.prod(kernel) / kernel[layout[0]]
      # The gradient of a strided one: the zeros between its inputs are no products.
      products /= math.prod(parameters["lhs_dilation"])
    else:
      inner = [count_flops(each) for each in _inner(parameters.values())]
      total += max(inner, default=0.0) if name == "cond" else sum(inner)
      continue
    total += 2.0 * products * math.prod(equation.outvars[0].aval.shape)
  return total


def _needed(jaxpr: Any) -> Iterator[Any]:
  """The equations that a result depends on, last first; a vector-Jacobian product leaves others."""
  needed = {id(variable) for variable in jaxpr.outvars}
  for equation in reversed(jaxpr.eqns):
    if any(id(variable) in needed for variable in equation.outvars):
      needed.update(id(variable) for variable in equation.invars)
      yield equation


def _inner(values: Any) -> Iterator[Any]:
  """The jaxprs among the parameters of an equation."""
  for value in values:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
      yield value
    elif isinstance(value, tuple | list):
      yield from _inner(value)
