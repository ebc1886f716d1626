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
import os
import pathlib
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import benchmarking
import jax
import kernels
import step_program
from absl import flags
from described_gpus import GPUS, Gpu
from ml_collections import ConfigDict
from step_program import Step, StepProgram

from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.records.provenance import versions

_LAUNCH_S = 2e-6
_PEAK_REACHED = 0.5
_WHAT = (
  "scripts/count_allreduces.py: all-reduces of the compiled training step. start and done are "
  "shares of the step's work before each, by the bytes and products of the kernels in the order "
  "in which they run; no device was there and no time is measured."
)


def step_of(
  config: ConfigDict,
  kind: str,
  *,
  devices: int,
  per_host: int = 8,
  batch: int = 0,
  image_size: int = 0,
  group_mb: float | None = None,
) -> Step:
  """A step on this machine's virtual devices for "cpu", else on GPUs that are not there.

  Raises:
    UserError: the config is for a data set in memory, or as `step_program.step_of`.
  """
  config = config.copy_and_resolve_references()
  if config.data.feed != "stream":
    raise UserError(f"{config.name} reads no images from disk: name one of configs/imagenet*.py.")
  if group_mb is not None:
    config.allreduce.group_mb = group_mb
  gpu = "" if kind == "cpu" else kind
  sizes = {"image_size": image_size, "batch_size": batch}
  return step_program.step_of(config, gpu, devices=devices, per_host=per_host, **sizes)


def work_of(kernel: kernels.Kernel, gpu: Gpu | None) -> float:
  """Seconds of a kernel by its bytes and products; without a GPU every kernel counts 1."""
  if gpu is None:
    return 1.0
  return max(kernel.moved / gpu.bandwidth, kernel.flops / (_PEAK_REACHED * gpu.peak)) + _LAUNCH_S


def read_schedule(text: str, gpu: Gpu | None) -> dict[str, Any]:
  """All-reduces of a scheduled program, with what runs between their start and their end.

  Args:
    text: optimised HLO.
    gpu: whose times give each kernel's work; None: every kernel counts 1.
  """
  work, count, convolutions = 0.0, 0, 0
  begun: dict[str, tuple[float, int, int]] = {}
  found = []
  for kernel in kernels.schedule(text):
    now = (work, count, convolutions)
    if kernel.kind == "all-reduce-start":
      begun[kernel.name] = now
    elif kernel.kind in ("all-reduce", "all-reduce-done"):
      start = begun.get(kernel.operands[0], now)
      found.append((kernels.bytes_of(kernel.shape), start, now))
    else:
      count += 1
      convolutions += kernel.flops > 0
      work += work_of(kernel, gpu)
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
  return {"kernels": count, "convolutions": convolutions, "all_reduces": rows}


def report(step: Step, program: StepProgram, kind: str, options: list[str]) -> dict[str, Any]:
  """Returns the figures of one program."""
  memory, allreduce = program.compiled.memory_analysis(), step.config.allreduce
  schedule = read_schedule(program.compiled.as_text(), step.gpu)
  rows, described = schedule["all_reduces"], step.describe()
  batch_a_device = described.pop("batch_size")
  return {
    **described,
    "device": step.gpu.name if step.gpu else "CPU",
    "kind": kind,
    "batch_a_device": batch_a_device,
    "wire": allreduce.dtype,
    "group_mb": allreduce.group_mb,
    "options": sorted(options),
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


def main() -> None:
  config_flag = command_line.define_config_flag()
  device = flags.DEFINE_enum("device", "cpu", ["cpu", *GPUS], "To compile for.")
  devices = flags.DEFINE_list("devices", ["8"], "How many of them, one number or several.")
  per_host = flags.DEFINE_integer("per_host", 8, "Most devices of a host.", lower_bound=1)
  batch = flags.DEFINE_integer("batch", 0, "Images a device; 0: the config's, divided by them.", 0)
  image_size = flags.DEFINE_integer("image_size", 0, "In pixels; 0: of the first phase.", 0)
  groups = flags.DEFINE_list("group_mb", [], "Values of allreduce.group_mb; none: the config's.")
  options = flags.DEFINE_multi_string("option", [], "NAME=VALUE of XLA, beside the run's.")
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    config, kind = config_flag.value, device.value
    command_line.required("config", config and "given")
    counts = benchmarking.numbers("devices", devices.value, int)
    sizes = {"batch": batch.value, "image_size": image_size.value, "per_host": per_host.value}
    if kind == "cpu":
      jax.config.update("jax_num_cpu_devices", max(counts))
    rows: list[dict[str, Any]] = []
    for count, group_mb in itertools.product(
      counts, benchmarking.numbers("group_mb", groups.value, float) or [None]
    ):
      step = step_of(config, kind, devices=count, group_mb=group_mb, **sizes)
      program = step_program.compile_step(step.spec(*options.value), step.phase)
      rows.append(report(step, program, kind, options.value))
      print(line_of(rows[-1]), flush=True)
      found = {"what": _WHAT, "versions": versions(), "programs": rows}
      benchmarking.write_report(out.value, found)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
