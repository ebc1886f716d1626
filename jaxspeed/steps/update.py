"""The update of a step: gradient, all-reduce, optimizer and weight average."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PyTree

from jaxspeed.data.batch import Batch
from jaxspeed.devices import allreduce, precision
from jaxspeed.optim import averaging
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps.forward import dropout_keys, forward
from jaxspeed.steps.losses import MetricSums, masked_sums, smoothed_cross_entropy
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState


def update(
  state: TrainState,
  batch: Batch,
  partner: Int[Array, "n"],
  hyper: dict[str, Float[Array, ""]],
  *,
  share: float,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[TrainState, MetricSums]:
  """Update the state from an augmented batch.

  Args:
    state: the state before the step.
    batch: the augmented images of this device, in the model's dtype.
    partner: the labels of the images that cutmix pasted in.
    hyper: this step's row of the plan's table.
    share: the weight of the `partner` labels in the loss.
    spec: the run's constants.
    kind: the kind of this step.

  Returns:
    The next state, and the metric sums over all devices.
  """
  config = spec.config
  size = batch.image.shape[0]
  scale = state.loss_scale.scale if state.loss_scale else jnp.ones((), spec.accumulation)

  def loss_sum(params, part, partner, keys):
    params = stop_gradients(params, kind, spec=spec)
    key = None if keys is None else keys[0]
    logits, stats = forward(params, state.batch_stats, part.image, key, spec=spec)
    losses = smoothed_cross_entropy(logits, part.label, config.label_smoothing)
    if share:
      mixed_in = smoothed_cross_entropy(logits, partner, config.label_smoothing)
      losses = (1 - share) * losses + share * mixed_in
    sums = masked_sums(logits, losses, part.label, part.mask)
    # Divided by the global batch here, because a sum could overflow half precision.
    return sums.loss * (scale / (size * spec.devices)), (sums, stats)

  gradient_of = jax.grad(loss_sum, has_aux=True)
  gradient, (sums, stats) = accumulate(
    functools.partial(gradient_of, state.params),
    (batch, partner, dropout_keys(state, spec=spec)),
    config.accumulate,
  )
  stats = jax.tree.map(lambda x: x / config.accumulate, stats)
  gradient, (sums, stats) = sum_over_devices(
    gradient,
    (sums, jax.tree.map(lambda x: x / spec.devices, stats)),
    spec=spec,
  )
  with jax.named_scope("optimizer"):
    counted = jnp.maximum(sums.count, 1).astype(spec.accumulation)
    full = size * spec.devices / (scale * counted)
    gradient = jax.tree.map(lambda g: g * full, gradient)

    updates, opt_state = spec.optimizer.update(gradient, state.opt_state, state.params, **hyper)
    new = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      batch_stats=stats,
      opt_state=opt_state,
    )
    model = new.variables()
    if config.average.kind == "ema":
      new = new.replace(average=averaging.ema(state.average, model, hyper["average_keep"]))
    if config.average.kind == "lookahead":
      slow, model = averaging.lookahead(
        state.slow, model, hyper["average_keep"], hyper["average_pull"]
      )
      new = new.replace(slow=slow, **model)
    if state.loss_scale is not None:
      finite = precision.all_finite(gradient)
      new = precision.select(finite, new, state.replace(step=new.step))
      new = new.replace(loss_scale=state.loss_scale.update(finite))
  return new, sums


def stop_gradients(params: PyTree, kind: StepKind, *, spec: TrainSpec) -> PyTree:
  """The parameters, without a gradient for those that a step of this kind does not train."""
  # A proxy never trains its whitening bias.
  fixed = {"frozen"}
  if not (kind.whiten_bias and spec.config.whitening.bias_epochs):
    fixed.add("whiten_bias")
  return jax.tree.map(
    lambda label, x: lax.stop_gradient(x) if label in fixed else x, spec.labels(params), params
  )


def sum_over_devices(gradient: Any, rest: Any, *, spec: TrainSpec) -> tuple[Any, Any]:
  """`allreduce.sum_over_devices`, or the arguments themselves on one device."""
  if spec.devices == 1:
    return gradient, rest
  fields = spec.config.allreduce
  with jax.named_scope("allreduce"):
    return allreduce.sum_over_devices(
      gradient, rest, order=spec.layer_order, group_mb=fields.group_mb, dtype=fields.dtype
    )


def accumulate(function: Callable[..., Any], batch: tuple[Any, ...], parts: int) -> Any:
  """Sum the results of `function` over equal micro-batches, one after the other."""
  if parts == 1:
    return function(*batch)
  split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
  first = function(*jax.tree.map(lambda x: x[0], split))

  def add(total, part):
    return jax.tree.map(jnp.add, total, function(*part)), None

  rest = jax.tree.map(lambda x: x[1:], split)
  # Loops are slow on a CPU (jax issue 12868); elsewhere they need the memory of one part only.
  unroll = parts if jax.default_backend() == "cpu" else 1
  return lax.scan(add, first, rest, unroll=unroll)[0]
