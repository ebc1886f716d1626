"""What the tests of the library share."""

import jax
import pytest
from fits import digits  # noqa: F401  a fixture


@pytest.fixture(scope="module")
def promotion():
  """Types are promoted as users have it: Optax's Adam needs that."""
  before = jax.config.values["jax_numpy_dtype_promotion"]
  jax.config.update("jax_numpy_dtype_promotion", "standard")
  yield
  jax.config.update("jax_numpy_dtype_promotion", before)
