"""All-reduces of the compiled training step, and what runs beside them, without the devices.

    python scripts/count_allreduces.py --config=configs/imagenet_lars.py:81920 --batch=40 \\
        --device=h100 --devices=8,2048 --group_mb=4,16,64 --out=groups.json

`--device=cpu` compiles for as many virtual devices of this machine. To compile for GPUs that are
not there, install the plugin for their CUDA: jax[cuda13] for A100 and H100, jax[cuda12] for V100,
each with its ptxas. The compiler gives a schedule but no times, so the start of an all-reduce is
given as a share of the step's work. A kernel's work is the time for its bytes at the memory's
bandwidth or, if that is longer, for a convolution's products at half the peak, plus 2 us to start.
How cuDNN and NCCL run the schedule shows only on a GPU.
"""

import itertools
import json
import math
import os
import pathlib
import re
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from absl import flags
from described_gpus import GPUS, Gpu, described_mesh
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.data.batch import Batch
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.records.provenance import versions
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry

_LAUNCH_S = 2e-6
_PEAK_REACHED = 0.5


def mesh_of(kind: str, devices: int, per_host: int) -> Mesh:
  """A mesh of this machine's virtual devices for "cpu", else of GPUs that are not there.

  Raises:
    UserError: the devices do not divide over the hosts, or no plugin compiles for CUDA.
  """
  if kind == "cpu":
    return mesh_lib.make_mesh(devices)
  return described_mesh(kind, devices, per_host=per_host)


def config_for(
  config: ConfigDict,
  kind: str,
  *,
  devices: int,
  batch: int = 0,
  image_size: int = 0,
  group_mb: float | None = None,
) -> ConfigDict:
  """The first phase of a config alone, with another batch per device, image size or group size.

  Raises:
    UserError: the config is for a data set in memory.
  """
  config = config.copy_and_resolve_references()
  if config.data.feed != "stream":
    raise UserError(f"{config.name} reads no images from disk: name one of configs/imagenet*.py.")
  size = image_size or (*config.phases.image_size, config.data.image_size)[0]
  whole = batch * devices or (*config.phases.batch_size, config.batch_size)[0]
  config.phases.update({column: () for column in config.phases})
  config.data.image_size = size
  config.batch_size = whole
  config.data.train_images = max(config.data.train_images, whole)
  if config.precision == "auto":
    config.precision = {"cpu": "float32", "v100": "float16"}.get(kind, "bfloat16")
  if group_mb is not None:
    config.allreduce.group_mb = group_mb
  return config


def compile_step(spec: TrainSpec, kind: str, options: dict[str, Any]) -> Any:
  """The training step of the first phase as `feeds.stream.StreamFeed` compiles it."""
  phase = spec.plan.phases[0]
  everywhere, parts = mesh_lib.replicated(spec.mesh), mesh_lib.sharded(spec.mesh)

  def array(shape: tuple[int, ...], dtype: Any, sharding: Any = everywhere) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  size, n = phase.image_size, phase.batch_size
  init = on_mesh(init_state, spec)
  state = jax.eval_shape(init, array((2,), jnp.uint32), array((1, size, size, 3), jnp.uint8))
  sums = jax.eval_shape(MetricSums.zero)
  carry = mesh_lib.abstract(Carry(state, sums), everywhere)
  batch = Batch(
    image=array((n, size, size, 3), jnp.uint8, parts),
    label=array((n,), jnp.int32, parts),
    mask=array((n,), jnp.bool_, parts),
    flip=array((n,), jnp.bool_, parts),
  )
  table = {name: array(column.shape, jnp.float32) for name, column in spec.plan.table.items()}
  function = batch_step(spec)
  platform = "cpu" if kind == "cpu" else "gpu"
  options = spec.compiler_options(platform) | options
  arguments = (carry, batch, table)
  lowered = jax.jit(function, donate_argnums=(0,)).lower(*arguments)
  return lowered.compile(compiler_options=options)


# The compiled program, line by line.

_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)")
_ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+|f8\w+)\[([\d,]*)\]")
_NO_KERNEL = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
_CONVOLUTION = re.compile(
  r'custom_call_target="__cudnn\$conv\w*?(Forward|BackwardInput|BackwardFilter)"'
)


