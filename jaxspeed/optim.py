"""Optimizers on a few long vectors instead of a hundred small tensors.

XLA no longer fuses elementwise work across parameters, so that an update of 160 tensors is at
least 160 kernels. Parameters are gathered into one vector a group; optax works on the vectors.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree
from ml_collections import ConfigDict

FROZEN = "frozen"


def scale_by_rate(factor: float = 1.0) -> optax.GradientTransformationExtraArgs:
  """Multiplies by -factor * learning_rate, where the step gives the rate as an extra argument.

  A rate that is an argument and no constant of the program lets all rates share one program.
  """

  def update(updates, state, params=None, *, learning_rate, **extra):
    del params, extra
    return jax.tree.map(lambda u: -factor * learning_rate * u, updates), state

  return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def sgd(
  *,
  momentum: float,
  nesterov: bool,
  weight_decay: float,
  rate_factor: float = 1.0,
  rate_in_momentum: bool = False,
) -> optax.GradientTransformationExtraArgs:
  """SGD with decay in the gradient: g + wd w, then momentum, then the rate (PyTorch's order).

  With `rate_in_momentum` the rate comes before the momentum: v = m v - rate (g + wd w), the step
  is v, or with Nesterov m v - rate (g + wd w): davidcpage/cifar10-fast. The two differ when the
  rate changes.
  """
  trace = optax.trace(momentum, nesterov) if momentum else optax.identity()
  rate = scale_by_rate(rate_factor)
  decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
  parts = (decay, rate, trace) if rate_in_momentum else (decay, trace, rate)
  return optax.chain(*parts)


def labels_of(params: PyTree) -> PyTree:
  """The group of each parameter: "bias", "frozen" (whitening), else "weight"."""

  def label(path, _):
    names = [part.key for part in path]
    if "whiten" in names:
      return FROZEN
    return "bias" if names[-1] == "bias" else "weight"

  return jax.tree_util.tree_map_with_path(label, params)


def flatten_groups(
  transforms: dict[str, optax.GradientTransformationExtraArgs],
  label: Callable[[PyTree], PyTree] = labels_of,
) -> optax.GradientTransformationExtraArgs:
  """Each group of parameters as one float32 vector, with the transformation of its label.

  Parameters whose label has no transformation are frozen: they get an update of zero.
  """

  def vectors(tree: PyTree) -> dict[str, Float[Array, "size"]]:
    labels = jax.tree.leaves(label(tree))
    grouped: dict[str, list[Array]] = {name: [] for name in transforms}
    for name, leaf in zip(labels, jax.tree.leaves(tree), strict=True):
      if name in grouped:
        grouped[name].append(leaf.astype(jnp.float32).reshape(-1))
    return {name: jnp.concatenate(parts) for name, parts in grouped.items() if parts}

  def restore(flat: dict[str, Float[Array, "size"]], like: PyTree) -> PyTree:
    leaves, structure = jax.tree.flatten(like)
    position = dict.fromkeys(flat, 0)
    result = []
    for name, leaf in zip(jax.tree.leaves(label(like)), leaves, strict=True):
      if name not in flat:
        result.append(jnp.zeros_like(leaf))
        continue
      start = position[name]
      position[name] = start + leaf.size
      result.append(flat[name][start : start + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
    return jax.tree.unflatten(structure, result)

  def init(params):
    return {name: transforms[name].init(vector) for name, vector in vectors(params).items()}

  def update(updates, state, params=None, **extra):
    assert params is not None
    weights, new_updates, new_state = vectors(params), {}, {}
    for name, gradient in vectors(updates).items():
      new_updates[name], new_state[name] = transforms[name].update(
        gradient, state[name], weights[name], **extra
      )
    return restore(new_updates, updates), new_state

  return optax.GradientTransformationExtraArgs(init, update)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformationExtraArgs:
  """The optimizer of `config.optimizer`: SGD with a rate and a decay of its own for biases."""
  common = dict(
    momentum=config.momentum,
    nesterov=config.nesterov,
    rate_in_momentum=config.rate_in_momentum,
  )
  return flatten_groups(
    {
      "weight": sgd(weight_decay=config.weight_decay, **common),
      "bias": sgd(
        weight_decay=config.weight_decay * config.bias_decay,
        rate_factor=config.bias_rate,
        **common,
      ),
    }
  )
