"""How far apart numbers may be that should be equal: from the arithmetic, never from a machine.

XLA writes other code for each processor, which sums in another order. In float64 no such order
decides a test; in float32 what it may decide follows from the number of terms.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

# Of whole programs in float64, relative to the largest number of an array: thousands of terms a
# sum, over layers and steps, leave 1e-13 to 1e-12.
EQUAL = 1e-11


def rounding(terms: int, dtype: Any = np.float32) -> float:
  """Bound of the relative error of a sum of `terms` numbers, or of as many roundings in a row.

  (n - 1) u to first order (Higham 2002, chapter 4), for any order of the sum; with u = eps / 2 for
  each of two results that are compared, n eps.
  """
  return terms * float(jnp.finfo(dtype).eps)


def assert_equal(actual: Any, expected: Any, tolerance: float = EQUAL) -> None:
  """Trees of float64 arrays agree, each relative to the largest number expected in it.

  Other leaves than floats are equal exactly.
  """
  assert jax.tree.structure(actual) == jax.tree.structure(expected)

  def check(path: Any, a: ArrayLike, b: ArrayLike) -> None:
    a, b = np.asarray(a), np.asarray(b)
    name = jax.tree_util.keystr(path)
    assert a.shape == b.shape, name
    if not np.issubdtype(b.dtype, np.floating):
      np.testing.assert_array_equal(a, b, err_msg=name)
      return
    assert a.dtype == b.dtype == np.float64, f"{name} is {a.dtype} and {b.dtype}"
    largest = np.abs(b).max(initial=0)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest, err_msg=name)

  jax.tree_util.tree_map_with_path(check, actual, expected)


def assert_close(
  actual: ArrayLike, expected: ArrayLike, *, terms: int, dtype: Any = np.float32
) -> None:
  """Arrays agree up to `rounding`, relative to the largest number expected."""
  actual, expected = np.asarray(actual), np.asarray(expected)
  assert actual.shape == expected.shape
  largest = np.abs(expected).max(initial=0)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=rounding(terms, dtype) * largest)
