"""Training steps compiled for TPUs that are not there: their memory, cycles and all-reduces.

    pip install 'jaxspeed[tpu]'
    python scripts/tpu_programs.py --out=results/tpu_programs.json

Nothing runs: libtpu compiles for a v5e from its description. Cycles are the estimates that its
compiler notes beside operations. Some have none, such as gathers and copies between memories: they
are counted, and what they take is not in the sums. Several minutes a program.
"""

import collections
import itertools
import os
import re
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no question to Google's cloud where this is

import benchmarking
import kernels
import numpy as np
import step_program
from jax.experimental import topologies
from jax.sharding import Mesh
from step_program import Step, StepProgram

from jaxspeed import recipe
from jaxspeed.config import flags as command_line
from jaxspeed.devices import allreduce
from jaxspeed.devices.mesh import AXIS
from jaxspeed.errors import UserError
from jaxspeed.scaling.hardware import DEVICES

# A recipe, the chips of a slice, and the sizes in which it differs from its first phase.
PROGRAMS: tuple[tuple[str, int, dict[str, int]], ...] = (
  ("cifar10_airbench:94", 1, {}),
  ("imagenet18:1", 8, {"image_size": 224, "batch_size": 128}),
  ("imagenet18:1", 256, {"image_size": 224, "batch_size": 128}),
)
# The shape of a slice of v5e by its number of chips.
_SLICES = {1: "1x1", 8: "2x4", 256: "16x16"}
_CYCLES = re.compile(r'^\s+(?:ROOT )?%([\w.\-]+) = .*"estimated_cycles":"(\d+)"', re.MULTILINE)
# The module of an operation and the one inside it; the name ends in a primitive.
_MODULE = re.compile(r"jvp\(\w+\)+/(\w+)(?:/(\w+))?/")
_WHAT = (
  "scripts/tpu_programs.py: a training step compiled for TPU v5e by libtpu, without a TPU. Nothing "
  "ran and no time is measured; cycles are the compiler's estimates, of one chip and one step, for "
  "the operations that have one."
)


def described_mesh(devices: int) -> Mesh:
  """A slice of v5e that is not there.

  Raises:
    UserError: libtpu is not installed.
  """
  name = f"v5e:{_SLICES[devices]}"
  more = {"chips_per_host_bounds": (1, 1, 1)} if devices == 1 else {}
  try:
    slice_of = topologies.get_topology_desc(platform="tpu", topology_name=name, **more)
  except (RuntimeError, ValueError) as error:
    reason = str(error).splitlines()[0][:200]
    raise UserError(f"{name} cannot be described ({reason}): pip install libtpu.") from error
  return Mesh(np.array(slice_of.devices), (AXIS,))


def count(program: StepProgram) -> dict[str, Any]:
  """Memory, estimated cycles by class and by layer, and all-reduces of a program's step."""
  text, memory = program.compiled.as_text(), program.compiled.memory_analysis()
  estimates = {name: int(cycles) for name, cycles in _CYCLES.findall(text)}
  found = kernels.read(text, trips=program.steps)
  classes: collections.Counter[str] = collections.Counter()
  layers: collections.Counter[str] = collections.Counter()
  for kernel in found:
    cycles = estimates.get(kernel.name, 0) * kernel.runs / program.steps
    module = _MODULE.search(kernel.op_name)
    classes[kernel.purpose] += cycles
    layers["/".join(filter(None, module.groups())) if module else "no layer named"] += cycles
  reduced = allreduce.count(text)
  held = step_program.held_bytes(program.compiled) + memory.generated_code_size_in_bytes
  gigabytes = held / 1e9
  return {
    "gigabytes": round(gigabytes, 3),
    "fits": gigabytes < DEVICES["tpu_v5e"].memory_gb,
    "megacycles": _millions(sum(classes.values())),
    "operations": len(found),
    "operations_without_estimate": sum(kernel.name not in estimates for kernel in found),
    "megacycles_by_class": {name: _millions(cycles) for name, cycles in classes.most_common()},
    "megacycles_by_layer": {name: _millions(cycles) for name, cycles in layers.most_common()},
    "all_reduces": len(reduced),
    "all_reduced_megabytes": round(sum(reduced) / 1e6, 3),
  }


def _millions(cycles: float) -> float:
  return round(cycles / 1e6, 3)


def compile_one(name: str, devices: int, sizes: dict[str, int], layers: str) -> dict[str, Any]:
  """The figures of a recipe's step on a slice, with its layers in one form."""
  config = step_program.resolve(recipe(name, **{"model.layers": layers}), "bfloat16")
  phase = step_program.choose_phase(config, devices=devices, **sizes)
  spec = Step(config, described_mesh(devices), phase, None).spec()
  # A loop has no known number of steps in the text of a program.
  steps = 1 if config.data.feed == "stream" else phase.steps_per_epoch
  return {
    "config": config.name,
    "device": spec.mesh.devices.flat[0].device_kind,
    "devices": devices,
    "image_size": phase.image_size,
    "batch_size": phase.batch_size // devices,
    "precision": config.precision,
    "layers": spec.model.layers,
    **count(step_program.compile_step(spec, phase, steps=steps)),
  }


def main() -> None:
  out = benchmarking.define_out()

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    report: dict[str, Any] = {"what": _WHAT, "software": benchmarking.environment(), "programs": []}
    for program, layers in itertools.product(PROGRAMS, ("auto", "fused")):
      row = compile_one(*program, layers)
      print(
        "{config}, {devices} x {device}, {layers} layers: {megacycles} M cycles, {gigabytes} GB, "
        "{all_reduces} all-reduces of {all_reduced_megabytes} MB".format(**row),
        flush=True,
      )
      report["programs"].append(row)
      benchmarking.write_report(out.value, report)

  command_line.run(run)


if __name__ == "__main__":
  main()
