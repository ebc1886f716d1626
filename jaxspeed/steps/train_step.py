"""One training step: augmentation, the gradient of the loss, the optimizer, an average of weights.

`train_step` is the whole of it. `wrappers.py` wraps around it what few recipes use: micro-batches,
frozen parts and a loss scale; `hard_examples.py` has the step of a model with a proxy.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key, PyTree

from jaxspeed.data.augment import Drawn, augment
from jaxspeed.data.batch import CUTMIX, DROPOUT, MIX, OWN, Batch, purpose_key
from jaxspeed.data.mixing import cutmix, mix
from jaxspeed.devices import allreduce, precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.errors import UserError
from jaxspeed.planning.plan import StepKind
from jaxspeed.steps import wrappers
from jaxspeed.steps.losses import MetricSums, cross_entropy, masked_sums, mixed_labels
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import TrainState

# A step's row of the plan's table, by the names of its columns (`Plan.table`).
Row = dict[str, Float[Array, ""]]


def train_step(
  state: TrainState,
  batch: Batch,
  row: Row,
  *,
  spec: TrainSpec,
  kind: StepKind,
  drawn: Drawn | None = None,
) -> tuple[TrainState, MetricSums]:
  """Run one step on this device's part of the global batch.

  The gradient is that of the mean loss over the unmasked examples of all devices. Batch norm sees
  only this device's part, or with `config.accumulate` only one micro-batch, like `ghost_splits`.
  Its running statistics are averaged in the same all-reduce as the gradient.

  Args:
    state: the state, which callers donate.
    batch: the images of this device.
    row: this step's row of the plan's table.
    spec: the run's constants.
    kind: the kind of this step.
    drawn: the step's `augment.draw_ahead`, if it is there already.

  Returns:
    The next state, and the metric sums over all devices.
  """
  batch = augmented_part(state, batch, spec=spec, kind=kind, drawn=drawn)
  return update(state, batch, row, spec=spec, kind=kind)


def augmented_part(
  state: TrainState, batch: Batch, *, spec: TrainSpec, kind: StepKind, drawn: Drawn | None
) -> Batch:
  """This device's part of the step's batch, `augmented`; arguments as in `train_step`."""
  size = batch.image.shape[0]
  return augmented(
    functools.partial(purpose_key, state.key, number=state.step),
    batch,
    spec=spec,
    kind=kind,
    step=state.step,
    first=lax.axis_index(AXIS) * size,
    global_batch=size * lax.axis_size(AXIS),
    dtype=precision.DTYPES[spec.config.precision],
    drawn=drawn,
  )


def augmented(
  keys: Callable[[int], Array],
  batch: Batch,
  *,
  spec: TrainSpec,
  kind: StepKind,
  step: Int[Array, ""] | int,
  first: Array | int,
  global_batch: int,
  dtype: DTypeLike,
  drawn: Drawn | None = None,
) -> Batch:
  """The augmented batch, with the labels and weights of the images that are mixed into its own.

  Args:
    keys: the step's random key for a purpose.
    batch: the images of this device.
    spec: the run's constants.
    kind: the kind of the step.
    step: its number.
    first: the position of the batch in the global batch.
    global_batch: the size of that.
    dtype: that of the result.
    drawn: the step's `augment.draw_ahead`, if it is there already.
  """
  fields, data = spec.config.augment, spec.config.data
  part: dict[str, Any] = dict(first=first, global_batch=global_batch)
  with jax.named_scope("augment"):
    image = augment(
      keys,
      batch.image,
      fields,
      flip=None if fields.flip == "none" else batch.flip,
      mean=data.mean,
      std=data.std,
      dtype=spec.accumulation,
      drawn=drawn,
      **part,
    )
    batch = batch.replace(image=image, flip=None)
    if spec.own_augmentation is not None:
      key = jax.random.fold_in(jax.random.wrap_key_data(keys(OWN)), first)
      own = spec.own_augmentation()(key, batch, share_done(step, spec=spec))
      learned = None if own.label is batch.label else own.label
      batch = own.replace(label=batch.label, learned=learned)
    label = batch.label if batch.learned is None else batch.learned
    image, partner, weight = batch.image, label, jnp.zeros(label.shape, spec.accumulation)
    if fields.mixup or fields.cutmix_alpha:
      alphas = dict(mixup=fields.mixup, cutmix=fields.cutmix_alpha)
      image, partner, weight = mix(keys(MIX), image, label, batch.mask, **alphas)
    image = image.astype(dtype)
    if kind.cutmix:
      image, partner, share = cutmix(keys(CUTMIX), image, label, batch.mask, fields.cutmix, **part)
      weight = share.astype(weight.dtype)
  return batch.replace(image=image, partner=partner, partner_weight=weight)


def share_done(step: Int[Array, ""] | int, *, spec: TrainSpec) -> Float[Array, ""]:
  """The share of the run's steps before a step."""
  return jnp.asarray(step, spec.accumulation) / spec.plan.total_steps


