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
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
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

from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError
from jaxspeed.records import provenance
from jaxspeed.steps.spec import TrainSpec


def tables(
  found: Iterable[Kernel], runs: Mapping[str, float], amounts: Mapping[str, float], unit: str
) -> dict[str, Any]:
  """The classes, and the kernels, the heaviest first, with their amounts in a step.

  Args:
    found: the program's kernels.
    runs: how often those that ran did so in a step, by name.
    amounts: what each took.
    unit: what the amounts are.
  """
  ran = [kernel for kernel in found if kernel.name in runs]

  def sums(group: list[Kernel]) -> dict[str, float]:
    return {
      "kernels": sum(runs[kernel.name] for kernel in group),
      unit: sum(amounts[kernel.name] for kernel in group),
    }

  return sums(ran) | {
    "classes": {name: sums(group) for name, group in kernels_lib.by_class(ran).items()},
    "heaviest": [
      {
        "name": kernel.name,
        "kind": kernel.kind,
        "class": kernel.purpose,
        "place": kernels_lib.place_of(kernel),
        "result": kernels_lib.describe_shape(kernel.shape),
        unit: amounts[kernel.name],
        "runs": runs[kernel.name],
      }
      for kernel in sorted(ran, key=lambda kernel: -amounts[kernel.name])
    ],
  }


def count(program: StepProgram, gpu: described_gpus.Gpu) -> dict[str, Any]:
  """Kernels and bytes of one step by class, without running the program."""
  text, steps = program.compiled.as_text(), program.steps
  found = kernels_lib.read(text, trips=steps)
  memory = program.compiled.memory_analysis()
  runs = {kernel.name: kernel.runs / steps for kernel in found}
  moved = {kernel.name: runs[kernel.name] * kernel.moved / 1e9 for kernel in found}
  return tables(found, runs, moved, "gigabytes") | {
    "convolution_gigaflop": sum(runs[kernel.name] * kernel.flops for kernel in found) / 1e9,
    "milliseconds_at_bandwidth": sum(moved.values()) * 1e12 / gpu.bandwidth,
    "scatters": kernels_lib.scatters(text),
    "temporary_gigabytes": memory.temp_size_in_bytes / 1e9,
    "argument_gigabytes": memory.argument_size_in_bytes / 1e9,
  }


def record(run: Callable[[int], float], folder: str, *, calls: int) -> float:
  """Makes calls of a program under the profiler, after two calls without it.

  Returns:
    Seconds from the first call's start to the last one's end.
  """
  run(2)
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # else Python's events would far outnumber the devices'
  with jax.profiler.trace(folder, profiler_options=options):
    start = time.perf_counter()
    run(calls)
    return time.perf_counter() - start


def summarize(runs: list[Run], program_text: str, *, steps: int, seconds: float) -> dict[str, Any]:
  """Milliseconds of one step, by class.

  Args:
    runs: of all steps.
    program_text: of the program that ran.
    steps: how many ran.
    seconds: how long they took.

  Raises:
    UserError: none of the runs is of a kernel of the program.
  """
  found = kernels_lib.read(program_text)
  # Operations that are not kernels run others, which have their own runs.
  names = {kernel.name for kernel in found}
  if not (runs := [run for run in runs if run.name in names]):
    raise UserError("the profile's events name none of the kernels in the program's text.")
  counts: collections.Counter[str] = collections.Counter(run.name for run in runs)
  times: dict[str, float] = collections.defaultdict(float)
  for run in runs:
    times[run.name] += (run.end - run.start) / 1e6 / steps
  span = max(run.end for run in runs) - min(run.start for run in runs)
  ran = {name: number / steps for name, number in counts.items()}
  report = tables(found, ran, times, "milliseconds")
  report["classes"]["gaps"] = {"kernels": 0, "milliseconds": (span - busy(runs)) / 1e6 / steps}
  whole = {"milliseconds": span / 1e6 / steps, "wall_milliseconds": seconds * 1e3 / steps}
  return report | whole


def profile(program: StepProgram, spec: TrainSpec, folder: str, *, steps: int) -> dict[str, Any]:
  """Milliseconds of one step by class, by running the program."""
  calls = -(-steps // program.steps)
  seconds = record(step_program.runner(program, spec), folder, calls=calls)
  text = program.compiled.as_text()
  names = {kernel.name for kernel in kernels_lib.read(text)}
  platform = spec.mesh.devices.flat[0].platform
  runs = read_profile(folder, kernels_lib.module_name(text), names, platform=platform)
  return summarize(runs, text, steps=calls * program.steps, seconds=seconds)


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

  def bench(scratch: pathlib.Path) -> None:
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
      report |= count(program, step.gpu)
      note = (
        f"{report['gigabytes']:.2f} GB are {report['milliseconds_at_bandwidth']:.2f} ms at the "
        f"memory's bandwidth; {report['convolution_gigaflop']:,.0f} GFLOP of convolutions; "
        f"{report['scatters']} scatters; temporary memory "
        f"{report['temporary_gigabytes']:.2f} GB; compiled, not run"
      )
    else:
      report |= profile(program, spec, str(scratch), steps=steps.value)
      note = f"{report['wall_milliseconds']:.3f} ms a step by the host's clock"
    print(
      f"{report['config']} on {report['device']}, {report['devices']} of them, "
      f"{report['batch_size']} images of {report['image_size']} pixels each, "
      f"{report['precision']}\n"
    )
    report["heaviest"] = report["heaviest"][: top.value]
    print_report(report, "gigabytes" if step.gpu else "milliseconds")
    print(f"\n{note}")
    if not step.gpu:
      rows = sorted((row["milliseconds"], name) for name, row in report["classes"].items())
      shares = [(time / report["milliseconds"], name) for time, name in rows[:-5:-1]]
      listed = ", ".join(f"{name} {share:.0%}" for share, name in shares)
      what = f"a step of `{report['config']}` under the profiler, batch {report['batch_size']}"
      figure = f"{report['milliseconds']:.2f} ms, {report['kernels']:.0f} kernels: {listed}"
      benchmarking.say(report, what, figure)
    benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
