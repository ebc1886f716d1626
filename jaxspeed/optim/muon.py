"""Muon: momentum, orthogonalized by a Newton-Schulz iteration."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxspeed.devices.precision import accumulation
from jaxspeed.optim.sgd import trace

# As in both published recipes: fast growth of small singular values matters more than convergence.
NEWTON_SCHULZ_STEPS = 3


def stack_matrices(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "layers height width"]:
  """Stack arrays [o, ...] as zero-padded matrices [o, rest], transposed if higher than wide.

  The padding does not affect norms or `newton_schulz`: with X = [[x, 0], [0, 0]], X X^T is
  [[x x^T, 0], [0, 0]]. So a polynomial in X X^T times X keeps the zero rows and columns of X.
  """
  matrices = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
  matrices = [x.T if x.shape[0] > x.shape[1] else x for x in matrices]
  height, width = (max(x.shape[axis] for x in matrices) for axis in (0, 1))
  return jnp.stack(
    [jnp.pad(x, ((0, height - x.shape[0]), (0, width - x.shape[1]))) for x in matrices]
  )


def stacked_together(leaves: Sequence[Float[Array, "..."]]) -> list[list[int]]:
  """The positions of the arrays of each stack: of all in one, unless padding would double them.

  One stack has the fewest kernels: airbench's are 1.8 times as large with their padding. Those of
  ResNet-50 would be 11 times as large, so each shape has a stack of its own.
  """
  whole = jax.eval_shape(stack_matrices, leaves).size
  if whole <= 2 * sum(leaf.size for leaf in leaves):
    return [list(range(len(leaves)))]
  shapes = [leaf.shape for leaf in leaves]
  return [[i for i, each in enumerate(shapes) if each == shape] for shape in dict.fromkeys(shapes)]


def unstack_matrices(
  stack: Float[Array, "layers height width"], like: Sequence[Float[Array, "..."]]
) -> list[Float[Array, "..."]]:
  """Split a stack into its arrays, with the shapes of `like`."""
  leaves = []
  for padded, leaf in zip(stack, like, strict=True):
    high, wide = leaf.shape[0], leaf.size // leaf.shape[0]
    matrix = padded[:wide, :high].T if high > wide else padded[:high, :wide]
    leaves.append(matrix.reshape(leaf.shape))
  return leaves


def frobenius_norms(
  x: Float[Array, "layers height width"], y: Float[Array, "layers height width"]
) -> tuple[Float[Array, "layers"], Float[Array, "layers"]]:
  """Return the norms of the matrices in two stacks; one reduction of pairs needs only one pass."""
  zero = jnp.zeros((), x.dtype)
  squares = lax.reduce(
    (jnp.square(x), jnp.square(y)), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1, 2)
  )
  return jnp.sqrt(squares[0]), jnp.sqrt(squares[1])


def newton_schulz(
  x: Float[Array, "layers height width"], *, coefficients: tuple[float, float, float]
) -> Float[Array, "layers height width"]:
  """Map each matrix U S V^T to about U V^T: singular values between 0 and 1 move close to 1.

  It repeats X <- P X with P = a I + b X X^T + c (X X^T)^2 three times, as in Keller Jordan's Muon.
  The polynomial is odd, so a transposed matrix gives the transposed result.

  Args:
    x: matrices of Frobenius norm 1, no higher than wide, in the dtype of the products.
    coefficients: the coefficients a, b, c.
  """
  a, b, c = coefficients
  sums = accumulation(x.dtype)
  identity = jnp.eye(x.shape[1], dtype=sums)

  def factor(gram):
    # Adding a I to the factor, in place of a X to the product, saves a pass over the stack.
    square = jnp.matmul(gram, gram, preferred_element_type=sums)
    return (a * identity + b * gram.astype(sums) + c * square).astype(x.dtype)

  def repeated(x):
    for _ in range(NEWTON_SCHULZ_STEPS):
      x = jnp.matmul(factor(jnp.matmul(x, x.mT)), x)
    return x

  def through_gram(x):
    # P commutes with X X^T, so the next X X^T is P X X^T P: two wide products in place of six.
    gram = jnp.matmul(x, x.mT)
    product = step = factor(gram)
    for _ in range(NEWTON_SCHULZ_STEPS - 1):
      gram = step @ gram @ step
      step = factor(gram)
      product = step @ product
    return product @ x

  # Three matrices of 512 x 4608 take half the time (results/cpu_decisions.json). Products in half
  # precision, and float32's on accelerators in TF32 or bfloat16, would lose small singular values.
  if x.dtype == sums and x.shape[2] > 2 * x.shape[1]:
    return lax.platform_dependent(x, cpu=through_gram, default=repeated)
  return repeated(x)


def muon(
  *,
  momentum: float,
  nesterov: bool,
  decay: float,
  coefficients: tuple[float, float, float],
  epsilon: float,
  dtype: DTypeLike,
) -> optax.GradientTransformationExtraArgs:
  """Muon for kernels: w <- (s w - lr NS(u / (||u|| + epsilon))) (1 - lr decay).

  u is the gradient after (Nesterov) momentum, which is kept as stacks (`stacked_together`). NS is
  `newton_schulz` in `dtype`. s is sqrt(o) / ||w|| if the extra argument `renormalize` is 1, else 1.

  A kernel is one matrix, its first axis against all others: [o, h, w, i] of our convolutions, in
  any order of the last three, or [i, o] of a linear layer, whose transpose gives the transposed
  step. o is the number of outputs. A kernel with more axes in another order, such as flax's
  convolutions [h, w, i, o], is no sensible matrix: such a model gets SGD, LARS or linear layers.

  Source: KellerJordan/cifar10-airbench, airbench94_muon.py; the decay is from
  hiverge/cifar10-speedrun.
  """
  velocity = trace(momentum, nesterov)

  def stacks(leaves, parts):
    return [stack_matrices([leaves[i] for i in part]) for part in parts]

  def init(params):
    leaves = jax.tree.leaves(params)
    return velocity.init(stacks(leaves, stacked_together(leaves)) if leaves else [])

  def update(updates, state, params=None, *, learning_rate, renormalize, **extra):
    del extra
    weights, structure = jax.tree.flatten(params)
    if not weights:  # a linear model: its only kernel is the head
      return updates, state
    parts = stacked_together(weights)
    directions, state = velocity.update(stacks(jax.tree.leaves(updates), parts), state)
    kept, new = 1.0 - learning_rate * decay, list(weights)
    for part, direction, held in zip(parts, directions, stacks(weights, parts), strict=True):
      # Not in `dtype`: squares of small gradients underflow in float16.
      norms, weight_norms = frobenius_norms(direction, held)
      unit = (direction / (norms[:, None, None] + epsilon)).astype(dtype)
      like = [weights[i] for i in part]
      units = unstack_matrices(newton_schulz(unit, coefficients=coefficients), like)
      for i, weight, norm, u in zip(part, like, weight_norms, units, strict=True):
        # The original adds 1e-7, which float16 rounds away; 1e-30 only keeps zero weights at zero.
        outputs = weight.shape[1 if weight.ndim == 2 else 0]
        scale = jnp.where(renormalize > 0, outputs**0.5 / (norm + 1e-30), 1.0)
        new[i] = (scale * kept - 1.0) * weight - learning_rate * kept * u.astype(weight.dtype)
    return jax.tree.unflatten(structure, new), state

  return optax.GradientTransformationExtraArgs(init, update)