def update(
  state: TrainState, batch: Batch, row: Row, *, spec: TrainSpec, kind: StepKind
) -> tuple[TrainState, MetricSums]:
  """Update the state from an augmented batch; arguments as in `train_step`.

  With class weights the gradient is that of the weighted mean over all devices' images, and the
  loss in the sums is weighted, but not yet divided by the weights: their mean over an epoch is 1.
  """
  config, devices = spec.config, lax.axis_size(AXIS)
  global_batch = batch.image.shape[0] * devices

  def loss_of(params, batch, part):
    """The loss of a part of the batch; its sums, statistics and weight, which divides the loss."""
    params = stop_gradients(params, kind, spec=spec)
    key = dropout_key(state, part)
    logits, stats = forward(params, state.batch_stats, batch.image, key, spec=spec)
    target = mixed_labels(batch, logits.shape[-1])
    if spec.own_loss is None:
      losses = cross_entropy(logits, target, config.label_smoothing, spec.class_weights)
    else:
      losses = own_losses(logits, target, batch, share_done(state.step, spec=spec), spec=spec)
    sums = masked_sums(logits, losses, batch.label, batch.mask)
    weight = sums.count.astype(losses.dtype)
    if spec.class_weights is not None:
      weight = jnp.sum(jnp.where(batch.mask, class_weight(target, spec=spec), 0.0))
    loss = jnp.sum(jnp.where(batch.mask, losses, 0.0))
    # Divided by the global batch here, because a sum could overflow half precision.
    return loss * (1 / global_batch), (sums, stats, weight)

  apply: Callable[..., Any] = functools.partial(apply_gradient, spec=spec)
  if state.loss_scale is not None:
    loss_of, apply = wrappers.with_loss_scale(loss_of, apply, state.loss_scale)
  gradient_of = jax.grad(loss_of, has_aux=True)
  if spec.frozen:
    gradient_of, apply = wrappers.without_frozen(loss_of, apply, spec.frozen)
  if config.accumulate > 1:
    gradient_of = wrappers.in_micro_batches(gradient_of, config.accumulate)

  gradient, (sums, stats, weight) = gradient_of(state.params, batch, lax.axis_index(AXIS))
  if devices > 1:
    stats = jax.tree.map(lambda x: x / devices, stats)
    with jax.named_scope("allreduce"):
      gradient, (sums, stats, weight) = allreduce.sum_over_devices(
        gradient, (sums, stats, weight), order=spec.layer_order, **config.allreduce
      )
  with jax.named_scope("optimizer"):
    factor = global_batch / jnp.where(weight > 0, weight, 1)
    # A GPU updates parameters of equal shape in one kernel if they share an operand, but no scalar.
    shared = jnp.stack([factor, *row.values()])
    factor, *values = lax.platform_dependent(
      shared, cpu=lambda x: x, default=lax.optimization_barrier
    )
    row = dict(zip(row, values, strict=True))
    gradient = jax.tree.map(lambda g: g * factor, gradient)
    return apply(state, gradient, stats, row), sums


def own_losses(
  logits: Float[Array, "n classes"],
  target: Float[Array, "n classes"],
  batch: Batch,
  done: Float[Array, ""],
  *,
  spec: TrainSpec,
) -> Float[Array, "n"]:
  """The losses of the user's own for the images of a batch, times the weights of their classes.

  Raises:
    UserError: there is not one loss for each image.
  """
  assert spec.own_loss is not None
  losses = spec.own_loss()(logits.astype(target.dtype), target, batch, done)
  if getattr(losses, "shape", None) != batch.label.shape:
    raise UserError(
      f"the loss {spec.config.loss!r} returns an array of shape {getattr(losses, 'shape', None)} "
      f"for {len(batch.label)} images: it must return the loss of each."
    )
  return losses if spec.class_weights is None else losses * class_weight(target, spec=spec)


