"""What few recipes wrap around the plain step: a loss scale, frozen parts, micro-batches.

Three functions of `train_step.update` are wrapped: `loss_of` maps (params, batch, part) to the loss
and (sums, batch_stats, weight), `gradient_of` maps the same to the gradient and these, and `apply`
maps (state, gradient, batch_stats, row) to the next state.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxspeed.devices import precision

_Function = Callable[..., Any]


def with_loss_scale(
  loss_of: _Function, apply: _Function, loss_scale: precision.LossScale
) -> tuple[_Function, _Function]:
  """The scaled loss, and an `apply` that skips a step whose gradient is not finite."""

  def scaled(*arguments: Any) -> Any:
    loss, (sums, batch_stats, weight) = loss_of(*arguments)
    # The gradient is divided by the weight.
    return loss * loss_scale.scale, (sums, batch_stats, weight * loss_scale.scale)

  def checked(state, gradient, batch_stats, row):
    new = apply(state, gradient, batch_stats, row)
    finite = precision.all_finite(gradient)
    new = precision.select(finite, new, state.replace(step=new.step))
    return new.replace(loss_scale=loss_scale.update(finite))

  return scaled, checked


def without_frozen(
  loss_of: _Function, apply: _Function, frozen: tuple[str, ...]
) -> tuple[_Function, _Function]:
  """A `gradient_of` the other parts of the model, and an `apply` that leaves the frozen ones alone.

  Their bits stay, in parameters, running statistics and averages: sums of an average, of
  micro-batches or of devices would round them.
  """

  def fixed(tree: Any) -> dict[str, Any]:
    return {part: x for part, x in tree.items() if part in frozen}

  def gradient_of(params, *rest):
    def loss(trained, *rest):
      return loss_of(params | trained, *rest)

    trained = {part: tree for part, tree in params.items() if part not in frozen}
    return jax.grad(loss, has_aux=True)(trained, *rest)

  def kept(old: Any, variables: Any) -> Any:
    return variables and {name: tree | fixed(old[name]) for name, tree in variables.items()}

  def applied(state, gradient, batch_stats, row):
    gradient = gradient | jax.tree.map(jnp.zeros_like, fixed(state.params))
    new = apply(state, gradient, batch_stats, row)
    return new.replace(
      **kept(state.variables(), new.variables()),
      ema=kept(state.ema, new.ema),
      lookahead=kept(state.lookahead, new.lookahead),
    )

  return gradient_of, applied


def in_micro_batches(gradient_of: _Function, parts: int) -> _Function:
  """A `gradient_of` that sums over equal micro-batches, one after the other."""

  def summed(params, batch, part):
    numbers = part * parts + jnp.arange(parts, dtype=jnp.int32)
    split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch), numbers
    first, rest = (jax.tree.map(lambda x, i=i: x[i], split) for i in (0, slice(1, None)))

    def add(total, each):
      return jax.tree.map(jnp.add, total, gradient_of(params, *each)), None

    # Loops are slow on a CPU (jax issue 12868); elsewhere they need the memory of one part only.
    unroll = parts if jax.default_backend() == "cpu" else 1
    total, _ = lax.scan(add, gradient_of(params, *first), rest, unroll=unroll)
    gradient, (sums, stats, weight) = total
    return gradient, (sums, jax.tree.map(lambda x: x / parts, stats), weight)

  return summed
