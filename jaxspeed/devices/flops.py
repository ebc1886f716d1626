"""Counts of floating-point operations of a traced program, from its equations.

XLA's own count does not serve: GPU plugins have none before compilation, and afterwards cuDNN's
convolutions are opaque calls.
"""

import math
from collections.abc import Iterator
from typing import Any


def count_flops(jaxpr: Any) -> float:
  """Operations in the matrix products and convolutions of one call, two for each product.

  A scan counts with its length. The body of a `while_loop` counts once, and of several such loops
  one after the other the largest: the program of an epoch has one for each kind of step, and so
  gives a step's. Of several branches the largest counts. Products with a convolution's padding
  count, as in published figures. All else, 1 % of a ResNet, does not.

  Args:
    jaxpr: a jaxpr, closed or not, such as that of a `jax.stages.Traced`.
  """
  total, loops = 0.0, [0.0]
  for equation in _needed(getattr(jaxpr, "jaxpr", jaxpr)):
    name = equation.primitive.name
    if name in ("dot_general", "conv_general_dilated"):
      total += 2.0 * _products_per_output(equation) * math.prod(equation.outvars[0].aval.shape)
    else:
      inner = [count_flops(each) for each in _inner(equation.params.values())]
      if name == "while":
        loops.append(sum(inner))
      elif name == "cond":
        total += max(inner, default=0.0)
      else:
        total += sum(inner) * (equation.params["length"] if name == "scan" else 1)
  return total + max(loops)


def _products_per_output(equation: Any) -> float:
  """Products in each number that a matrix product or a convolution returns."""
  numbers = equation.params["dimension_numbers"]
  if equation.primitive.name == "dot_general":
    ((contracted, _), _) = numbers
    sides = equation.invars[0].aval.shape
    return math.prod(sides[axis] for axis in contracted)
  kernel = equation.invars[1].aval.shape
  # One for each weight of an output channel, over the input channels and positions.
  products = math.prod(kernel) / kernel[numbers.rhs_spec[0]]
  # In the gradient of a strided convolution, the zeros between its inputs are no products.
  return products / math.prod(equation.params["lhs_dilation"])


def _needed(jaxpr: Any) -> Iterator[Any]:
  """The equations that results depend on, last first; a vector-Jacobian product has unused ones."""
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
