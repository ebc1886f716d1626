"""Prints the plan of a config; no data is read and nothing is compiled for it.

python -m jaxspeed.plan --config=configs/cifar10_resnet9.py:ema
python -m jaxspeed.plan --config=configs/imagenet18.py:8 --csv
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import effects, fields, output
from jaxspeed.config import flags as command_line
from jaxspeed.devices.mesh import find_devices
from jaxspeed.errors import UserError
from jaxspeed.models.make import make_model
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Plan
from jaxspeed.scaling.allreduce_time import exchange_of
from jaxspeed.scaling.hardware import Cluster
from jaxspeed.scaling.predict import measured_rate, step_of


def describe(config: ConfigDict, plan: Plan) -> str:
  """The plan as lines of text: phases, rates at their turning points, shapes, programs."""
  rate = plan.table["learning_rate"]
  turns = sorted({0, int(np.argmax(rate)), plan.total_steps - 1})
  lines = [f"{config.name}: {plan.total_steps} steps, {plan.examples(plan.total_steps)} images"]
  for phase in plan.phases:
    lines.append(
      f"epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}: "
      f"{phase.steps_per_epoch} steps an epoch, batch {phase.batch_size}, "
      f"{phase.image_size} x {phase.image_size} pixels"
    )
  lines += [f"rate at step {step + 1}: {rate[step]:.6g}" for step in turns]
  modes = " -> ".join(dict.fromkeys(phase.eval_mode for phase in plan.phases))
  lines.append(f"evaluation: {plan.eval_images} images, mode {modes}")
  lines += [f"program: {name}" for name in plan.programs()]
  return "\n".join(lines)


def csv_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """A header and a line for every step: epochs from 0, steps in them from 1.

  The batch counts images that the step learns from, so that it is smaller in the short last step of
  an epoch. Numbers have all the digits that tell them from their neighbours.
  """
  yield "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale"
  rate = plan.table["learning_rate"].tolist()
  momentum = plan.table.get("momentum", np.full(plan.total_steps, config.optimizer.momentum))
  seen = 0
  for step, (r, m) in enumerate(zip(rate, momentum.tolist(), strict=True)):
    phase, (epoch, within) = plan.phase_of(step), plan.epoch_of(step)
    before, seen = seen, plan.examples(step + 1)
    yield f"{epoch},{within + 1},{phase.image_size},{seen - before},{r!r},{m!r},{phase.min_scale!r}"


def exchange_lines(config: ConfigDict, plan: Plan) -> Iterator[str]:
  """What each device sends in a step, and how long that takes where the flags say over what."""
  exchange = exchange_of(config)
  groups = exchange.groups(config.allreduce.group_mb)[1:]
  how = f"{len(groups)} all-reduce{'s' if len(groups) > 1 else ''}"
  yield (
    f"gradients: {sum(exchange.tensors) / 1e6:.4g} MB a step in {how}, and "
    f"{exchange.rest / 1e6:.2g} MB of statistics in one"
  )
  devices, bandwidth, step_ms = _DEVICES.value, _BANDWIDTH.value, _STEP_MS.value
  if not bandwidth:
    return
  first = plan.phases[0]
  cluster = Cluster(
    images_per_s=measured_rate(step_ms, first.batch_size / devices, first.image_size),
    per_host=1,
    network_gb_s=bandwidth,
    local_gb_s=bandwidth,
    hop_s=_LATENCY.value / 1e6,
  )
  for phase in plan.phases:
    step = step_of(phase, devices, cluster, exchange, group_mb=config.allreduce.group_mb)
    epochs = f"epochs {phase.first_epoch + 1}-{phase.first_epoch + phase.epochs}"
    yield (
      f"{epochs} on {devices} devices: the "
      f"all-reduces take {1e3 * step.exchange:.3g} ms beside {1e3 * step.compute:.3g} ms of "
      f"compute, {step.exposed / step.seconds:.1%} of the step is spent waiting for them"
    )


def parameter_table(config: ConfigDict) -> str:
  """Name, shape and size of each parameter, as text."""
  from clu import parameter_overview

  config = config.copy_and_resolve_references()
  config.precision = "float32"
  model, side = make_model(config), config.data.image_size
  shapes = jax.eval_shape(
    lambda: model.init(jax.random.key(0), jnp.zeros((1, side, side, 3)), train=False)
  )
  return parameter_overview.get_parameter_overview(shapes["params"], include_stats=False)


def _main(arguments: list[str]) -> None:
  command_line.nothing_left(arguments)
  config = _FLAG.value
  if config is None:
    raise UserError("--config=FILE.py names the recipe whose plan is wanted.")
  if _BANDWIDTH.value and not (_STEP_MS.value and _DEVICES.value > 1):
    raise UserError("--bandwidth needs --devices=N, 2 or more, and --step-ms=MILLISECONDS.")
  for note in effects.check(config, fields.overridden()):
    output.say(note)
  find_devices()  # shapes are worked out without one, but not without JAX's backend
  plan = make_plan(config, devices=_DEVICES.value)
  lines = (
    csv_lines(config, plan)
    if _CSV.value
    else [describe(config, plan), *exchange_lines(config, plan)]
  )
  if _PARAMETERS.value:
    lines = [*lines, parameter_table(config)]
  print("\n".join(lines))


if __name__ == "__main__":
  _FLAG = command_line.define_config_flag()
  _CSV = flags.DEFINE_bool("csv", False, "Prints every step of the plan as comma-separated values.")
  _PARAMETERS = flags.DEFINE_bool("parameters", False, "Adds a table of the net's parameters.")
  _DEVICES = flags.DEFINE_integer("devices", 1, "Devices that share a batch.", 1)
  _BANDWIDTH = flags.DEFINE_float("bandwidth", 0.0, "GB/s from device to device, to time.", 0.0)
  _LATENCY = flags.DEFINE_float("latency", 7.0, "Microseconds from device to device.", 0.0)
  _STEP_MS = flags.DEFINE_float("step-ms", 0.0, "Of the first phase, without the exchange.", 0.0)
  command_line.run(_main)
