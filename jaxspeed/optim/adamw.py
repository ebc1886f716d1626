"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), from Optax's parts."""

import jax
import optax

from jaxspeed.optim.sgd import scale_by_rate


def adamw(
  *,
  b1: float,
  b2: float,
  epsilon: float,
  weight_decay: float,
  rate_factor: float = 1.0,
  rate_name: str = "learning_rate",
) -> optax.GradientTransformationExtraArgs:
  """AdamW as `optax.adamw` and torch.optim.AdamW: w <- w - lr (m / (sqrt(v) + epsilon) + wd w).

  m and v are the means of the gradients and of their squares, with b1 and b2, corrected for their
  start at 0. The weight decay is decoupled from them, but multiplied by the learning rate. The
  step passes that rate as the extra argument `rate_name`; `rate_factor` multiplies it.
  """
  adam = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)

  def update(updates, state, params=None):
    # Optax raises a float to an int32, which strict promotion of dtypes refuses.
    with jax.numpy_dtype_promotion("standard"):
      return adam.update(updates, state, params)

  decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
  direction = optax.GradientTransformation(adam.init, update)
  return optax.chain(direction, decay, scale_by_rate(rate_factor, rate_name))
