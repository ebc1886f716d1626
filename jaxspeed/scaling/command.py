"""The flags and the output of `jaxspeed.scaling`."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import checks, effects
from jaxspeed.config import fields as fields_lib
from jaxspeed.config import flags as command_line
from jaxspeed.config.schema import shown
from jaxspeed.devices.mesh import find_devices
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, expanded, write_atomically
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.records.durations import estimate
from jaxspeed.records.provenance import versions
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.hardware import DEVICES, LATE, READY, Cluster, Device, cluster_of
from jaxspeed.scaling.predict import Prediction, measured_rate, predict
from jaxspeed.scaling.published import published_table


def describe(config: ConfigDict, plan: Plan, prediction: Prediction, device: Device) -> list[str]:
  """Return a prediction as lines of text."""
  lines = []
  for phase, step, epoch in zip(plan.phases, prediction.steps, prediction.epochs, strict=True):
    hidden = step.exchange - step.exposed
    bound = ", bound by its input" if step.input_bound else ""
    over = f" (it has {device.memory_gb:g} GB)" if step.memory_gb > device.memory_gb else ""
    lines.append(
      f"  epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}, "
      f"{phase.image_size} px, {step.images:g} images per device: step "
      f"{1e3 * step.seconds:.1f} ms{bound} (compute {1e3 * step.compute:.1f}, all-reduce "
      f"{1e3 * step.exchange:.1f}, {1e3 * hidden:.1f} of it hidden), "
      f"{phase.batch_size / step.seconds:,.0f} images/s, {step.cores:.3g} cores per host, "
      f"{step.memory_gb:.1f} GB per device{over}; epoch {epoch:.1f} s"
    )
  cost = f", ${prediction.cost:,.2f}" if prediction.cost else ""
  lines.insert(
    0,
    f"{prediction.devices} devices: {estimate(prediction.seconds)}, including "
    f"{estimate(prediction.validation)} of validation{cost}",
  )
  return lines


def describe_published(table: Mapping[str, Any]) -> list[str]:
  """Return the published runs as lines of text."""
  lines = [
    f"{'run':<26}{'published':>10}  {'by data sheets':>20}  {'calibrated on 8 machines':>26}"
  ]
  for row in table["runs"]:
    cells = []
    for name in ("by_data_sheets", "by_imagenet18_on_8_machines"):
      cell = row.get(name)
      cells.append(f"{cell['predicted_s']:.0f} s ({cell['error_percent']:+.0f} %)" if cell else "")
    lines.append(f"{row['run']:<26}{row['published_s']:>8.0f} s  {cells[0]:>20}  {cells[1]:>26}")
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


@dataclasses.dataclass(frozen=True)
class Flags:
  """The command's flags; a value of 0 stands for the usual value."""

  devices: flags.FlagHolder
  device: flags.FlagHolder
  step_ms: flags.FlagHolder
  epochs: flags.FlagHolder
  per_host: flags.FlagHolder
  network: flags.FlagHolder
  latency: flags.FlagHolder
  in_flight: flags.FlagHolder
  cores: flags.FlagHolder
  price: flags.FlagHolder
  published: flags.FlagHolder
  out: flags.FlagHolder


def define_flags() -> Flags:
  number = command_line.define_number
  return Flags(
    devices=flags.DEFINE_list("devices", ["8"], "Numbers of devices, separated by commas."),
    device=flags.DEFINE_enum("device", "v100", list(DEVICES), "The kind of device."),
    step_ms=number(
      "step-ms",
      0.0,
      "Milliseconds of a measured step of the first phase on the first number of --devices.",
      least=1e-3,
    ),
    epochs=flags.DEFINE_integer("epochs", 0, "Epochs until the target is reached; 0: all.", 0),
    per_host=flags.DEFINE_integer("per-host", 8, "Devices per host.", 1, _MOST_DEVICES),
    network=number("network", 0.0, "Gbit/s per host; 0: as usual.", least=1e-3, most=1e7),
    latency=number("latency", 0.0, "us between hosts; 0: as usual.", least=1e-3),
    in_flight=flags.DEFINE_integer("in-flight", 1, "All-reduces in flight at once.", 0, 1_000),
    cores=number("cores", 0.0, "Decoding cores per host; 0: enough.", least=0.01, most=1e6),
    price=number("price", 0.0, "USD per device and hour; 0: as usual.", least=1e-6, most=1e6),
    published=flags.DEFINE_bool("published", False, "Compare with published runs."),
    out=flags.DEFINE_string("out", "", "A JSON file for the table of --published."),
  )


def _cluster(given: Flags, plan: Plan, devices: int) -> Cluster:
  fields: dict[str, Any] = dict(
    per_host=given.per_host.value,
    in_flight=given.in_flight.value,
    ready=READY if given.device.value == "h100" else LATE,
    cores=given.cores.value,
  )
  device = DEVICES[given.device.value]
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


def _print_published(out: str) -> None:
  """Print the published runs, and write them to `out` if it names a file."""
  path = expanded(out, "--out")
  if out and (os.path.isdir(path) or not os.path.isdir(path.parent)):
    reason = "it is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}"
    raise UserError(f"--out={out}: {reason}; name a file.")
  table = published_table()
  print("\n".join(describe_published(table)))
  if out:
    text = dump_json(table | {"versions": versions()}, indent=1)
    try:
      write_atomically(path, text + "\n")
    except OSError as error:
      raise UserError(f"--out={out} cannot be written ({error.strerror or error}).") from None


def _plans(config: ConfigDict, given: Flags) -> list[tuple[int, Plan]]:
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


def _predictions(config: ConfigDict, given: Flags) -> Iterator[str]:
  """Yield the predictions of a recipe on each number of devices, as lines of text."""
  plans, device = _plans(config, given), DEVICES[given.device.value]
  first_devices, first_plan = plans[0]
  cluster = _cluster(given, first_plan, first_devices)
  exchange = exchange_of(config)
  yield (
    f"{config.name} on {given.device.value}: {cluster.images_per_s:,.0f} images/s of 224 px per "
    f"device, {'measured' if given.step_ms.value else device.source}"
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
    yield from describe(config, plan, prediction, device)


def run(config: ConfigDict | None, given: Flags) -> None:
  """Print the predictions of a recipe on more devices, or of the published runs."""
  if given.published.value:
    if config is not None:
      raise UserError("--config has no effect beside --published: leave out one of them.")
    names = {field.name for field in dataclasses.fields(given)} - {"published", "out"}
    command_line.without_effect(
      "beside --published", *(getattr(given, name) for name in sorted(names))
    )
    _print_published(given.out.value)
    return
  command_line.without_effect("without --published", given.out)
  if config is None:
    raise UserError("--config=FILE.py names the recipe, or --published compares published runs.")
  checks.check(config)
  effects.check(config, fields_lib.overridden())
  find_devices()  # computing shapes needs JAX's backend; this reports its errors
  print("\n".join(_predictions(config, given)))
