"""The pure steps: the first state, one training step, and an epoch of them in one program.

The functions below see one device's part of a batch. `sharded_*` put them on the mesh.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int, UInt8, UInt32

from jaxspeed import averaging, precision
from jaxspeed.build import Job
from jaxspeed.data.augment import augment, normalize
from jaxspeed.data.feed import AUGMENT, INIT, Batch, epoch_order, purpose_key, take_batch
from jaxspeed.losses import Sums, masked_sums, smoothed_cross_entropy
from jaxspeed.mesh import AXIS
from jaxspeed.models.layers import whitening_kernel
from jaxspeed.plan import Phase
from jaxspeed.state import Carry, TrainState

Table = dict[str, Float[Array, "steps"]]


def init_state(key: UInt32[Array, "2"], images: UInt8[Array, "n h w 3"], *, job: Job) -> TrainState:
  """The state before the first step.

  Args:
    key: of the run.
    images: the training set; a whitening layer takes its filters from the first
      `config.whitening.images` of them.
  """
  config = job.config
  size = config.data.image_size
  variables = job.model.init(
    # Threefry would take 8 s to compile on a CPU where this takes 1 s; the numbers are a
    # function of the seed and the kind of device.
    jax.random.wrap_key_data(jnp.tile(purpose_key(key, INIT, 0), 2), impl="rbg"),
    jnp.zeros((1, size, size, 3), jnp.float32),
    train=False,
  )
  params = variables["params"]
  if "whiten" in params:
    first = normalize(images[: config.whitening.images], config.data.mean, config.data.std)
    params["whiten"]["kernel"] = whitening_kernel(first, epsilon=config.whitening.epsilon)
  stats = variables["batch_stats"]
  # The average is a copy: a donated buffer must not stand in the state twice.
  copied = jax.tree.map(jnp.copy, {"params": params, "batch_stats": stats})
  return TrainState(
    step=jnp.int32(0),
    key=key,
    params=params,
    batch_stats=stats,
    opt_state=job.optimizer.init(params),
    average=copied if config.average.decay else None,
    loss_scale=precision.LossScale.create() if config.precision == "float16" else None,
  )


def train_step(
  state: TrainState, batch: Batch, hyper: dict[str, Float[Array, ""]], *, job: Job
) -> tuple[TrainState, Sums]:
  """One step on this device's part of the global batch.

  The gradient is that of the mean loss over the examples of all devices that count. Batch norm
  sees this device's part only; its running statistics are averaged in the same all-reduce.

  Args:
    state: donated by the callers.
    batch: images of this device.
    hyper: this step's row of the plan's table.
    job: what does not change.

  Returns:
    The next state, and the sums over the examples of all devices.
  """
  config = job.config
  size = batch.image.shape[0]
  dtype = precision.DTYPES[config.precision]
  image = augment(
    purpose_key(state.key, AUGMENT, state.step),
    batch.image,
    first=lax.axis_index(AXIS) * size,
    global_batch=size * job.devices,
    mean=config.data.mean,
    std=config.data.std,
    **config.augment,
  ).astype(dtype)
  scale = state.loss_scale.scale if state.loss_scale else jnp.float32(1)

  def loss_sum(params):
    variables = {"params": params, "batch_stats": state.batch_stats}
    logits, updated = job.model.apply(variables, image, train=True, mutable=["batch_stats"])
    losses = smoothed_cross_entropy(logits, batch.label, config.label_smoothing)
    sums = masked_sums(logits, losses, batch.label, batch.mask)
    # Over the full batch already here, so that half precision sees a mean and not a sum.
    return sums.loss * (scale / (size * job.devices)), (sums, updated["batch_stats"])

  gradient, (sums, stats) = jax.grad(loss_sum, has_aux=True)(state.params)
  gradient, sums, stats = lax.psum(
    (gradient, sums, jax.tree.map(lambda x: x / job.devices, stats)), AXIS
  )
  counted = jnp.maximum(sums.count, 1).astype(jnp.float32)
  full = size * job.devices / (scale * counted)
  gradient = jax.tree.map(lambda g: g * full, gradient)

  updates, opt_state = job.optimizer.update(
    gradient, state.opt_state, state.params, learning_rate=hyper["learning_rate"]
  )
  new = state.replace(
    step=state.step + 1,
    params=optax.apply_updates(state.params, updates),
    batch_stats=stats,
    opt_state=opt_state,
  )
  if state.average is not None:
    model = {"params": new.params, "batch_stats": new.batch_stats}
    new = new.replace(average=averaging.ema(state.average, model, hyper["average_keep"]))
  if state.loss_scale is not None:
    finite = precision.all_finite(gradient)
    new = precision.select(finite, new, state.replace(step=new.step))
    new = new.replace(loss_scale=state.loss_scale.update(finite))
  return new, sums


def resident_step(
  carry: Carry, data: Batch, order: Int[Array, "n"], table: Table, *, job: Job, phase: Phase
) -> tuple[Carry, Float[Array, ""]]:
  """One step on a set that lives on the device; also returns the step's mean loss."""
  state = carry.state
  size = phase.batch_size // job.devices
  position = (state.step - phase.first_step) % phase.steps_per_epoch * phase.batch_size
  batch = take_batch(data.image, data.label, order, position + lax.axis_index(AXIS) * size, size)
  hyper = {name: column[state.step] for name, column in table.items()}
  state, sums = train_step(state, batch, hyper, job=job)
  return Carry(state, carry.sums + sums), sums.loss / phase.batch_size


def resident_epoch(
  carry: Carry,
  data: Batch,
  order: Int[Array, "n"],
  table: Table,
  *,
  job: Job,
  phase: Phase,
  steps: int,
) -> tuple[Carry, Float[Array, "steps"]]:
  """`steps` steps as one program; also returns the mean loss of each."""

  def body(carry, _):
    return resident_step(carry, data, order, table, job=job, phase=phase)

  return lax.scan(body, carry, length=steps)


def on_mesh(function: Callable[..., Any], job: Job, **static: Any) -> Callable[..., Any]:
  """`function` on every device, all arguments and results whole on each.

  check_vma=False: with the check on, the gradient of a replicated parameter is already summed
  over the devices, and the sum in `train_step` would count each device's part N times.
  """
  return jax.shard_map(
    functools.partial(function, job=job, **static),
    mesh=job.mesh,
    in_specs=P(),
    out_specs=P(),
    check_vma=False,
  )


def order_of(key: UInt32[Array, "2"], epoch: Int[Array, ""], *, job: Job) -> Int[Array, "n"]:
  """The order of an epoch of the job's training set."""
  return epoch_order(key, epoch, job.plan.train_images)
