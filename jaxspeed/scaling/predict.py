"""Time of a step, an epoch and a run on some number of devices."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.scaling.allreduce_time import Exchange, all_reduce_s, overlapped_s, ready_at
from jaxspeed.scaling.hardware import INPUT, LAUNCH_S, REFERENCE_SIDE, Cluster

_FORWARD = 1 / 3
# Of 224-pixel images by the forward pass of rectangles: 288 px ones have 1.37 times their square.
_RECTANGLES = 1.37


def compute_s(images: float, side: int, cluster: Cluster) -> float:
  """Seconds of a training step of one device on `images` of `side` pixels, without exchange."""
  return cluster.launch_s + images * (side / REFERENCE_SIDE) ** 2 / cluster.images_per_s


@dataclasses.dataclass(frozen=True)
class Step:
  """One phase's step on some number of devices; times in seconds.

  Attributes:
    images: of one device.
    exposed: of the exchange, what the kernels do not hide.
    exchange: of all all-reduces, one after the other.
    input_bound: whether decoding takes longer than the rest.
    cores: of each host that decode as fast as the step goes.
    memory_gb: of one device.
  """

  images: float
  seconds: float
  compute: float
  exposed: float
  exchange: float
  input_bound: bool
  cores: float
  memory_gb: float


def step_of(
  phase: Phase, devices: int, cluster: Cluster, exchange: Exchange, *, group_mb: float
) -> Step:
  """The step of a phase."""
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
    memory_gb=memory_gb(images, phase.image_size),
  )


def _hosts(devices: int, cluster: Cluster) -> tuple[int, Cluster]:
  """Hosts, and the cluster with as many devices in each as there are."""
  per_host = min(cluster.per_host, devices)
  if devices % per_host:
    raise UserError(
      f"--devices={devices} does not divide over hosts of {per_host}: set --per-host to a divisor."
    )
  return devices // per_host, dataclasses.replace(cluster, per_host=per_host)


def decoded_per_core(phase: Phase) -> float:
  """Images a second that a core decodes for a phase."""
  if not phase.copies:
    source = "originals"
  else:
    source = "copies of 160 px" if phase.copies <= 160 else "copies of 352 px"
  rates = INPUT[source]
  side = min(rates, key=lambda side: abs(side - phase.image_size))
  return rates[side]


def memory_gb(images: float, side: int) -> float:
  """Gigabytes of one device: parameters and momentum, and activations in proportion to pixels.

  Of the step compiled for described H100s, 40 images of 224 px in half precision
  (results/allreduce_groups.json): 0.21 GB and 1.8.
  """
  return 0.21 + 1.8 * images / 40 * (side / REFERENCE_SIDE) ** 2


def validation_s(phase: Phase, images: int, devices: int, cluster: Cluster) -> float:
  """Seconds in which all devices evaluate `images` as a phase does."""
  area = (phase.eval_size / REFERENCE_SIDE) ** 2 * (_RECTANGLES if "rect" in phase.eval_mode else 1)
  passes = 2 if "flip" in phase.eval_mode else 5 if phase.eval_mode == "five" else 1
  each = math.ceil(images / devices)
  return _FORWARD * cluster.launch_s + passes * _FORWARD * each * area / cluster.images_per_s


@dataclasses.dataclass(frozen=True)
class Prediction:
  """A run on some number of devices; times in seconds.

  Attributes:
    steps: of each phase.
    epochs: of each phase, seconds of one with its validation where there is one.
    training: without validation.
    cost: in USD; 0 where no price is stated.
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
  """A run of a plan.

  Args:
    config: its groups and how often it evaluates.
    plan: phases, batches, steps.
    cluster: what the devices are.
    exchange: what they send.
    devices: how many.
    epochs: after which the target is reached; 0: all.
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


def fit_step(rows: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
  """Seconds of a step that no batch changes, and images a second of 224 px beyond them.

  Args:
    rows: (side, images a device, images a second of one device); least squares of the relative
      error of a step's time.
  """
  seconds = np.array([images / rate for _, images, rate in rows])
  terms = np.array([[1.0, images * (side / REFERENCE_SIDE) ** 2] for side, images, _ in rows])
  (fixed, each), *_ = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(rows)), rcond=None)
  return float(fixed), float(1 / each)


def measured_rate(milliseconds: float, images: float, side: int) -> float:
  """Images of 224 px a second beyond the launches, from a measured step.

  Raises:
    UserError: the step is shorter than the launches that are counted.
  """
  if milliseconds / 1e3 <= LAUNCH_S:
    raise UserError(
      f"--step-ms={milliseconds:g}: a step takes more than the {1e3 * LAUNCH_S:g} ms that its "
      f"launches are counted with; measure a larger batch."
    )
  return images * (side / REFERENCE_SIDE) ** 2 / (milliseconds / 1e3 - LAUNCH_S)
