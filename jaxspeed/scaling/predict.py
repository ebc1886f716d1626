"""Predicted time of a step, an epoch and a run on some number of devices."""

import dataclasses
import math

from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.scaling.allreduce_time import Exchange, all_reduce_s, overlapped_s, ready_at
from jaxspeed.scaling.hardware import INPUT, LAUNCH_S, REFERENCE_SIDE, Cluster

# Share of a training step that its forward pass takes.
_FORWARD = 1 / 3
# Mean area of evaluated rectangles over the square of their short side, at 288 px.
_RECTANGLES = 1.37


def compute_s(images: float, side: int, cluster: Cluster) -> float:
  """Return the seconds of a training step on one device's images, without the all-reduce."""
  return cluster.launch_s + images * (side / REFERENCE_SIDE) ** 2 / cluster.images_per_s


@dataclasses.dataclass(frozen=True)
class Step:
  """One phase's step on some number of devices; times are in seconds.

  Attributes:
    images: images per device.
    exposed: time of the all-reduces that the kernels do not hide.
    exchange: total time of the all-reduces.
    input_bound: whether decoding takes longer than the rest.
    cores: cores per host that decode as fast as the devices train.
  """

  images: float
  seconds: float
  compute: float
  exposed: float
  exchange: float
  input_bound: bool
  cores: float


def step_of(
  phase: Phase, devices: int, cluster: Cluster, exchange: Exchange, *, group_mb: float
) -> Step:
  """Predict the step of a phase."""
  images = phase.batch_size / devices
  hosts, cluster = _hosts(devices, cluster)
  compute = compute_s(images, phase.image_size, cluster)
  groups = [
    (ready_at(share, cluster.ready), all_reduce_s(size, hosts, cluster))
    for share, size in (exchange.groups(group_mb) if devices > 1 else ())
  ]
  seconds = overlapped_s(compute, groups, in_flight=cluster.in_flight)
  rate = decoded_per_core(phase)
  decode = phase.batch_size / hosts / (cluster.cores * rate) if cluster.cores else 0.0
  exposed, seconds = seconds - compute, max(seconds, decode)
  return Step(
    images=images,
    seconds=seconds,
    compute=compute,
    exposed=exposed,
    exchange=sum(each for _, each in groups),
    input_bound=decode >= seconds,
    cores=phase.batch_size / hosts / seconds / rate,
  )


def _hosts(devices: int, cluster: Cluster) -> tuple[int, Cluster]:
  """Return the number of hosts, and the cluster with at most `devices` in each."""
  per_host = min(cluster.per_host, devices)
  if devices % per_host:
    raise UserError(
      f"--devices={devices} does not divide over hosts of {per_host}: set --per-host to a divisor."
    )
  return devices // per_host, dataclasses.replace(cluster, per_host=per_host)


def decoded_per_core(phase: Phase) -> float:
  """Return the images/s that one core decodes for a phase."""
  if not phase.copies:
    source = "originals"
  else:
    source = "copies of 160 px" if phase.copies <= 160 else "copies of 352 px"
  rates = INPUT[source]
  side = min(rates, key=lambda side: abs(side - phase.image_size))
  return rates[side]


def validation_s(phase: Phase, images: int, devices: int, cluster: Cluster) -> float:
  """Return the seconds in which all devices evaluate `images` with a phase's settings."""
  area = (phase.eval_size / REFERENCE_SIDE) ** 2 * (_RECTANGLES if "rect" in phase.eval_mode else 1)
  passes = 2 if "flip" in phase.eval_mode else 5 if phase.eval_mode == "five" else 1
  each = math.ceil(images / devices)
  return _FORWARD * cluster.launch_s + passes * _FORWARD * each * area / cluster.images_per_s


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A run on some number of devices; times are in seconds.

  Attributes:
    steps: the step of each phase.
    epochs: the time of an epoch of each phase, with its share of validation.
    training: the time without validation.
    cost: the cost in USD; 0 if no price is stated.
  """

  devices: int
  steps: tuple[Step, ...]
  epochs: tuple[float, ...]
  training: float
  validation: float
  seconds: float
  cost: float


def predict(
  config: ConfigDict,
  plan: Plan,
  cluster: Cluster,
  exchange: Exchange,
  *,
  devices: int,
  epochs: int = 0,
) -> Prediction:
  """Predict the run of a plan.

  Args:
    config: the config; `allreduce.group_mb` and `eval.every_epochs` are used.
    plan: the run's phases, batches and steps.
    cluster: the devices and their network.
    exchange: the data sent in each step.
    devices: the number of devices.
    epochs: the number of epochs until the target is reached; 0: all.
  """
  steps = tuple(
    step_of(phase, devices, cluster, exchange, group_mb=config.allreduce.group_mb)
    for phase in plan.phases
  )
  evaluation = [validation_s(phase, plan.eval_images, devices, cluster) for phase in plan.phases]
  training = validation = 0.0
  last = min(epochs or plan.epochs, plan.epochs)
  for epoch in range(last):
    number = plan.phases.index(plan.phase_of(plan.first_step_of(epoch)))
    training += plan.steps_in_epoch(epoch) * steps[number].seconds
    if (epoch + 1) % config.eval.every_epochs == 0 or epoch + 1 == last:
      validation += evaluation[number]
  seconds = training + validation
  return Prediction(
    devices=devices,
    steps=steps,
    epochs=tuple(
      phase.steps_per_epoch * step.seconds + each / config.eval.every_epochs
      for phase, step, each in zip(plan.phases, steps, evaluation, strict=True)
    ),
    training=training,
    validation=validation,
    seconds=seconds,
    cost=seconds / 3600 * devices * cluster.price,
  )


def measured_rate(milliseconds: float, images: float, side: int) -> float:
  """Return the images/s of 224 px without the launches, from a measured step.

  Raises:
    UserError: the step is shorter than its assumed launches.
  """
  if milliseconds / 1e3 <= LAUNCH_S:
    raise UserError(
      f"--step-ms={milliseconds:g}: a step must take longer than {1e3 * LAUNCH_S:g} ms, the "
      f"assumed time of its launches; measure a larger batch."
    )
  return images * (side / REFERENCE_SIDE) ** 2 / (milliseconds / 1e3 - LAUNCH_S)
