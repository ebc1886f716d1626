"""LARS: SGD with a trust ratio per layer; one pass computes all norms."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.optim.sgd import scale_by_rate, trace

# Numbers that one thread block sums, and arrays that one kernel reads; XLA fuses up to 96.
_ROW, _ARRAYS = 4096, 64


def norms_together(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  """Compute the norms in two kernels: sums of fixed-size rows, then sums of each array's rows."""
  owners = np.repeat(np.arange(len(leaves)), [-(-leaf.size // _ROW) for leaf in leaves])
  rows = [jnp.pad(x.reshape(-1), (0, -x.size % _ROW)).reshape(-1, _ROW) for x in leaves]
  parts = [jnp.concatenate(rows[i : i + _ARRAYS]) for i in range(0, len(rows), _ARRAYS)]
  sums = jnp.concatenate([jnp.sum(jnp.square(part), axis=1) for part in parts])
  own = jnp.arange(len(leaves), dtype=jnp.int32)[:, None] == jnp.asarray(owners, jnp.int32)
  return jnp.sqrt(jnp.sum(jnp.where(own, sums, 0), axis=1))


def norms_one_by_one(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  return jnp.sqrt(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in leaves]))


def norms(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  """Return the L2 norm of each array.

  A GPU computes all in one pass: 128 kernels against 361 (results/lars.json). A CPU would copy the
  arrays for that, so it takes one after the other.
  """
  return lax.platform_dependent(tuple(leaves), cpu=norms_one_by_one, default=norms_together)


def scale_by_trust_ratio(
  *, weight_decay: float, ratio_decay: float, eta: float, epsilon: float
) -> optax.GradientTransformation:
  """LARS: scale g + wd w of each array by the ratio eta |w| / (|g| + wd |w| + epsilon).

  The ratio is 1 where |w| or |g| is 0, as in mlcommons/training, tensorflow2/lars_optimizer.py;
  optax's own LARS divides by |g + wd w|. `weight_decay` is the decay wd in the gradient and
  `ratio_decay` that in the ratio; they differ only in Fujitsu's recipe.
  """

  def update(updates, state, params=None):
    weights, structure = jax.tree.flatten(params)
    gradients = jax.tree.leaves(updates)
    weight, gradient = norms(weights), norms(gradients)
    ratio = eta * weight / (gradient + ratio_decay * weight + epsilon)
    ratio = jnp.where((weight > 0) & (gradient > 0), ratio, 1.0)
    scaled = [r * (g + weight_decay * w) for r, g, w in zip(ratio, gradients, weights, strict=True)]
    return jax.tree.unflatten(structure, scaled), state

  return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def lars(
  *,
  momentum: float | None,
  nesterov: bool,
  weight_decay: float,
  ratio_decay: float,
  eta: float,
  epsilon: float,
) -> optax.GradientTransformationExtraArgs:
  """LARS with the learning rate inside the momentum, as in MLPerf's reference.

  v = m v - lr ratio (g + wd w); the step is v, or with Nesterov m v - lr ratio (g + wd w).
  """
  ratio = scale_by_trust_ratio(
    weight_decay=weight_decay, ratio_decay=ratio_decay, eta=eta, epsilon=epsilon
  )
  return optax.chain(ratio, scale_by_rate(), trace(momentum, nesterov))