def class_weight(target: Float[Array, "n classes"], *, spec: TrainSpec) -> Float[Array, "n"]:
  """The weight of each image in a loss that weights its classes."""
  return jnp.sum(target * jnp.asarray(spec.class_weights, target.dtype), axis=-1)


def stop_gradients(params: PyTree, kind: StepKind, *, spec: TrainSpec) -> PyTree:
  """The parameters, without a gradient for those that a step of this kind does not train."""
  # A proxy never trains its whitening bias.
  fixed = {"frozen"}
  if not (kind.whiten_bias and spec.config.whitening.bias_epochs):
    fixed.add("whiten_bias")
  return jax.tree.map(
    lambda label, x: lax.stop_gradient(x) if label in fixed else x, spec.labels, params
  )


def dropout_key(state: TrainState, part: Int[Array, ""]) -> Key[Array, ""]:
  """The key of dropout: a function of the run's key, the step, and the part of the global batch."""
  key = jax.random.wrap_key_data(purpose_key(state.key, DROPOUT, state.step))
  return jax.random.fold_in(key, part)


def forward(
  params: PyTree,
  batch_stats: PyTree,
  images: Float[Array, "n h w 3"],
  key: Key[Array, ""],
  *,
  spec: TrainSpec,
) -> tuple[Float[Array, "n classes"], PyTree]:
  """The logits of normalised images as in training, and the new running statistics."""
  # Only models with running statistics have something to freeze in the forward pass.
  frozen: dict[str, Any] = {"frozen": spec.frozen} if spec.frozen and batch_stats else {}
  logits, updated = spec.model.apply(
    {"params": params, "batch_stats": batch_stats},
    images,
    train=True,
    mutable=["batch_stats"],
    rngs={"dropout": key},
    **frozen,
  )
  return logits, updated.get("batch_stats", {})


def apply_gradient(
  state: TrainState, gradient: PyTree, batch_stats: PyTree, row: Row, *, spec: TrainSpec
) -> TrainState:
  """The next state: the optimizer applies the gradient of the mean loss, and an average follows."""
  updates, opt_state = spec.optimizer.update(gradient, state.opt_state, state.params, **row)
  new = state.replace(
    step=state.step + 1,
    params=optax.apply_updates(state.params, updates),
    batch_stats=batch_stats,
    opt_state=opt_state,
  )
  if state.ema is not None:
    model = {name: getattr(new, name) for name in state.ema}
    return new.replace(ema=ema(state.ema, model, row["average_keep"]))
  if state.lookahead is not None:
    model = {name: getattr(new, name) for name in state.lookahead}
    average, model = lookahead(state.lookahead, model, row["average_keep"], row["average_pull"])
    return new.replace(lookahead=average, **model)
  return new


def ema(average: PyTree, new: PyTree, keep: Float[Array, ""]) -> PyTree:
  """Return keep * average + (1 - keep) * new, leaf by leaf; keep = 1 gives exactly `average`.

  It covers parameters and running statistics, as in davidcpage/cifar10-fast.
  """
  return jax.tree.map(lambda a, b: a * keep + b * (1.0 - keep), average, new)


def lookahead(
  average: PyTree, new: PyTree, keep: Float[Array, ""], pull: Float[Array, ""]
) -> tuple[PyTree, PyTree]:
  """Move the average towards the model, then set the model to the average where `pull` is 1.

  Both include parameters and running statistics, as in tysam-code/hlb-CIFAR10 and
  KellerJordan/cifar10-airbench.

  Args:
    average: the average before this step.
    new: the model after this step.
    keep: the share to keep: the average becomes keep * average + (1 - keep) * new. It is exactly
      `average` with 1, exactly `new` with 0, and a leaf that never changes never drifts.
    pull: 1 sets the model to the average; 0 leaves it exactly `new`.

  Returns:
    The new average and the new model.
  """

  def move(a, b):
    # Starting from the nearer end reaches both ends without rounding.
    return jnp.where(keep >= 0.5, a + (1.0 - keep) * (b - a), b - keep * (b - a))

  average = jax.tree.map(move, average, new)
  return average, jax.tree.map(lambda a, b: jnp.where(pull > 0, a, b), average, new)
