"""LARS: SGD with a trust ratio a layer, all norms in one pass."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float

from jaxspeed.optim.sgd import scale_by_rate, trace

# Numbers that a block of threads adds up, and arrays that one kernel reads: XLA fuses up to 96.
_ROW, _ARRAYS = 4096, 64


def norms_together(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  """In two kernels: of all arrays, cut into rows, then of the rows of each array."""
  owners = np.repeat(np.arange(len(leaves)), [-(-leaf.size // _ROW) for leaf in leaves])
  rows = [jnp.pad(x.reshape(-1), (0, -x.size % _ROW)).reshape(-1, _ROW) for x in leaves]
  parts = [jnp.concatenate(rows[i : i + _ARRAYS]) for i in range(0, len(rows), _ARRAYS)]
  sums = jnp.concatenate([jnp.sum(jnp.square(part), axis=1) for part in parts])
  own = jnp.arange(len(leaves), dtype=jnp.int32)[:, None] == jnp.asarray(owners, jnp.int32)
  return jnp.sqrt(jnp.sum(jnp.where(own, sums, 0), axis=1))


def norms_one_by_one(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  return jnp.sqrt(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in leaves]))


def norms(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  """The L2 norm of each array, of all arrays in one pass.

  A CPU would copy them for that, so there it is one array after the other; on a GPU one pass is
  128 kernels against 361 (results/lars.json).
  """
  return lax.platform_dependent(tuple(leaves), cpu=norms_one_by_one, default=norms_together)


def scale_by_trust_ratio(
  *, weight_decay: float, ratio_decay: float, eta: float, epsilon: float, clip: Sequence[float]
) -> optax.GradientTransformation:
  """LARS: ratio (g + wd w) with the ratio eta |w| / (|g| + wd |w| + epsilon) of each array.

  The ratio is 1 where |w| or |g| is 0. mlcommons/training, tensorflow2/lars_optimizer.py; optax's
  own divides by |g + wd w|.

  Args:
    weight_decay: that is added to the gradient.
    ratio_decay: that of the ratio, the same but for Fujitsu's.
    eta: the trust coefficient.
    epsilon: where decay and gradient vanish.
    clip: least and most ratio (Alibaba's DAWNBench entry); (): unbounded.
  """

  def update(updates, state, params=None):
    weights, structure = jax.tree.flatten(params)
    gradients = jax.tree.leaves(updates)
    weight, gradient = norms(weights), norms(gradients)
    ratio = eta * weight / (gradient + ratio_decay * weight + epsilon)
    if clip:
      ratio = jnp.clip(ratio, *clip)
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
  clip: Sequence[float],
) -> optax.GradientTransformationExtraArgs:
  """LARS with the rate in the momentum, as MLPerf's reference: `scale_by_trust_ratio`, then `sgd`.

  v = m v - rate ratio (g + wd w), the step is v, or with Nesterov m v - rate ratio (g + wd w).
  """
  ratio = scale_by_trust_ratio(
    weight_decay=weight_decay, ratio_decay=ratio_decay, eta=eta, epsilon=epsilon, clip=clip
  )
  return optax.chain(ratio, scale_by_rate(), trace(momentum, nesterov))
