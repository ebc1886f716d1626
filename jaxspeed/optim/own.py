"""An optimizer that Python passes: a gradient transformation without a learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.optim.sgd import hold_at_zero, scale_by_rate

# Labels of parameters that have a rate of their own, or none.
_APART = ("whiten_bias", "frozen")


def check_transformation(
  optimizer: Any, what: str = "optimizer=", labels: PyTree | None = None
) -> None:
  """Makes sure that an object is a gradient transformation without a learning rate.

  Args:
    optimizer: the object.
    what: what the caller knows it as.
    labels: those of the parameters, whose names it may look at; None: of a kernel and a bias.

  Raises:
    UserError: it is something else, or its update already points downhill.
  """
  if not isinstance(optimizer, optax.GradientTransformation):
    raise UserError(
      f"{what} is of type {type(optimizer).__name__}: it must be a transformation of Optax without "
      "a learning rate, such as optax.scale_by_adam()."
    )
  params = jax.tree.map(
    lambda label: jnp.zeros((2,) * (1 + (label in ("kernel", "head", "embedding")))),
    labels or {"kernel": "kernel", "bias": "bias"},
  )
  gradient = jax.tree.map(jnp.ones_like, params)
  try:
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
      state = optimizer.init(params)
      for _ in range(2):  # a warm-up begins at a rate of 0
        update, state = optimizer.update(gradient, state, params)
    downhill = any(float(leaf.sum()) < 0 for leaf in jax.tree.leaves(update))
  except Exception:  # it needs other shapes or arguments: training tells
    return
  if downhill:
    raise UserError(
      f"{what} brings its own learning rate, since its update already points downhill: leave it "
      "out, as in optax.scale_by_adam() in place of optax.adam(0.001); the plan's rate is applied."
    )


def own_optimizer(
  optimizer: optax.GradientTransformation,
  config: ConfigDict,
  labels: PyTree,
  what: str = "optimizer=",
) -> optax.GradientTransformationExtraArgs:
  """A transformation times the plan's learning rate, for all parameters that are trained.

  It sees them all at once, so that a norm over all gradients is one. A frozen whitening layer
  stays, and its bias is trained in `config.whitening.bias_epochs`, as with our own optimizers.

  Args:
    optimizer: the transformation.
    config: the config.
    labels: the labels of the parameters (`groups.labels_of`).
    what: what the caller knows it as.
  """
  check_transformation(optimizer, what, labels)
  labels = jax.tree.map(lambda label: label if label in _APART else "trained", labels)
  own = optax.chain(optax.with_extra_args_support(optimizer), scale_by_rate())
  bias = optax.set_to_zero()
  if config.whitening.bias_epochs:
    bias = optax.chain(
      optax.with_extra_args_support(optimizer),
      scale_by_rate(name="whiten_bias_rate"),
      hold_at_zero("whiten_bias_rate"),
    )
  return optax.partition(
    {"trained": own, "whiten_bias": bias, "frozen": optax.set_to_zero()}, labels
  )
