"""SGD, LARS and Muon, each parameter with the rates and the decay of its kind.

SGD stays on the parameters as they are: one kernel each, which reads and writes what it must.
Gathered into one vector a group, ResNet-9's whole step on an H100 had 176 kernels and moved
5.41 GB instead of 160 and 4.90: XLA copied every parameter, to write the new ones in place of the
old. What only reads is worth gathering: the norms of LARS are one pass over all layers, and
Muon's products one stack of them.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError

# As both published recipes: what counts is how fast small singular values grow, not the limit.
NEWTON_SCHULZ_STEPS = 3


def scale_by_rate(
  factor: float = 1.0, name: str = "learning_rate"
) -> optax.GradientTransformationExtraArgs:
  """Multiplies by -factor * rate, where the step gives the rate as the extra argument `name`.

  A rate that is an argument and no constant of the program lets all rates share one program.
  """

  def update(updates, state, params=None, **extra):
    del params
    return jax.tree.map(lambda u: -factor * extra[name] * u, updates), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def hold_at_zero(name: str) -> optax.GradientTransformationExtraArgs:
  """No change, whatever momentum and gradient say, while the rate `name` is 0.

  The update is then -0.0, the one number whose sum with any other, also -0.0, is that other.
  """

  def update(updates, state, params=None, **extra):
    del params
    return jax.tree.map(lambda u: jnp.where(extra[name] == 0, -0.0, u), updates), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def trace(momentum: float | None, nesterov: bool) -> optax.GradientTransformationExtraArgs:
  """Momentum m: v = m v + g, the step is v, or with Nesterov m v + g.

  With `momentum` None it may change: the step gives it as the extra argument `momentum`. PyTorch
  likewise takes the momentum of the moment in both places.
  """
  if momentum is not None:
    constant = optax.trace(momentum, nesterov) if momentum else optax.identity()
    return optax.with_extra_args_support(constant)

  def init(params):
    return optax.TraceState(trace=jax.tree.map(jnp.zeros_like, params))

  def update(updates, state, params=None, *, momentum, **extra):
    del params, extra

    def decayed(velocity, added):
      return jax.tree.map(lambda v, g: momentum * v + g, velocity, added)

    velocity = decayed(state.trace, updates)
    return decayed(velocity, updates) if nesterov else velocity, optax.TraceState(trace=velocity)

  return optax.GradientTransformationExtraArgs(init, update)


def sgd(
  *,
  momentum: float | None,
  nesterov: bool,
  weight_decay: float,
  rate_factor: float = 1.0,
  rate_in_momentum: bool = False,
  rate_name: str = "learning_rate",
) -> optax.GradientTransformationExtraArgs:
  """SGD with decay in the gradient: g + wd w, then momentum, then the rate (PyTorch's order).

  With `rate_in_momentum` the rate comes before the momentum: v = m v - rate (g + wd w), the step
  is v, or with Nesterov m v - rate (g + wd w): davidcpage/cifar10-fast. The two differ when the
  rate changes. The step gives the rate as the extra argument `rate_name`, and the momentum where
  it is None: `trace`.
  """
  velocity = trace(momentum, nesterov)
  rate = scale_by_rate(rate_factor, rate_name)
  decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
  parts = (decay, rate, velocity) if rate_in_momentum else (decay, velocity, rate)
  return optax.chain(*parts)


# Numbers that a block of threads adds up, and arrays that one kernel reads: XLA fuses up to 96.
_ROW, _ARRAYS = 4096, 64


def norms_together(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "leaves"]:
  """In two kernels: of all arrays, cut into rows, then of the rows of each array."""
  owners = np.repeat(np.arange(len(leaves)), [-(-leaf.size // _ROW) for leaf in leaves])
  rows = [jnp.pad(x.reshape(-1), (0, -x.size % _ROW)).reshape(-1, _ROW) for x in leaves]
  parts = [jnp.concatenate(rows[i : i + _ARRAYS]) for i in range(0, len(rows), _ARRAYS)]
  sums = jnp.concatenate([jnp.sum(jnp.square(part), axis=1) for part in parts])
  own = jnp.arange(len(leaves))[:, None] == jnp.asarray(owners)
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


def stack_matrices(leaves: Sequence[Float[Array, "..."]]) -> Float[Array, "layers height width"]:
  """Arrays [o, ...] as matrices [o, rest], transposed if higher than wide, in one padded stack.

  Zeros at the end of rows and columns change nothing in `newton_schulz`: with X = [[x, 0], [0, 0]]
  the product X X^T is [[x x^T, 0], [0, 0]], and any matrix times X keeps X's zero columns, its
  polynomials also the zero rows. Norms do not see zeros.
  """
  matrices = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
  matrices = [x.T if x.shape[0] > x.shape[1] else x for x in matrices]
  height, width = (max(x.shape[axis] for x in matrices) for axis in (0, 1))
  return jnp.stack(
    [jnp.pad(x, ((0, height - x.shape[0]), (0, width - x.shape[1]))) for x in matrices]
  )


def unstack_matrices(
  stack: Float[Array, "layers height width"], like: Sequence[Float[Array, "..."]]
) -> list[Float[Array, "..."]]:
  """The arrays of a stack, with the shapes of `like`."""
  leaves = []
  for padded, leaf in zip(stack, like, strict=True):
    high, wide = leaf.shape[0], leaf.size // leaf.shape[0]
    matrix = padded[:wide, :high].T if high > wide else padded[:high, :wide]
    leaves.append(matrix.reshape(leaf.shape))
  return leaves


def frobenius_norms(
  x: Float[Array, "layers height width"], y: Float[Array, "layers height width"]
) -> tuple[Float[Array, "layers"], Float[Array, "layers"]]:
  """The norms of the matrices of two stacks, in one pass: sums of pairs, not a pair of sums."""
  zero = jnp.zeros((), x.dtype)
  squares = lax.reduce(
    (jnp.square(x), jnp.square(y)), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), (1, 2)
  )
  return jnp.sqrt(squares[0]), jnp.sqrt(squares[1])


def newton_schulz(
  x: Float[Array, "layers height width"], *, coefficients: tuple[float, float, float]
) -> Float[Array, "layers height width"]:
  """Each matrix U S V^T to about U V^T: singular values between 0 and 1 go to around 1.

  Three times X <- a X + (b X X^T + c (X X^T)^2) X: Keller Jordan's Muon. The polynomial is odd, so
  that a transposed matrix gives the transposed result.

  Args:
    x: matrices of Frobenius norm 1, no higher than wide, in the number format of the products.
    coefficients: a, b, c.
  """
  a, b, c = coefficients
  identity = jnp.eye(x.shape[1], dtype=jnp.float32)
  for _ in range(NEWTON_SCHULZ_STEPS):
    gram = jnp.matmul(x, x.mT)
    square = jnp.matmul(gram, gram, preferred_element_type=jnp.float32)
    # a X is in the factor as a I, which saves a pass over the stack.
    factor = a * identity + b * gram.astype(jnp.float32) + c * square
    x = jnp.matmul(factor.astype(x.dtype), x)
  return x


def muon(
  *,
  momentum: float,
  nesterov: bool,
  decay: float,
  coefficients: tuple[float, float, float],
  dtype: DTypeLike,
) -> optax.GradientTransformationExtraArgs:
  """Muon for kernels [o, ...]: w <- (s w - rate NS(u / ||u||)) (1 - rate decay).

  u is the gradient after (Nesterov) momentum, NS is `newton_schulz` in `dtype`; s = sqrt(o) / ||w||
  where the extra argument `renormalize` is 1, else 1. KellerJordan/cifar10-airbench,
  airbench94_muon.py; the decay is hiverge/cifar10-speedrun's. Nothing in it sees the order of a
  kernel's axes after the first. The momentum is one float32 stack.
  """
  velocity = trace(momentum, nesterov)

  def init(params):
    return velocity.init(stack_matrices(jax.tree.leaves(params)))

  def update(updates, state, params=None, *, learning_rate, renormalize, **extra):
    del extra
    weights, structure = jax.tree.flatten(params)
    direction, state = velocity.update(stack_matrices(jax.tree.leaves(updates)), state)
    # In float32, as squares of small gradients vanish in float16.
    norms, weight_norms = frobenius_norms(direction, stack_matrices(weights))
    unit = (direction / (norms[:, None, None] + 1e-7)).astype(dtype)
    directions = unstack_matrices(newton_schulz(unit, coefficients=coefficients), weights)

    kept = 1.0 - learning_rate * decay
    new = []
    for weight, norm, u in zip(weights, weight_norms, directions, strict=True):
      scale = jnp.where(renormalize > 0, weight.shape[0] ** 0.5 / (norm + 1e-7), 1.0)
      new.append((scale * kept - 1.0) * weight - learning_rate * kept * u.astype(jnp.float32))
    return jax.tree.unflatten(structure, new), state

  return optax.GradientTransformationExtraArgs(init, update)


def labels_of(params: PyTree) -> PyTree:
  """The kind of each parameter.

  Filters are the kernels of convolutions, except for the whitening layer's, which is frozen; the
  head's is the only kernel of a linear layer. The others are "head_bias", "scale", "bias" and
  "whiten_bias".
  """

  def label(path, leaf):
    names = [part.key for part in path]
    if "whiten" in names:
      return "whiten_bias" if names[-1] == "bias" else "frozen"
    if names[-1] in ("bias", "scale"):
      return "head_bias" if "head" in names else names[-1]
    return "filter" if leaf.ndim == 4 else "head"

  return jax.tree_util.tree_map_with_path(label, params)


def _labels_of_lars(params: PyTree) -> PyTree:
  """As `labels_of`, with the head among the filters: one pass for all norms."""
  return jax.tree.map(lambda label: "filter" if label == "head" else label, labels_of(params))


def make_optimizer(config: ConfigDict) -> optax.GradientTransformationExtraArgs:
  """The optimizer of a whole, resolved config.

  `config.optimizer.name` "sgd" is SGD for all, "muon" is Muon for the filters and SGD for the
  rest. Biases, the head with its bias and the bias of a whitening layer have rates and decays of
  their own; a scale has the rate of the filters, with Muon it goes with the biases. "lars" is LARS
  for filters and head, and momentum without decay for biases and scales, all at one rate.

  Its `update` takes the extra arguments `learning_rate`; with `config.optimizer.momentum_pieces`
  `momentum`; with `config.whitening.bias_epochs` `whiten_bias_rate`, a rate and no factor, which
  freezes that bias at 0; and with Muon `renormalize`, 0 or 1.

  Raises:
    UserError: an unknown name.
  """
  fields = config.optimizer
  momentum = None if fields.momentum_pieces else fields.momentum
  labels = labels_of

  def make_sgd(rate: float, decay: float, rate_name: str = "learning_rate"):
    return sgd(
      momentum=momentum,
      nesterov=fields.nesterov,
      weight_decay=fields.weight_decay * decay,
      rate_factor=rate,
      rate_in_momentum=fields.rate_in_momentum,
      rate_name=rate_name,
    )

  head = make_sgd(fields.head_rate, fields.head_decay)
  transforms = {
    "bias": make_sgd(fields.bias_rate, fields.bias_decay),
    "head": head,
    "head_bias": head,
    "whiten_bias": optax.set_to_zero(),
    "frozen": optax.set_to_zero(),
  }
  if config.whitening.bias_epochs:
    transforms["whiten_bias"] = optax.chain(
      make_sgd(1.0, config.whitening.bias_decay, "whiten_bias_rate"),
      hold_at_zero("whiten_bias_rate"),
    )
  if fields.name == "sgd":
    transforms["filter"] = make_sgd(1.0, 1.0)
    transforms["scale"] = make_sgd(1.0, fields.scale_decay)
  elif fields.name == "muon":
    transforms["scale"] = transforms["bias"]
    transforms["filter"] = muon(
      momentum=fields.muon_momentum,
      nesterov=fields.nesterov,
      decay=fields.muon_decay,
      coefficients=tuple(fields.muon_coefficients),
      dtype=precision.DTYPES[config.precision],
    )
  elif fields.name == "lars":
    plain = sgd(
      momentum=momentum, nesterov=fields.nesterov, weight_decay=0.0, rate_in_momentum=True
    )
    transforms |= {kind: plain for kind in ("scale", "bias", "head_bias")}
    rates = [rate for piece in config.schedule.pieces for rate in piece[2:]]
    peak = max(rates, default=config.schedule.peak)
    transforms["filter"] = lars(
      momentum=momentum,
      nesterov=fields.nesterov,
      weight_decay=fields.weight_decay,
      ratio_decay=fields.weight_decay * (peak if fields.decay_follows_rate else 1.0),
      eta=fields.lars_eta,
      epsilon=fields.lars_epsilon,
      clip=fields.lars_clip,
    )
    labels = _labels_of_lars
  else:
    raise UserError(f"config.optimizer.name={fields.name!r}: choose one of sgd, muon, lars.")
  return optax.partition(transforms, labels)
