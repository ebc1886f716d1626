"""Where a training step's time goes: its kernels by class, and the heaviest ones.

    python scripts/profile_step.py --config=configs/cifar10.py --steps=20 --out=profile.json
    python scripts/profile_step.py --config=configs/imagenet18.py:1 --for=h100 \\
        --image_size=224 --batch_size=256 --out=h100.json

The first command runs steps on the devices of this machine, on noise, under JAX's profiler. Classes
are those of `kernels.CLASSES`; "gaps" is the time in which no kernel ran. A GPU uses no command
buffers while it is profiled, so gaps are longer than in a run; kernels are not.

With --for nothing runs: the step is compiled for GPUs that are not there (which needs JAX's CUDA
plugin, but no GPU), and each class lists its kernels and the bytes that they read and write.
Nothing is autotuned or timed; bytes over the memory's bandwidth are the least time of kernels that
no cache helps.

A data set in memory trains as in `jaxspeed.train`: on a GPU in one program of --steps steps, each
of which is counted; on a CPU step by step, as a stream does everywhere.
"""

import collections
import dataclasses
import glob
import json
import pathlib
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import described_gpus
import jax
import jax.numpy as jnp
import kernels as kernels_lib
import numpy as np
from absl import flags
from kernels import Kernel
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.data.batch import Batch, Order, seed_key
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, StepKind
from jaxspeed.records import provenance
from jaxspeed.steps.init import init_state
from jaxspeed.steps.losses import MetricSums
from jaxspeed.steps.programs import batch_step, on_mesh, resident_epoch, resident_step
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import Carry

_CONFIG = command_line.define_config_flag()
_FOR = flags.DEFINE_enum(
  "for", None, sorted(described_gpus.GPUS), "Compile for this GPU instead of running."
)
_DEVICES = flags.DEFINE_integer(
  "devices", 0, "How many; 0: all that are there, or one with --for.", lower_bound=0
)
_IMAGE_SIZE = flags.DEFINE_integer(
  "image_size", 0, "Side in pixels; 0: of the first phase.", lower_bound=0
)
_BATCH_SIZE = flags.DEFINE_integer(
  "batch_size", 0, "Images a device; 0: the phase's batch, divided by the devices.", lower_bound=0
)
_STEPS = flags.DEFINE_integer("steps", 5, "Steps that are profiled.", lower_bound=1)
_TOP = flags.DEFINE_integer("top", 15, "Heaviest kernels that are listed.", lower_bound=0)
_OUT = flags.DEFINE_string("out", "", "A JSON file for the figures.")


@dataclasses.dataclass(frozen=True)
class StepProgram:
  """A compiled program of training steps.

  Attributes:
    compiled: takes a carry and what `arguments` describe, and returns the next carry and losses.
    arguments: shapes and shardings, the carry first.
    steps: number in one call.
  """

  compiled: Any
  arguments: tuple[Any, ...]
  steps: int


# Compiling the program


def choose_phase(config: ConfigDict, *, devices: int, image_size: int, batch_size: int) -> Phase:
  """The phase to profile: the first of this image size, or else the first phase at this size.

  Args:
    config: resolved.
    devices: number that share its batch.
    image_size: side in pixels; 0: that of the first phase.
    batch_size: images per device; 0: the phase's.

  Raises:
    UserError: the batch does not divide over the devices, or over the micro-batches of a step.
  """
  phases = make_plan(config).phases
  phase = next((p for p in phases if p.image_size == image_size), phases[0])
  if not batch_size and phase.batch_size % devices:
    raise UserError(
      f"{config.name}: the batch of {phase.batch_size} does not divide over {devices} devices; "
      f"give the images a device with --batch_size."
    )
  local = batch_size or phase.batch_size // devices
  if local % config.accumulate:
    raise UserError(
      f"--batch_size={local}: it must be a multiple of config.accumulate={config.accumulate}."
    )
  return dataclasses.replace(
    phase, image_size=image_size or phase.image_size, batch_size=local * devices
  )


def usual_kind(spec: TrainSpec) -> StepKind:
  """The kind of most steps of a run."""
  plan = spec.plan
  kinds = collections.Counter(plan.kind_of(number) for number in range(plan.total_steps))
  return kinds.most_common(1)[0][0]


