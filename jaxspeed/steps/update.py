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
from jaxspeed.models.layers.activations import recompute
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
  row: dict[str, Float[Array, ""]],
  *,
  share: Float[Array, "n"] | float,
  spec: TrainSpec,
  kind: StepKind,
) -> tuple[TrainState, MetricSums]:
  """Update the state from an augmented batch.

  With class weights the gradient is that of the weighted mean over all devices' images, and the
  loss in the sums is weighted, but not yet divided by the weights: their mean over an epoch is 1.

  Args:
    state: the state before the step.
    batch: the augmented images of this device, in the model's dtype.
    partner: the labels of the images that mixup or CutMix mixed in.
    row: this step's row of the plan's table.
    share: the weight of the `partner` labels in the loss; top-1 and top-5 count the own labels.
    spec: the run's constants.
    kind: the kind of this step.

  Returns:
    The next state, and the metric sums over all devices.
  """
  config = spec.config
  size = batch.image.shape[0]
  scale = state.loss_scale.scale if state.loss_scale else jnp.ones((), spec.accumulation)

  def loss_sum(trained, part, partner, keys, shares):
    params = stop_gradients(state.params | trained, kind, spec=spec)
    key = None if keys is None else keys[0]
    logits, stats = forward(params, state.batch_stats, part.image, key, spec=spec)
    mixed = share if shares is None else shares
    loss, sums, weight = loss_sums(logits, part, partner, mixed, spec=spec)
    # Divided by the global batch here, because a sum could overflow half precision.
    return loss * (scale / (size * spec.devices)), (sums, stats, weight)

  # Each micro-batch gets its part of an array; a number is a constant of the program.
  shares = None if isinstance(share, float) else share
  trained = {part: tree for part, tree in state.params.items() if part not in spec.frozen}
  gradient, (sums, stats, weight) = accumulate(
    functools.partial(jax.grad(loss_sum, has_aux=True), trained),
    (batch, partner, dropout_keys(state, spec=spec), shares),
    config.accumulate,
  )
  stats = jax.tree.map(lambda x: x / config.accumulate, stats)
  stats = jax.tree.map(lambda x: x / spec.devices, stats)
  if spec.devices > 1:
    with jax.named_scope("allreduce"):
      gradient, (sums, stats, weight) = allreduce.sum_over_devices(
        gradient, (sums, stats, weight), order=spec.layer_order, **config.allreduce
      )
  with jax.named_scope("optimizer"):
    counted = jnp.maximum(sums.count, 1) if weight is None else jnp.where(weight > 0, weight, 1)
    full = size * spec.devices / (scale * counted.astype(spec.accumulation))
    # A GPU updates parameters of equal shape in one kernel if they share an operand, but no scalar.
    ((full, *shared),) = recompute(jnp.stack([full, *row.values()]))
    row = dict(zip(row, shared, strict=True))
    gradient = jax.tree.map(lambda g: g * full, gradient)

    if spec.frozen:
      gradient |= jax.tree.map(jnp.zeros_like, _frozen(state.params, spec=spec))
    updates, opt_state = spec.optimizer.update(gradient, state.opt_state, state.params, **row)
    new = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      batch_stats=stats,
      opt_state=opt_state,
    )
    new = averaged(state, new, row, spec=spec)
    if spec.frozen:
      new = keep_frozen(state, new, spec=spec)
    if state.loss_scale is not None:
      finite = precision.all_finite(gradient)
      new = precision.select(finite, new, state.replace(step=new.step))
      new = new.replace(loss_scale=state.loss_scale.update(finite))
  return new, sums


def loss_sums(
  logits: Float[Array, "n classes"],
  batch: Batch,
  partner: Int[Array, "n"],
  share: float | Float[Array, "n"],
  *,
  spec: TrainSpec,
) -> tuple[Float[Array, ""], MetricSums, Float[Array, ""] | None]:
  """A batch's loss, its metric sums and the sum of its class weights, which divides a mean loss.

  The loss is that of the sums, but has a gradient.

  As in torch.nn.CrossEntropyLoss(weight=...), an image counts with the weight of its class. One
  with two labels counts with the mean of their weights by their shares. Without class weights,
  the third is None.
  """
  smoothing, weights = spec.config.label_smoothing, spec.class_weights
  losses = smoothed_cross_entropy(logits, batch.label, smoothing, weights)
  mixes = not isinstance(share, float) or share > 0
  if mixes:
    share = share if isinstance(share, float) else share.astype(losses.dtype)
    mixed_in = smoothed_cross_entropy(logits, partner, smoothing, weights)
    losses = (1 - share) * losses + share * mixed_in
  sums = masked_sums(logits, losses, batch.label, batch.mask)
  loss = jnp.sum(jnp.where(batch.mask, losses, 0.0))
  if weights is None:
    return loss, sums, None
  of_class = jnp.asarray(weights, spec.accumulation)
  weight = of_class[batch.label]
  if mixes:
    weight = (1 - share) * weight + share * of_class[partner]
  return loss, sums, jnp.sum(jnp.where(batch.mask, weight, 0.0))


def stop_gradients(params: PyTree, kind: StepKind, *, spec: TrainSpec) -> PyTree:
  """The parameters, without a gradient for those that a step of this kind does not train."""
  # A proxy never trains its whitening bias.
  fixed = {"frozen"}
  if not (kind.whiten_bias and spec.config.whitening.bias_epochs):
    fixed.add("whiten_bias")
  return jax.tree.map(
    lambda label, x: lax.stop_gradient(x) if label in fixed else x, spec.labels(params), params
  )


def averaged(
  state: TrainState, new: TrainState, row: dict[str, Float[Array, ""]], *, spec: TrainSpec
) -> TrainState:
  """`new`, the state after the optimizer, with its average of the weights (`config.average`)."""
  kind, model = spec.config.average.kind, new.variables()
  if kind == "ema":
    return new.replace(ema=averaging.ema(state.ema, model, row["average_keep"]))
  if kind == "lookahead":
    lookahead, model = averaging.lookahead(
      state.lookahead, model, row["average_keep"], row["average_pull"]
    )
    return new.replace(lookahead=lookahead, **model)
  return new


def keep_frozen(state: TrainState, new: TrainState, *, spec: TrainSpec) -> TrainState:
  """`new` with the frozen parts of `state`: parameters, running statistics and their averages.

  Their bits stay: sums of an average, of micro-batches or of devices would round them.
  """

  def kept(old: Any, tree: Any) -> Any:
    return tree | _frozen(old, spec=spec)

  def kept_variables(old: Any, variables: Any) -> Any:
    return variables and {name: kept(old[name], tree) for name, tree in variables.items()}

  return new.replace(
    params=kept(state.params, new.params),
    batch_stats=kept(state.batch_stats, new.batch_stats),
    ema=kept_variables(state.ema, new.ema),
    lookahead=kept_variables(state.lookahead, new.lookahead),
  )


def _frozen(tree: Any, *, spec: TrainSpec) -> dict[str, Any]:
  """The frozen parts of parameters or running statistics."""
  return {part: x for part, x in tree.items() if part in spec.frozen}


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