def _arrays(shape: str) -> list[tuple[int, list[int]]]:
  """(bytes per number, sides) of each array of an HLO shape."""
  return [
    (
      1 if kind == "pred" else int(re.sub(r"\D", "", kind)) // 8,
      [int(side) for side in sides.split(",") if side],
    )
    for kind, sides in _ARRAY.findall(shape)
  ]


def _bytes(shape: str) -> int:
  return sum(width * math.prod(sides) for width, sides in _arrays(shape))


def _products(kind: str, result: str, operands: list[str]) -> float:
  """FLOPs of a convolution: two per weight and place of its output."""
  first, second, out = (_arrays(s)[0][1] for s in (*operands[:2], result))
  output, kernel = {
    "Forward": (out, second),
    "BackwardInput": (first, second),
    "BackwardFilter": (second, out),
  }[kind]
  # NHWC: the last side is the channels, which the kernel already counts.
  return 2.0 * math.prod(kernel) * math.prod(output[:-1])


def read_schedule(text: str, gpu: Gpu | None) -> dict[str, Any]:
  """All-reduces of a scheduled program, with what runs between their start and their end.

  Args:
    text: optimised HLO.
    gpu: whose times give each kernel's work; None: every kernel counts 1.
  """
  lines = [
    m.groups() for line in text[text.index("\nENTRY ") :].splitlines() if (m := _LINE.match(line))
  ]
  shapes = {name: shape for name, shape, _, _ in lines}
  work, kernels, convolutions = 0.0, 0, 0
  begun: dict[str, tuple[float, int, int]] = {}
  found = []
  for name, shape, kind, rest in lines:
    operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
    now = (work, kernels, convolutions)
    if kind == "all-reduce-start":
      begun[name] = now
    elif kind in ("all-reduce", "all-reduce-done"):
      start = begun.get(operands[0], now)
      found.append((_bytes(shape), start, now))
    elif kind not in _NO_KERNEL:
      kernels += 1
      convolution = _CONVOLUTION.search(rest)
      convolutions += bool(convolution)
      if gpu is None:
        work += 1
        continue
      inputs = [shapes.get(operand, "") for operand in operands]
      seconds = (_bytes(shape) + sum(map(_bytes, inputs))) / gpu.bandwidth
      if convolution:
        flops = _products(convolution[1], shape, inputs)
        seconds = max(seconds, flops / (_PEAK_REACHED * gpu.peak))
      work += seconds + _LAUNCH_S
  rows = [
    {
      "megabytes": round(size / 1e6, 4),
      "start": round(start[0] / work, 4),
      "done": round(done[0] / work, 4),
      "kernels_between": done[1] - start[1],
      "convolutions_between": done[2] - start[2],
    }
    for size, start, done in found
  ]
  return {"kernels": kernels, "convolutions": convolutions, "all_reduces": rows}


def report(spec: TrainSpec, program: Any, kind: str, options: dict[str, Any]) -> dict[str, Any]:
  """Returns the figures of one program."""
  gpu = GPUS.get(kind)
  memory = program.memory_analysis()
  config, phase = spec.config, spec.plan.phases[0]
  schedule = read_schedule(program.as_text(), gpu)
  rows = schedule["all_reduces"]
  return {
    "config": config.name,
    "device": gpu.name if gpu else "CPU",
    "kind": kind,
    "devices": spec.devices,
    "batch_a_device": phase.batch_size // spec.devices,
    "image_size": phase.image_size,
    "precision": config.precision,
    "wire": config.allreduce.dtype,
    "group_mb": config.allreduce.group_mb,
    "options": sorted(f"{name}={value}" for name, value in options.items()),
    "count": len(rows),
    "megabytes": round(sum(row["megabytes"] for row in rows), 3),
    "with_kernels_beside": sum(row["kernels_between"] > 0 for row in rows),
    "arguments_gb": round(memory.argument_size_in_bytes / 1e9, 3),
    "temporary_gb": round(memory.temp_size_in_bytes / 1e9, 3),
  } | schedule


