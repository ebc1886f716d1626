"""What a recipe takes on more devices, on paper: step, epoch, run, cost, input, memory.

  python -m jaxspeed.scaling --config=configs/imagenet_lars.py:81920 --devices=8,128,2048 \
      --device=v100
  python -m jaxspeed.scaling --published      # the same arithmetic beside eight published runs

A step is compute and what of the gradient's all-reduces the backward pass does not hide:

  compute     launches + images a device * (side / 224)^2 / images_per_s, from a published rate of
              ResNet-50, or from a measured step: --step-ms is that of the first phase on the first
              number of --devices, without the exchange
  exchange    groups of layers (`allreduce.make_groups`), each begun where it stands in the
              compiled step (READY, LATE), one after the other; a ring or a hierarchy, whichever is
              shorter
  input       decoded images a second over what a core decodes; with --cores it bounds the step
  validation  a forward pass, a third of a training step: the backward pass has two products for
              each of its own

Not in it: what differs from step to step, waiting for the slowest of many hosts, loading files,
checkpoints, compilation. So it is rather a bound from below; results/scaling.json says by how much
against published runs.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import effects
from jaxspeed.config import fields as fields_lib
from jaxspeed.config import flags as command_line
from jaxspeed.devices.mesh import find_devices
from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.records.provenance import versions
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.hardware import DEVICES, LATE, READY, Cluster, Device, cluster_of
from jaxspeed.scaling.predict import Prediction, measured_rate, predict
from jaxspeed.scaling.published import published_table


def describe(config: ConfigDict, plan: Plan, prediction: Prediction, device: Device) -> list[str]:
  """A prediction as lines of text."""
  lines = []
  for phase, step, epoch in zip(plan.phases, prediction.steps, prediction.epochs, strict=True):
    hidden = step.exchange - step.exposed
    bound = ", bound by its input" if step.input_bound else ""
    over = " (more than it has)" if step.memory_gb > device.memory_gb else ""
    lines.append(
      f"  epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}, "
      f"{phase.image_size} px, {step.images:g} a device: step "
      f"{1e3 * step.seconds:.1f} ms{bound} (compute {1e3 * step.compute:.1f}, exchange "
      f"{1e3 * step.exchange:.1f} of which "
      f"{1e3 * hidden:.1f} hidden), {phase.batch_size / step.seconds:,.0f} images/s, "
      f"{step.cores:.3g} cores a host, {step.memory_gb:.1f} GB a device{over}; epoch {epoch:.1f} s"
    )
  cost = f", ${prediction.cost:,.2f}" if prediction.cost else ""
  lines.insert(
    0,
    f"{prediction.devices} devices: {_duration(prediction.seconds)}, of which validation "
    f"{_duration(prediction.validation)}{cost}",
  )
  return lines


def _duration(seconds: float) -> str:
  if seconds < 120:
    return f"{seconds:.1f} s"
  return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def describe_published(table: Mapping[str, Any]) -> list[str]:
  """The published runs as lines of text."""
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


def _device_counts(flag: flags.FlagHolder) -> list[int]:
  if all(re.fullmatch(" *0*[1-9][0-9]{0,8} *", text) for text in flag.value) and flag.value:
    return [int(text) for text in flag.value]
  raise UserError(f"--devices={','.join(flag.value)}: give numbers, as in --devices=8,128,2048.")


def _cluster(plan: Plan, devices: int) -> Cluster:
  fields: dict[str, Any] = dict(
    per_host=_PER_HOST.value,
    in_flight=_IN_FLIGHT.value,
    ready=READY if _DEVICE.value == "h100" else LATE,
    cores=_CORES.value,
  )
  device = DEVICES[_DEVICE.value]
  if _STEP_MS.value:
    phase = plan.phases[0]
    fields["images_per_s"] = measured_rate(
      _STEP_MS.value, phase.batch_size / devices, phase.image_size
    )
  if _NETWORK.value:
    fields["network_gb_s"] = device.share * _NETWORK.value / 8
  if _LATENCY.value:
    fields["hop_s"] = _LATENCY.value * 1e-6
  if _PRICE.value:
    fields["price"] = _PRICE.value
  return cluster_of(device, **fields)


def _main(arguments: list[str]) -> None:
  command_line.nothing_left(arguments)
  if _PUBLISHED.value:
    table = published_table()
    print("\n".join(describe_published(table)))
    if _OUT.value:
      text = json.dumps(table | {"versions": versions()}, indent=1)
      write_atomically(pathlib.Path(_OUT.value), text + "\n")
    return
  config = _CONFIG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe, or --published compares published runs.")
  effects.check(config, fields_lib.overridden())
  find_devices()  # shapes are worked out without one, but not without JAX's backend
  counts, device = _device_counts(_DEVICES), DEVICES[_DEVICE.value]
  cluster = _cluster(make_plan(config, devices=counts[0]), counts[0])
  exchange = exchange_of(config)
  print(
    f"{config.name} on {_DEVICE.value}: {cluster.images_per_s:,.0f} images/s of 224 px a device, "
    f"{'measured' if _STEP_MS.value else device.source}"
  )
  groups = exchange.groups(config.allreduce.group_mb)
  print(
    f"a step sends {sum(size for _, size in groups) / 1e6:.1f} MB in {len(groups)} all-reduces; "
    f"{cluster.network_gb_s:.3g} GB/s a host, {cluster.local_gb_s:g} GB/s inside"
  )
  for devices in counts:
    plan = make_plan(config, devices=devices)
    prediction = predict(config, plan, cluster, exchange, devices=devices, epochs=_EPOCHS.value)
    print("\n".join(describe(config, plan, prediction, device)))


if __name__ == "__main__":
  _CONFIG = command_line.define_config_flag()
  _DEVICES = flags.DEFINE_list("devices", ["8"], "How many devices, one number or several.")
  _DEVICE = flags.DEFINE_enum("device", "v100", list(DEVICES), "Their kind.")
  _STEP_MS = flags.DEFINE_float(
    "step-ms", 0.0, "A measured step of the first phase on the first number of --devices.", 0.0
  )
  _EPOCHS = flags.DEFINE_integer("epochs", 0, "At which the target is reached; 0: all.", 0)
  _PER_HOST = flags.DEFINE_integer("per-host", 8, "Devices of a host.", 1)
  _NETWORK = flags.DEFINE_float("network", 0.0, "A host's line in Gbit/s; 0: as usual.", 0.0)
  _LATENCY = flags.DEFINE_float("latency", 0.0, "From host to host in us; 0: as usual.", 0.0)
  _IN_FLIGHT = flags.DEFINE_integer("in-flight", 1, "All-reduces under way at a time.", 0)
  _CORES = flags.DEFINE_float("cores", 0.0, "Of a host that decode; 0: enough.", 0.0)
  _PRICE = flags.DEFINE_float("price", 0.0, "USD a device and hour; 0: as usual.", 0.0)
  _PUBLISHED = flags.DEFINE_bool("published", False, "Compares with published runs.")
  _OUT = flags.DEFINE_string("out", "", "With --published, a JSON file for the table.")
  command_line.run(_main)
