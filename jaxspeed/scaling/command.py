"""The flags and the output of `jaxspeed.scaling`."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config.schema import shown
from jaxspeed.devices.mesh import find_devices
from jaxspeed.errors import UserError, plural
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.records.durations import duration
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.hardware import DEVICES, LATE, READY, Cluster, cluster_of
from jaxspeed.scaling.predict import Prediction, measured_rate, predict
from jaxspeed.scaling.work import Work, work_of


def describe(
  plan: Plan, prediction: Prediction, needed: Sequence[float], there: float
) -> list[str]:
  """Return a prediction as lines of text.

  Args:
    plan: the plan.
    prediction: its times.
    needed: GB that each phase needs on a device.
    there: GB that a device has; 0: unknown.
  """
  lines = []
  for phase, step, epoch, memory in zip(
    plan.phases, prediction.steps, prediction.epochs, needed, strict=True
  ):
    hidden = step.exchange - step.exposed
    bound = ", bound by its input" if step.input_bound else ""
    cores = f", {step.cores:.3g} cores per host" if plan.streams else ""
    exchange = (
      f" (compute {1e3 * step.compute:.1f}, all-reduce {1e3 * step.exchange:.1f}, "
      f"{1e3 * hidden:.1f} of it hidden)"
    )
    lines.append(
      f"  epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}, "
      f"{phase.image_size} px, {step.images:g} images per device: step "
      f"{1e3 * step.seconds:.1f} ms{bound}{exchange if prediction.devices > 1 else ''}, "
      f"{phase.batch_size / step.seconds:,.0f} images/s{cores}, {memory:.1f} GB per device; epoch "
      f"{duration(epoch)}"
    )
  cost = f", ${prediction.cost:,.2f}" if prediction.cost else ""
  most = max(needed)
  fits = f"does not fit, {most:.1f} GB on devices of {there:.3g}; " if 0 < there < most else ""
  lines.insert(
    0,
    f"{plural(prediction.devices, 'device')}: {fits}{duration(prediction.seconds)}, including "
    f"{duration(prediction.validation)} of validation{cost}",
  )
  return lines


# The most numbers that --devices accepts, and the largest number.
_NUMBERS, _MOST_DEVICES = 100, 1_000_000


def device_counts(texts: Sequence[str]) -> list[int]:
  """Parse the numbers of --devices.

  Raises:
    UserError: one of them is not a number of devices, or there are too many numbers.
  """
  digits = [text.strip() for text in texts]
  good = all(text.isascii() and text.isdecimal() and len(text) <= 7 for text in digits)
  if good and 0 < len(digits) <= _NUMBERS:
    counts = [int(text) for text in digits]
    if all(1 <= count <= _MOST_DEVICES for count in counts):
      return counts
  raise UserError(
    f"--devices={shown(','.join(texts))[1:-1]}: give numbers from 1 to {_MOST_DEVICES:,}, as in "
    f"--devices=8,128,2048."
  )


def define_flags() -> SimpleNamespace:
  """Defines the command's flags; a value of 0 stands for the usual value."""
  number = flags.DEFINE_float
  return SimpleNamespace(
    devices=flags.DEFINE_list("devices", ["8"], "Numbers of devices, separated by commas."),
    device=flags.DEFINE_enum("device", "v100", list(DEVICES), "The kind of device."),
    step_ms=number(
      "step-ms",
      None,
      "Milliseconds of a measured step of the first phase on the first number of --devices.",
      1e-3,
      1e9,
    ),
    epochs=flags.DEFINE_integer("epochs", 0, "Epochs until the target is reached; 0: all.", 0),
    per_host=flags.DEFINE_integer("per-host", 8, "Devices per host.", 1, _MOST_DEVICES),
    network=number("network", None, "Gbit/s per host; by default as usual.", 1e-3, 1e7),
    latency=number("latency", None, "us between hosts; by default as usual.", 1e-3, 1e9),
    in_flight=flags.DEFINE_integer("in-flight", 1, "All-reduces in flight at once.", 0, 1_000),
    cores=number("cores", None, "Decoding cores per host; by default enough.", 0.01, 1e6),
    price=number("price", None, "USD per device and hour; by default as usual.", 1e-6, 1e6),
  )


def _cluster(given: SimpleNamespace, plan: Plan, devices: int, work: Work) -> Cluster:
  fields: dict[str, Any] = dict(
    per_host=given.per_host.value,
    in_flight=given.in_flight.value,
    ready=READY if given.device.value in ("h100", "h200") else LATE,
    cores=given.cores.value or 0.0,
  )
  device = DEVICES[given.device.value]
  fields["images_per_s"] = work.rate(cluster_of(device).images_per_s)
  if given.step_ms.value:
    phase = plan.phases[0]
    fields["images_per_s"] = measured_rate(
      given.step_ms.value, phase.batch_size / devices, phase.image_size
    )
  if given.network.value:
    fields["network_gb_s"] = device.share * given.network.value / 8
  if given.latency.value:
    fields["hop_s"] = given.latency.value * 1e-6
  if given.price.value:
    fields["price"] = given.price.value
  return cluster_of(device, **fields)


def _plans(config: ConfigDict, given: SimpleNamespace) -> list[tuple[int, Plan]]:
  """Return each number of devices with the plan of a recipe on them."""
  if config.data.path:
    raise UserError(
      f"config.data.path={shown(config.data.path)}: this command reads no images, it uses "
      f"config.data.train_images={config.data.train_images}: set --config.data.path= and "
      f"--config.data.train_images."
    )
  counts = device_counts(given.devices.value)
  plans = [(count, make_plan(config, devices=count)) for count in counts]
  epochs = plans[0][1].epochs
  if given.epochs.value > epochs:
    raise UserError(f"--epochs={given.epochs.value}: the run has {epochs} epochs; set no more.")
  return plans


def _predictions(config: ConfigDict, given: SimpleNamespace) -> Iterator[str]:
  """Yield the predictions of a recipe on each number of devices, as lines of text."""
  plans, device = _plans(config, given), DEVICES[given.device.value]
  first_devices, first_plan = plans[0]
  work = work_of(config)
  cluster = _cluster(given, first_plan, first_devices, work)
  exchange = exchange_of(config)
  source = "measured" if given.step_ms.value else f"ResNet-50's rate by its work: {device.source}"
  yield (
    f"{config.name} on {given.device.value}: {cluster.images_per_s:,.0f} images/s of 224 px per "
    f"device, {source}"
  )
  groups = exchange.groups(config.allreduce.group_mb)
  yield (
    f"a step sends {sum(size for _, size in groups) / 1e6:.1f} MB in {len(groups)} all-reduces; "
    f"{cluster.network_gb_s:.3g} GB/s per host, {cluster.local_gb_s:g} GB/s inside"
  )
  for devices, plan in plans:
    prediction = predict(
      config, plan, cluster, exchange, devices=devices, epochs=given.epochs.value
    )
    memory = [work.memory_gb(config, plan, phase, devices) for phase in plan.phases]
    yield from describe(plan, prediction, memory, device.memory_gb)


def run(config: ConfigDict | None, given: SimpleNamespace) -> None:
  """Print the predictions of a recipe on more devices."""
  if config is None:
    raise UserError("--config=FILE.py names the recipe.")
  find_devices()  # computing shapes needs JAX's backend; this reports its errors
  print("\n".join(_predictions(config, given)))
