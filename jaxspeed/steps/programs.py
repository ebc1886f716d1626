"""The pure steps: the first state, one training step, and an epoch of them in one program.

The functions below see one device's part of a batch. `on_mesh` puts them on the devices.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from jaxspeed.data.augment import augment, cutmix, normalize
from jaxspeed.data.batch import (
  AUGMENT,
  CUTMIX,
  INIT,
  PROXY,
  Batch,
  Order,
  epoch_order,
  purpose_key,
  take_batch,
)
from jaxspeed.devices import allreduce, precision
from jaxspeed.devices.mesh import AXIS
from jaxspeed.models.layers.norm import whitening_kernel
from jaxspeed.optim import averaging
from jaxspeed.planning.plan import Phase, Segments, StepKind
from jaxspeed.steps.losses import Sums, masked_sums, smoothed_cross_entropy
from jaxspeed.steps.spec import Job
from jaxspeed.steps.state import Carry, TrainState

Table = dict[str, Float[Array, "steps"]]

# Steps in the body of an epoch's loop, where they divide its length: a rest is compiled once more.
# In all but the first a kernel that updates a parameter also rounds it for the next convolution.
# cifar10.py on an H100: 126 kernels a step become 118.5; with 4 steps 114.5, which take 2.6 times
# as long to compile (results/h100_step.json).
_UNROLL = 2


def init_state(key: UInt32[Array, "2"], images: UInt8[Array, "n h w 3"], *, job: Job) -> TrainState:
  """The state before the first step.

  Args:
    key: of the run.
    images: the training set, or any image of its size; a whitening layer takes its filters from
      the first `config.whitening.images` of them.
  """
  config = job.config
  variables = job.model.init(
    # Threefry would take 8 s to compile on a CPU where this takes 1 s; the numbers are a
    # function of the seed and the kind of device.
    jax.random.wrap_key_data(jnp.tile(purpose_key(key, INIT, 0), 2), impl="rbg"),
    jnp.zeros((1, *images.shape[1:]), jnp.float32),
    train=False,
  )
  params = variables["params"]
  if "whiten" in params:
    first = normalize(images[: config.whitening.images], config.data.mean, config.data.std)
    filters, patch, _, _ = params["whiten"]["kernel"].shape
    params["whiten"]["kernel"] = whitening_kernel(
      first,
      filters=filters,
      patch=patch,
      epsilon=config.whitening.epsilon,
      centered=config.whitening.centered,
    )
  stats = variables["batch_stats"]
  # The average is a copy: a donated buffer must not stand in the state twice.
  copied = jax.tree.map(jnp.copy, {"params": params, "batch_stats": stats})
  return TrainState(
    step=jnp.int32(0),
    key=key,
    params=params,
    batch_stats=stats,
    opt_state=job.optimizer.init(params),
    average=copied if config.average.kind == "ema" else None,
    slow=copied if config.average.kind == "lookahead" else None,
    loss_scale=precision.LossScale.create(config.loss_scale)
    if config.precision == "float16"
    else None,
    proxy=init_state(purpose_key(key, PROXY, 0), images, job=job.proxy) if job.proxy else None,
  )


def train_step(
  state: TrainState,
  batch: Batch,
  mirror: Bool[Array, "n"],
  hyper: dict[str, Float[Array, ""]],
  *,
  job: Job,
  kind: StepKind,
) -> tuple[TrainState, Sums]:
  """One step on this device's part of the global batch.

  The gradient is that of the mean loss over the examples of all devices that count. Batch norm
  sees this device's part only, and with `config.accumulate` one of its parts at a time, which is
  what `ghost_splits` does; its running statistics are averaged in the same all-reduce.

  Args:
    state: donated by the callers.
    batch: images of this device.
    mirror: which of them are mirrored.
    hyper: this step's row of the plan's table.
    job: what does not change.
    kind: what this step does beside the rest.

  Returns:
    The next state, and the sums over the examples of all devices.
  """
  config = job.config
  size = batch.image.shape[0]
  dtype = precision.DTYPES[config.precision]
  part = dict(first=lax.axis_index(AXIS) * size, global_batch=size * job.devices)
  with jax.named_scope("augment"):
    image = augment(
      purpose_key(state.key, AUGMENT, state.step),
      batch.image,
      mirror=None if config.augment.flip == "none" else mirror,
      crop_padding=config.augment.crop_padding,
      cutout=config.augment.cutout,
      brightness=config.augment.brightness,
      contrast=config.augment.contrast,
      mean=config.data.mean,
      std=config.data.std,
      **part,
    ).astype(dtype)
    partner, share = batch.label, 0.0
    if kind.cutmix:
      cutmix_key = purpose_key(state.key, CUTMIX, state.step)
      image, partner, share = cutmix(
        cutmix_key, image, batch.label, size=config.augment.cutmix, **part
      )
  batch = batch.replace(image=image)
  proxy = state.proxy
  if proxy is not None and job.proxy is not None:
    proxy, kept = choose(proxy, batch, hyper, job=job.proxy, kind=kind)
    batch, partner = jax.tree.map(
      lambda x: x.at[kept].get(mode="promise_in_bounds"), (batch, partner)
    )
  state, sums = update(
    state.replace(proxy=None), batch, partner, hyper, share=share, job=job, kind=kind
  )
  return state.replace(proxy=proxy), sums


def choose(
  state: TrainState,
  batch: Batch,
  hyper: dict[str, Float[Array, ""]],
  *,
  job: Job,
  kind: StepKind,
) -> tuple[TrainState, Int[Array, "kept"]]:
  """The images of this device with the highest loss, as a small net sees them.

  The net's norms see the whole batch, and where it learns, it learns from those images only
  (KellerJordan/cifar10-airbench, airbench96_faster.py, where the small net runs to its end first:
  as it does not depend on the large one, that comes to the same).

  Args:
    state: of the small net.
    batch: augmented images of this device.
    hyper: this step's row of the plan's table.
    job: of the small net.
    kind: of the step.

  Returns:
    The net's next state and the places of the images in the batch.
  """
  keep = job.config.proxy.keep // job.devices
  variables = {"params": state.params, "batch_stats": state.batch_stats}
  logits, updated = job.model.apply(variables, batch.image, train=True, mutable=["batch_stats"])
  losses = smoothed_cross_entropy(logits, batch.label, job.config.label_smoothing)
  highest, kept = lax.top_k(jnp.where(batch.mask, losses, -jnp.inf), keep)
  if kind.proxy_learns:
    # The forward pass stands in `update` again: twice in one of four steps of a net that is small.
    hard = batch.replace(mask=batch.mask & (losses >= highest[-1]))
    state, _ = update(state, hard, batch.label, hyper, share=0.0, job=job, kind=kind)
    return state, kept
  stats = lax.psum(jax.tree.map(lambda x: x / job.devices, updated["batch_stats"]), AXIS)
  return state.replace(step=state.step + 1, batch_stats=stats), kept


def update(
  state: TrainState,
  batch: Batch,
  partner: Int[Array, "n"],
  hyper: dict[str, Float[Array, ""]],
  *,
  share: float,
  job: Job,
  kind: StepKind,
) -> tuple[TrainState, Sums]:
  """From an augmented batch to the next state.

  Args:
    state: before the step.
    batch: images of this device, in the number format of the net.
    partner: labels of what cutmix put into the images.
    hyper: this step's row of the plan's table.
    share: of the loss, that `partner` counts for.
    job: what does not change.
    kind: of the step.

  Returns:
    The next state, and the sums over the examples of all devices.
  """
  config = job.config
  size = batch.image.shape[0]
  scale = state.loss_scale.scale if state.loss_scale else jnp.float32(1)

  def loss_sum(params, part, partner):
    if "whiten" in params and not kind.whiten_bias:
      params = params | {"whiten": lax.stop_gradient(params["whiten"])}
    variables = {"params": params, "batch_stats": state.batch_stats}
    logits, updated = job.model.apply(variables, part.image, train=True, mutable=["batch_stats"])
    losses = smoothed_cross_entropy(logits, part.label, config.label_smoothing)
    if share:
      mixed_in = smoothed_cross_entropy(logits, partner, config.label_smoothing)
      losses = (1 - share) * losses + share * mixed_in
    sums = masked_sums(logits, losses, part.label, part.mask)
    # Over the full batch already here, so that half precision sees a mean and not a sum.
    return sums.loss * (scale / (size * job.devices)), (sums, updated["batch_stats"])

  gradient_of = jax.grad(loss_sum, has_aux=True)
  gradient, (sums, stats) = accumulate(
    functools.partial(gradient_of, state.params), (batch, partner), config.accumulate
  )
  stats = jax.tree.map(lambda x: x / config.accumulate, stats)
  gradient, (sums, stats) = sum_over_devices(
    gradient,
    (sums, jax.tree.map(lambda x: x / job.devices, stats)),
    job=job,
  )
  with jax.named_scope("optimizer"):
    counted = jnp.maximum(sums.count, 1).astype(jnp.float32)
    full = size * job.devices / (scale * counted)
    gradient = jax.tree.map(lambda g: g * full, gradient)

    updates, opt_state = job.optimizer.update(gradient, state.opt_state, state.params, **hyper)
    new = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      batch_stats=stats,
      opt_state=opt_state,
    )
    model = {"params": new.params, "batch_stats": new.batch_stats}
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


def sum_over_devices(gradient: Any, rest: Any, *, job: Job) -> tuple[Any, Any]:
  """As `allreduce.sum_over_devices`; of one device, what is given."""
  if job.devices == 1:
    return gradient, rest
  fields = job.config.allreduce
  with jax.named_scope("allreduce"):
    return allreduce.sum_over_devices(
      gradient, rest, order=job.layer_order, group_mb=fields.group_mb, dtype=fields.dtype
    )


def accumulate(function: Callable[..., Any], batch: tuple[Any, ...], parts: int) -> Any:
  """The sum of what `function` gives for equal parts of a batch, one after the other."""
  if parts == 1:
    return function(*batch)
  split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
  first = function(*jax.tree.map(lambda x: x[0], split))

  def add(total, part):
    return jax.tree.map(jnp.add, total, function(*part)), None

  rest = jax.tree.map(lambda x: x[1:], split)
  # Loops are slow on a CPU (jax issue 12868); elsewhere they hold the memory of one part.
  unroll = parts if jax.default_backend() == "cpu" else 1
  return lax.scan(add, first, rest, unroll=unroll)[0]


def tabled_step(
  carry: Carry,
  batch: Batch,
  mirror: Bool[Array, "n"],
  table: Table,
  *,
  job: Job,
  kind: StepKind,
) -> tuple[Carry, Float[Array, ""]]:
  """`train_step` with its row of the table; also returns the step's mean loss."""
  hyper = {name: column[carry.state.step] for name, column in table.items()}
  state, sums = train_step(carry.state, batch, mirror, hyper, job=job, kind=kind)
  loss = sums.loss / jnp.maximum(sums.count, 1).astype(jnp.float32)
  return Carry(state, carry.sums + sums), loss


