"""Dropout from the rng `dropout`."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class Dropout(nn.Module):
  """Sets each number to 0 with probability `rate` and divides the others by 1 - rate.

  Without `train`, or at rate 0, it returns its input and draws nothing. Unlike flax's, it draws
  float32 numbers in any dtype, so that a float64 run drops the same ones.
  """

  rate: float
  train: bool

  @nn.compact
  def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
    if not self.train or self.rate == 0:
      return x
    keep = 1 - self.rate
    kept = jax.random.bernoulli(self.make_rng("dropout"), jnp.float32(keep), x.shape)
    return jnp.where(kept, x / keep, jnp.zeros_like(x))
