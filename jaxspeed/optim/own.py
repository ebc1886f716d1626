"""An optimizer that Python passes: a gradient transformation without a learning rate."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.optim.groups import Labels
from jaxspeed.optim.sgd import hold_at_zero, scale_by_rate

# Labels of parameters that have a rate of their own, or none.
_APART = ("whiten_bias", "frozen")


def check_transformation(optimizer: Any, what: str = "optimizer=") -> None:
  """Makes sure that an object is a gradient transformation without a learning rate.

  Args:
    optimizer: the object.
    what: what the caller knows it as.

  Raises:
    UserError: it is something else, or its update already points downhill.
  """
  if not isinstance(optimizer, optax.GradientTransformation):
    raise UserError(
      f"{what} is of type {type(optimizer).__name__}: it must be a transformation of Optax without "
      "a learning rate, such as optax.scale_by_adam()."
    )
  params = {"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)}
  gradient = jax.tree.map(jnp.ones_like, params)
  try:
    with jax.numpy_dtype_promotion("standard"):  # optax mixes integers and floats
      state = optimizer.init(params)
      for _ in range(2):  # a warm-up begins at a rate of 0
        update, state = optimizer.update(gradient, state, params)
    downhill = any(float(leaf.sum()) < 0 for leaf in jax.tree.leaves(update))
  except Exception:  # it needs other parameters or arguments: training tells
    return
  if downhill:
    raise UserError(
      f"{what} brings its own learning rate, since its update already points downhill: leave it "
      "out, as in optax.scale_by_adam() in place of optax.adam(0.001); the plan's rate is applied."
    )


def own_optimizer(
  optimizer: optax.GradientTransformation, config: ConfigDict, labels: Labels
) -> optax.GradientTransformationExtraArgs:
  """A transformation times the plan's learning rate, for all parameters that are trained.

  It sees them all at once, so that a norm over all gradients is one. A frozen whitening layer
  stays, and its bias is trained in `config.whitening.bias_epochs`, as with our own optimizers.

  Args:
    optimizer: the transformation.
    config: the config.
    labels: as `groups.labels_of` returns.
  """

  def apart(params: Any) -> Any:
    return jax.tree.map(lambda name: name if name in _APART else "trained", labels(params))

  own = optax.chain(optax.with_extra_args_support(optimizer), scale_by_rate())
  bias = optax.set_to_zero()
  if config.whitening.bias_epochs:
    bias = optax.chain(
      optax.with_extra_args_support(optimizer),
      scale_by_rate(name="whiten_bias_rate"),
      hold_at_zero("whiten_bias_rate"),
    )
  return optax.partition(
    {"trained": own, "whiten_bias": bias, "frozen": optax.set_to_zero()}, apart
  )