def resident_step(
  carry: Carry,
  data: Batch,
  order: Order,
  table: Table,
  *,
  job: Job,
  phase: Phase,
  kind: StepKind,
) -> tuple[Carry, Float[Array, ""]]:
  """One step on a set that lives on the device; also returns the step's mean loss."""
  size = phase.batch_size // job.devices
  position = (carry.state.step - phase.first_step) % phase.steps_per_epoch * phase.batch_size
  first = position + lax.axis_index(AXIS) * size
  batch, mirror = take_batch(data.image, data.label, order, first, size)
  return tabled_step(carry, batch, mirror, table, job=job, kind=kind)


def resident_epoch(
  carry: Carry,
  data: Batch,
  order: Order,
  table: Table,
  *,
  job: Job,
  phase: Phase,
  segments: Segments,
) -> tuple[Carry, Float[Array, "steps"]]:
  """The steps of an epoch as one program; also returns the mean loss of each."""
  losses = []
  for repeats, kinds in segments:

    def body(carry, _, kinds=kinds):
      losses = []
      for kind in kinds:
        carry, loss = resident_step(carry, data, order, table, job=job, phase=phase, kind=kind)
        losses.append(loss)
      return carry, jnp.stack(losses)

    carry, part = lax.scan(body, carry, length=repeats, unroll=1 if repeats % _UNROLL else _UNROLL)
    losses.append(part.reshape(-1))
  return carry, jnp.concatenate(losses)


def on_mesh(
  function: Callable[..., Any], job: Job, *, split: tuple[bool, ...] | None = None, **static: Any
) -> Callable[..., Any]:
  """`function` on every device, arguments whole on each but those split by their first axis.

  Args:
    function: takes `job` and `static` by name; its results are the same on every device.
    job: what does not change.
    split: of each argument whether it is split; None: none is.
    static: bound before compilation.

  check_vma=False: with the check on, the gradient of a replicated parameter is already summed
  over the devices, and the sum in `train_step` would count each device's part N times.
  """
  return jax.shard_map(
    functools.partial(function, job=job, **static),
    mesh=job.mesh,
    in_specs=P() if split is None else tuple(P(AXIS) if each else P() for each in split),
    out_specs=P(),
    check_vma=False,
  )


def order_of(key: UInt32[Array, "2"], epoch: Int[Array, ""], *, job: Job) -> Order:
  """The order of an epoch of the job's training set."""
  return epoch_order(key, epoch, job.plan.train_images, flip=job.config.augment.flip)