def compile_step(spec: TrainSpec, phase: Phase, *, platform: str, steps: int) -> StepProgram:
  """The training program that a run would use for a phase, as an epoch of `steps` steps.

  Args:
    spec: with the mesh of the devices to compile for.
    phase: its image size and batch size.
    platform: "cpu" or "gpu".
    steps: per call, for a data set in memory on a GPU; otherwise a call is one step.
  """
  everywhere, parts = mesh_lib.replicated(spec.mesh), mesh_lib.sharded(spec.mesh)
  size, n = phase.image_size, spec.plan.train_images
  streams, kind = spec.config.data.feed == "stream", usual_kind(spec)

  def array(shape: tuple[int, ...], dtype: Any, sharding: Any = everywhere) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def batch(n: int, sharding: Any) -> Batch:
    return Batch(
      image=array((n, size, size, 3), jnp.uint8, sharding),
      label=array((n,), jnp.int32, sharding),
      mask=array((n,), jnp.bool_, sharding),
    )

  init = on_mesh(init_state, spec)
  image = array((1, size, size, 3), jnp.uint8)
  data = batch(phase.batch_size, parts) if streams else batch(n, everywhere)
  state = jax.eval_shape(init, array((2,), jnp.uint32), image if streams else data.image)
  carry = mesh_lib.abstract(Carry(state, jax.eval_shape(MetricSums.zero)), everywhere)
  table = {name: array(column.shape, jnp.float32) for name, column in spec.plan.table.items()}
  if streams:
    steps = 1
    function = batch_step(spec, kind)
    arguments = (carry, data.replace(flip=data.mask), table)
  else:
    order = Order(array((n,), jnp.int32), array((n,), jnp.bool_))
    arguments = (carry, data, order, table)
    if platform == "cpu":
      steps = 1
      function = on_mesh(resident_step, spec, phase=phase, kind=kind)
    else:
      segments = ((steps, (kind,)),)
      function = on_mesh(resident_epoch, spec, phase=phase, segments=segments)
  options = spec.compiler_options(platform)
  lowered = jax.jit(function, donate_argnums=(0,)).lower(*arguments)
  return StepProgram(lowered.compile(compiler_options=options), arguments, steps)


# Counts from the compiler


def count(program: StepProgram, gpu: described_gpus.Gpu, *, top: int) -> dict[str, Any]:
  """Kernels and bytes of one step by class, without running the program."""
  text = program.compiled.as_text()
  found = kernels_lib.read(text)
  memory = program.compiled.memory_analysis()
  steps = program.steps

  def sums(group: Iterable[Kernel]) -> dict[str, float]:
    group = list(group)
    return {
      "kernels": sum(k.runs for k in group) / steps,
      "gigabytes": sum(k.runs * k.moved for k in group) / steps / 1e9,
    }

  total = sums(found)
  heaviest = sorted(found, key=lambda k: k.runs * k.moved, reverse=True)[:top]
  return total | {
    "milliseconds_at_bandwidth": total["gigabytes"] * 1e12 / gpu.bandwidth,
    "scatters": kernels_lib.scatters(text),
    "temporary_gigabytes": memory.temp_size_in_bytes / 1e9,
    "argument_gigabytes": memory.argument_size_in_bytes / 1e9,
    "classes": {name: sums(group) for name, group in kernels_lib.by_class(found).items()},
    "heaviest": [
      _entry(k) | {"gigabytes": k.runs * k.moved / steps / 1e9, "runs": k.runs / steps}
      for k in heaviest
    ],
  }


def _entry(kernel: Kernel) -> dict[str, Any]:
  return {
    "name": kernel.name,
    "kind": kernel.kind,
    "class": kernel.purpose,
    "place": kernels_lib.place_of(kernel),
    "result": kernels_lib.describe_shape(kernel.shape),
  }


# Times from a device


def noise(program: StepProgram, spec: TrainSpec) -> tuple[Any, ...]:
  """Arguments of a program: a first state, and noise in place of images."""
  rng = np.random.default_rng(0)
  _, data, *order, _ = program.arguments
  image = mesh_lib.replicate(np.zeros(data.image.shape, np.uint8), spec.mesh)
  key = mesh_lib.replicate(np.asarray(seed_key(0)), spec.mesh)
  first = image[:1] if spec.config.data.feed == "stream" else image
  state = jax.jit(on_mesh(init_state, spec))(key, first)

  def fill(like: Any, high: int) -> Any:
    values = rng.integers(high, size=like.shape).astype(like.dtype)
    return jax.device_put(values, like.sharding)

  batch = Batch(
    image=fill(data.image, 256),
    label=fill(data.label, spec.config.data.classes),
    mask=jax.device_put(np.ones(data.mask.shape, bool), data.mask.sharding),
    flip=None if data.flip is None else fill(data.flip, 2),
  )
  if order:
    n = order[0].index.shape[0]
    orders = Order(rng.permutation(n).astype(np.int32), np.zeros(n, bool))
    order = [mesh_lib.replicate(orders, spec.mesh)]
  carry = Carry(state, mesh_lib.replicate(MetricSums.zero(), spec.mesh))
  return carry, batch, *order, mesh_lib.replicate(spec.plan.table_in(np.float32), spec.mesh)


