"""Where a training step's time goes: its kernels by class, and the heaviest ones.

    python scripts/profile_step.py --config=configs/cifar10.py --steps=20 --out=profile.json
    python scripts/profile_step.py --config=configs/imagenet18.py:1 --for=h100 \\
        --image_size=224 --batch_size=256 --out=h100.json

The first command runs steps on the devices of this machine, on noise, under JAX's profiler. Classes
are those of `kernels.CLASSES`; "gaps" is the time in which no kernel ran. A GPU uses no command
buffers while it is profiled, so gaps are longer than in a run; kernels are not.

With --for nothing runs: the step is compiled for GPUs that are not there (which needs JAX's CUDA
plugin, but no GPU), and each class lists its kernels and the bytes that they read and write.
Operations of convolutions are counted too. Nothing is autotuned or timed; bytes over the memory's
bandwidth are the least time of kernels that no cache helps.

A data set in memory trains as in `jaxspeed.train`: on a GPU in one program of --steps steps, each
of which is counted; on a CPU step by step, as a stream does everywhere.
"""

import collections
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import benchmarking
import described_gpus
import jax
import kernels as kernels_lib
import step_program
from absl import flags
from kernels import Kernel
from step_program import StepProgram
from traces import Run, busy, read_profile

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.records import provenance
from jaxspeed.steps.spec import TrainSpec


def count(program: StepProgram, gpu: described_gpus.Gpu, *, top: int) -> dict[str, Any]:
  """Kernels and bytes of one step by class, without running the program."""
  text = program.compiled.as_text()
  found = kernels_lib.read(text, trips=program.steps)
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
    "convolution_gigaflop": sum(k.runs * k.flops for k in found) / steps / 1e9,
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


def record(program: StepProgram, arguments: tuple[Any, ...], folder: str, *, calls: int) -> float:
  """Runs a program under the profiler, after two calls without it.

  Returns:
    Seconds from the first call's start to the last one's end.
  """
  call, carry = step_program.caller(program, arguments), arguments[0]
  for _ in range(2):
    carry, _ = jax.block_until_ready(call(carry))
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # else Python's events would far outnumber the devices'
  with jax.profiler.trace(folder, profiler_options=options):
    start = time.perf_counter()
    for _ in range(calls):
      carry, _ = call(carry)
    jax.block_until_ready(carry)
    return time.perf_counter() - start


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

  Raises:
    UserError: none of the runs is of a kernel of the program.
  """
  known = {kernel.name: kernel for kernel in kernels_lib.read(program_text)}
  # Operations that are not kernels run others, which have their own runs.
  runs = [run for run in runs if run.name in known]
  if not runs:
    raise UserError("the profile's events name none of the kernels in the program's text.")
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
  with exit_on_sigterm(), tempfile.TemporaryDirectory(prefix="jaxspeed-profile-") as folder:
    seconds = record(program, step_program.noise(program, spec), folder, calls=calls)
    text = program.compiled.as_text()
    names = {kernel.name for kernel in kernels_lib.read(text)}
    platform = spec.mesh.devices.flat[0].platform
    runs = read_profile(folder, kernels_lib.module_name(text), names, platform=platform)
  return summarize(runs, text, steps=calls * program.steps, seconds=seconds, top=top)


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


def main() -> None:
  make_step = step_program.define_flags()
  steps = flags.DEFINE_integer("steps", 5, "Steps of a program.", lower_bound=1)
  described = flags.DEFINE_enum(
    "for", "", ["", *described_gpus.GPUS], "Compile for this GPU instead of running."
  )
  top = flags.DEFINE_integer("top", 15, "Heaviest kernels that are listed.", lower_bound=0)
  out = benchmarking.define_out()

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    step = make_step(described.value)
    if step.gpu is None:
      use_cache("")
    spec = step.spec()
    program = step_program.compile_step(spec, step.phase, steps=steps.value)
    report = {
      "what": f"scripts/profile_step.py: {__doc__.split(chr(10))[0]}",
      "for": described.value or None,
      **step.describe(),
      "versions": provenance.versions(),
    }
    if step.gpu:
      report |= count(program, step.gpu, top=top.value)
      note = (
        f"{report['gigabytes']:.2f} GB are {report['milliseconds_at_bandwidth']:.2f} ms at the "
        f"memory's bandwidth; {report['convolution_gigaflop']:,.0f} GFLOP of convolutions; "
        f"{report['scatters']} scatters; temporary memory "
        f"{report['temporary_gigabytes']:.2f} GB; compiled, not run"
      )
    else:
      report |= profile(program, spec, steps=steps.value, top=top.value)
      note = f"{report['wall_milliseconds']:.3f} ms a step by the host's clock"
    print(
      f"{report['config']} on {report['device']}, {report['devices']} of them, "
      f"{report['batch_size']} images of {report['image_size']} pixels each, "
      f"{report['precision']}\n"
    )
    print_report(report, "gigabytes" if step.gpu else "milliseconds")
    print(f"\n{note}")
    if not step.gpu:
      shares = sorted(
        ((row["share"], name) for name, row in report["classes"].items()), reverse=True
      )
      listed = ", ".join(f"{name} {share:.0%}" for share, name in shares[:4])
      what = f"a step of `{report['config']}` under the profiler, batch {report['batch_size']}"
      figure = f"{report['milliseconds']:.2f} ms, {report['kernels']:.0f} kernels: {listed}"
      benchmarking.say(report, what, figure)
    benchmarking.write_report(out.value, report)

  command_line.run(run)


if __name__ == "__main__":
  main()