def line_of(row: dict[str, Any]) -> str:
  """One program in one line."""
  sizes = [each["megabytes"] for each in row["all_reduces"]]
  between = [each["kernels_between"] for each in row["all_reduces"]]
  span = f"{min(sizes):.3g} to {max(sizes):.3g}" if sizes else "no"
  return (
    f"{row['devices']} x {row['kind']}, group_mb {row['group_mb']:g}: {row['count']} all-reduces "
    f"of {span} MB, {row['megabytes']:.2f} MB in all; kernels beside each: "
    f"{' '.join(map(str, between)) or '-'}; {row['kernels']} kernels a step; "
    f"{row['arguments_gb'] + row['temporary_gb']:.2f} GB a device"
  )


def keep(path: pathlib.Path, row: dict[str, Any]) -> None:
  """Writes a row to a JSON file, in place of any earlier row of the same program."""

  def key(row: dict[str, Any]) -> tuple:
    names = ("config", "kind", "devices", "batch_a_device", "image_size", "wire", "group_mb")
    return *(row[name] for name in names), tuple(row["options"])

  held = json.loads(path.read_text()) if path.exists() else {"programs": []}
  others = [each for each in held["programs"] if key(each) != key(row)]
  what = (
    "scripts/count_allreduces.py: all-reduces of the compiled training step. start and done are "
    "shares of the step's work before each, by the bytes and products of the kernels in the order "
    "in which they run; no device was there and no time is measured."
  )
  report = held | {"what": what, "programs": sorted([*others, row], key=key)}
  path.write_text(json.dumps(report, indent=1) + "\n")


def numbers(name: str, texts: list[str], kind: type) -> list[Any]:
  """The numbers of a flag: of kind int from 1 on, of kind float from 0 on."""
  try:
    values = [kind(text) for text in texts]
  except ValueError:
    values = [-1]
  if min(values, default=0) < (kind is int):
    raise UserError(f"--{name}={','.join(texts)}: give numbers, with commas between them.")
  return values


def option_of(text: str) -> tuple[str, Any]:
  """NAME=VALUE as the compiler takes it, with "true" and "false" as booleans."""
  name, _, value = text.partition("=")
  return name, {"true": True, "false": False}.get(value.lower(), value)


def main(arguments: list[str]) -> None:
  command_line.nothing_left(arguments)
  config, kind = _CONFIG.value, _DEVICE.value
  command_line.required("config", config and "given")
  options = dict(map(option_of, _OPTION.value))
  counts = numbers("devices", _DEVICES.value, int)
  groups = numbers("group_mb", _GROUPS.value, float) or [None]
  if kind == "cpu":
    jax.config.update("jax_num_cpu_devices", max(counts))
  for devices, group_mb in itertools.product(counts, groups):
    own = config_for(
      config,
      kind,
      devices=devices,
      batch=_BATCH.value,
      image_size=_IMAGE_SIZE.value,
      group_mb=group_mb,
    )
    spec = make_train_spec(
      own, make_plan(own, devices=devices), mesh_of(kind, devices, _PER_HOST.value)
    )
    row = report(spec, compile_step(spec, kind, options), kind, options)
    print(line_of(row), flush=True)
    if _OUT.value:
      keep(pathlib.Path(_OUT.value), row | {"versions": versions()})


if __name__ == "__main__":
  _CONFIG = command_line.define_config_flag()
  _DEVICE = flags.DEFINE_enum("device", "cpu", ["cpu", *GPUS], "To compile for.")
  _DEVICES = flags.DEFINE_list("devices", ["8"], "How many of them, one number or several.")
  _PER_HOST = flags.DEFINE_integer("per_host", 8, "Most devices of a host.", lower_bound=1)
  _BATCH = flags.DEFINE_integer("batch", 0, "Images a device; 0: the config's, divided by them.", 0)
  _IMAGE_SIZE = flags.DEFINE_integer("image_size", 0, "In pixels; 0: of the first phase.", 0)
  _GROUPS = flags.DEFINE_list("group_mb", [], "Values of allreduce.group_mb; none: the config's.")
  _OPTION = flags.DEFINE_multi_string(
    "option", [], "NAME=VALUE for the compiler, beside the run's."
  )
  _OUT = flags.DEFINE_string("out", "", "A JSON file for the figures; of others it keeps them.")
  command_line.run(main)