def record(program: StepProgram, arguments: tuple[Any, ...], folder: str, *, calls: int) -> float:
  """Runs a program under the profiler, after two calls without it.

  Returns:
    Seconds from the first call's start to the last one's end.
  """
  carry, *rest = arguments
  for _ in range(2):
    carry, _ = jax.block_until_ready(program.compiled(carry, *rest))
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # else Python's events would far outnumber the devices'
  with jax.profiler.trace(folder, profiler_options=options):
    start = time.perf_counter()
    for _ in range(calls):
      carry, _ = program.compiled(carry, *rest)
    jax.block_until_ready(carry)
    return time.perf_counter() - start


@dataclasses.dataclass(frozen=True)
class Run:
  """One run of a kernel, in nanoseconds of the profile's clock."""

  name: str
  start: float
  end: float


def read_profile(folder: str, module: str) -> list[Run]:
  """What one program ran on the first device, including control flow.

  Raises:
    UserError: the profile has nothing of that program.
  """
  paths = sorted(glob.glob(f"{folder}/**/*.xplane.pb", recursive=True))
  planes = [plane for path in paths for plane in jax.profiler.ProfileData.from_file(path).planes]
  devices = sorted(plane.name for plane in planes if plane.name.startswith("/device:GPU:"))
  chosen = devices[0] if devices else "/host:CPU"
  runs = []
  for plane in planes:
    if plane.name != chosen:
      continue
    for line in plane.lines:
      # A GPU's other lines repeat what is on its streams, summed up.
      if devices and not line.name.startswith("Stream"):
        continue
      for event in line.events:
        stats = dict(event.stats)
        if str(stats.get("hlo_module", "")) != module or stats.get("device_ordinal", 0):
          continue
        name = str(stats.get("hlo_op", event.name))
        runs.append(Run(name, event.start_ns, event.start_ns + event.duration_ns))
  if not runs:
    raise UserError(f"the profile has no kernels of {module}: it has {[p.name for p in planes]}.")
  return runs


def busy(runs: Iterable[Run]) -> float:
  """Nanoseconds in which at least one kernel ran."""
  total, until = 0.0, float("-inf")
  for run in sorted(runs, key=lambda r: r.start):
    total += max(0.0, run.end - max(run.start, until))
    until = max(until, run.end)
  return total


def summarize(
  runs: list[Run], program_text: str, *, steps: int, seconds: float, top: int
) -> dict[str, Any]:
  """Milliseconds of one step, by class.

  Args:
    runs: of all steps.
    program_text: of the program that ran.
    steps: how many ran.
    seconds: how long they took.
    top: how many kernels are listed.
  """
  known = {kernel.name: kernel for kernel in kernels_lib.read(program_text)}
  # Operations that are not kernels run others, which have their own runs.
  runs = [run for run in runs if run.name in known]
  span = max(r.end for r in runs) - min(r.start for r in runs)
  times: dict[str, list[float]] = collections.defaultdict(list)
  for run in runs:
    times[run.name].append((run.end - run.start) / 1e6)

  def sums(group: Iterable[Kernel]) -> dict[str, float]:
    group = [kernel for kernel in group if kernel.name in times]
    milliseconds = sum(sum(times[kernel.name]) for kernel in group)
    return {
      "kernels": sum(len(times[kernel.name]) for kernel in group) / steps,
      "milliseconds": milliseconds / steps,
      "share": milliseconds / (span / 1e6),
    }

  gaps = (span - busy(runs)) / 1e6
  classes = {name: sums(group) for name, group in kernels_lib.by_class(known.values()).items()}
  classes["gaps"] = {"kernels": 0, "milliseconds": gaps / steps, "share": gaps / (span / 1e6)}
  heaviest = sorted(times, key=lambda name: sum(times[name]), reverse=True)[:top]
  return {
    "milliseconds": span / 1e6 / steps,
    "wall_milliseconds": seconds * 1e3 / steps,
    "kernels": len(runs) / steps,
    "classes": {name: row for name, row in classes.items() if row["milliseconds"]},
    "heaviest": [
      _entry(known[name])
      | {"milliseconds": sum(times[name]) / steps, "runs": len(times[name]) / steps}
      for name in heaviest
    ],
  }


def profile(program: StepProgram, spec: TrainSpec, *, steps: int, top: int) -> dict[str, Any]:
  """Milliseconds of one step by class, by running the program."""
  calls = -(-steps // program.steps)
  with tempfile.TemporaryDirectory(prefix="jaxspeed-profile-") as folder:
    seconds = record(program, noise(program, spec), folder, calls=calls)
    text = program.compiled.as_text()
    runs = read_profile(folder, kernels_lib.module_name(text))
  return summarize(runs, text, steps=calls * program.steps, seconds=seconds, top=top)


# The report


def print_report(report: dict[str, Any], unit: str) -> None:
  """Prints a row per class, then a row per heaviest kernel, the most of `unit` first."""
  classes = sorted(report["classes"].items(), key=lambda row: -row[1][unit])
  total = report[unit]
  print(f"{'class':<28}{'kernels':>9}{unit:>14}{'share':>8}")
  for name, row in classes:
    share = row[unit] / total if total else 0
    print(f"{name:<28}{row['kernels']:>9.4g}{row[unit]:>14.3f}{share:>8.1%}")
  print(f"{'a step':<28}{report['kernels']:>9.4g}{total:>14.3f}")
  if report["heaviest"]:
    print("\nheaviest kernels")
  for row in report["heaviest"]:
    print(f"{row[unit]:>12.3f}  {row['class']:<28}{row['kind']}  {row['place']}  {row['result']}")


def _resolve(config: ConfigDict, device: jax.Device | None, gpu: str) -> ConfigDict:
  config = config.copy_and_resolve_references()
  if config.precision == "auto" and gpu:
    config.precision = described_gpus.GPUS[gpu].precision
  elif device is not None:
    config.precision = precision.resolve(config.precision, device)
  if not len(config.data.mean):
    # Placeholders: the data set is not read.
    config.data.update(mean=(127.5,) * 3, std=(64.0,) * 3)
  return config


def main(arguments: list[str]) -> None:
  command_line.nothing_left(arguments)
  command_line.required("config", _CONFIG.value and "given")
  described = _FOR.value or ""
  if described:
    jax.config.update("jax_platforms", "cpu")
    mesh = described_gpus.described_mesh(described, _DEVICES.value or 1)
    platform, device = "gpu", None
  else:
    mesh = mesh_lib.make_mesh(_DEVICES.value)
    device = mesh.devices.flat[0]
    platform = "cpu" if device.platform == "cpu" else "gpu"
  config = _resolve(_CONFIG.value, device, described)
  phase = choose_phase(
    config, devices=mesh.size, image_size=_IMAGE_SIZE.value, batch_size=_BATCH_SIZE.value
  )
  spec = make_train_spec(config, make_plan(config), mesh)
  program = compile_step(spec, phase, platform=platform, steps=_STEPS.value)
  report = {
    "what": f"scripts/profile_step.py: {__doc__.split(chr(10))[0]}",
    "config": config.name,
    "for": described or None,
    "device": described_gpus.GPUS[described].name if described else provenance.describe_device(),
    "devices": mesh.size,
    "image_size": phase.image_size,
    "batch_size": phase.batch_size // mesh.size,
    "precision": config.precision,
    "versions": provenance.versions(),
  }
  if described:
    report |= count(program, described_gpus.GPUS[described], top=_TOP.value)
    note = (
      f"{report['gigabytes']:.2f} GB are {report['milliseconds_at_bandwidth']:.2f} ms at the "
      f"memory's bandwidth; {report['scatters']} scatters; temporary memory "
      f"{report['temporary_gigabytes']:.2f} GB; compiled, not run"
    )
  else:
    report |= profile(program, spec, steps=_STEPS.value, top=_TOP.value)
    note = f"{report['wall_milliseconds']:.3f} ms a step by the host's clock"
  print(
    f"{config.name} on {report['device']}, {mesh.size} of them, {report['batch_size']} images of "
    f"{phase.image_size} pixels each, {config.precision}\n"
  )
  print_report(report, "gigabytes" if described else "milliseconds")
  print(f"\n{note}")
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
  command_line.run(main)
