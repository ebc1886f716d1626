"""Where a training step's time goes: its kernels by class, and the heaviest ones.

    python scripts/profile_step.py --config=configs/cifar10.py --steps=20 --out=profile.json
    python scripts/profile_step.py --config=configs/imagenet18.py:1 --for=h100 \\
        --image_size=224 --batch_size=256 --out=h100.json
    python scripts/profile_step.py --config=configs/imagenet_lars.py:81920 --for=h100 --devices=8 \\
        --batch_size=40 --config.allreduce.group_mb=4

The first command runs steps on the devices of this machine, on noise, under JAX's profiler. Classes
are those of `kernels.CLASSES`; "gaps" is the time in which no kernel ran that has a
name. A GPU uses no command buffers here: with them, the profile of an H200 left out half of the
kernels of cifar10.py, all of its optimizer's among them. So gaps are longer than in a run.

With --for nothing runs: the step is compiled for GPUs that are not there (which needs JAX's CUDA
plugin, but no GPU), and each class lists its kernels and the bytes that they read and write; bytes
over the memory's bandwidth are the least time of kernels that no cache helps. For a TPU v5e
(`pip install jaxspeed[tpu]`) it lists the cycles that libtpu estimates; some operations have no
estimate, such as gathers. Of several devices it lists the all-reduces in a stream's step, each with
the kernels beside it and the share of the step's bytes before its start and its end.

A data set in memory trains as in `jaxspeed.train`: on a GPU in one program of --steps steps, each
of which is counted; on a CPU step by step, as a stream does everywhere.
"""

import collections
import pathlib
import re
import time
from collections.abc import Iterable, Mapping
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
from jaxspeed.steps.spec import TrainSpec

_NO_BUFFERS = "xla_gpu_enable_command_buffer="
# Of a TPU's operations, as libtpu notes them.
_CYCLES = re.compile(r'^\s+(?:ROOT )?%([\w.\-]+) = .*"estimated_cycles":"(\d+)"', re.MULTILINE)


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


def count(program: StepProgram, described: str) -> dict[str, Any]:
  """The kernels of one step by class, without running it: with their bytes, on a TPU cycles."""
  text, steps = program.compiled.as_text(), program.steps
  found = kernels_lib.read(text, trips=steps)
  runs = {kernel.name: kernel.runs / steps for kernel in found}
  held = {
    "scatters": kernels_lib.scatters(text),
    "memory_gb": step_program.held_gigabytes(program.compiled),
    "all_reduces": all_reduces(text),
  }
  if described == described_gpus.TPU:
    estimates = {name: int(cycles) / 1e6 for name, cycles in _CYCLES.findall(text)}
    held["without_estimate"] = sum(name not in estimates for name in runs)
    cycles = {name: number * estimates.get(name, 0.0) for name, number in runs.items()}
    return tables(found, runs, cycles, "megacycles") | held
  moved = {kernel.name: runs[kernel.name] * kernel.moved / 1e9 for kernel in found}
  seconds = sum(moved.values()) * 1e9 / described_gpus.GPUS[described].bandwidth
  return (
    tables(found, runs, moved, "gigabytes") | held | {"milliseconds_at_bandwidth": 1e3 * seconds}
  )


def all_reduces(text: str) -> list[dict[str, Any]]:
  """The all-reduces of a scheduled program outside of its loops, and what runs beside them."""
  moved, count = 0, 0
  begun: dict[str, tuple[int, int]] = {}
  found = []
  for kernel in kernels_lib.schedule(text):
    if kernel.kind == "all-reduce-start":
      begun[kernel.name] = (moved, count)
    elif kernel.kind in ("all-reduce", "all-reduce-done"):
      start = begun.get(kernel.operands[0], (moved, count))
      found.append((kernels_lib.bytes_of(kernel.shape), start, (moved, count)))
    else:
      moved, count = moved + kernel.moved, count + 1
  return [
    {
      "megabytes": round(size / 1e6, 4),
      "start": round(start[0] / moved, 4),
      "done": round(done[0] / moved, 4),
      "kernels_beside": done[1] - start[1],
    }
    for size, start, done in found
  ]


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
  """Milliseconds of one step by class, by running the program under the profiler."""
  run, calls = step_program.runner(program, spec), -(-steps // program.steps)
  run(2)  # without the profiler
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # else Python's events would far outnumber the devices'
  with jax.profiler.trace(folder, profiler_options=options):
    start = time.perf_counter()
    run(calls)
    seconds = time.perf_counter() - start
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


def notes_of(report: dict[str, Any]) -> list[str]:
  """What is said below the table of a step that was compiled, not run."""
  notes = [
    f"compiled, not run; {report['scatters']} scatters; {report['memory_gb']:.2f} GB of memory"
  ]
  if "milliseconds_at_bandwidth" in report:
    milliseconds = report["milliseconds_at_bandwidth"]
    notes.append(f"{report['gigabytes']:.2f} GB are {milliseconds:.2f} ms at the bandwidth")
  if missing := report.get("without_estimate"):
    notes.append(f"{missing} operations have no estimate of their cycles")
  if reduced := report["all_reduces"]:
    sizes = [each["megabytes"] for each in reduced]
    beside = " ".join(str(each["kernels_beside"]) for each in reduced)
    notes.append(
      f"{len(sizes)} all-reduces of {min(sizes):.3g} to {max(sizes):.3g} MB, {sum(sizes):.2f} MB "
      f"in all; kernels beside each: {beside}"
    )
  return notes


def main() -> None:
  make_step = step_program.define_flags()
  steps = flags.DEFINE_integer("steps", 5, "Steps of a program.", lower_bound=1)
  kinds = ["", *described_gpus.GPUS, described_gpus.TPU]
  described = flags.DEFINE_enum("for", "", kinds, "Compile for this device instead of running.")
  options = flags.DEFINE_multi_string("option", [], "NAME=VALUE of XLA; may be repeated.")
  top = flags.DEFINE_integer("top", 15, "Heaviest kernels that are listed.", lower_bound=0)
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    step = make_step(described.value)
    if not described.value:
      use_cache()
    on_gpu = not described.value and step.mesh.devices.flat[0].platform == "gpu"
    spec = step.spec(*[_NO_BUFFERS] * on_gpu, *options.value)
    program = step_program.compile_step(spec, step.phase, steps=steps.value)
    report = {
      "what": f"scripts/profile_step.py: {__doc__.split(chr(10))[0]}",
      "for": described.value or None,
      **step.describe(),
      "options": options.value,
      **benchmarking.environment(),
    }
    if described.value:
      unit = "megacycles" if described.value == described_gpus.TPU else "gigabytes"
      report |= count(program, described.value)
      notes = notes_of(report)
    else:
      unit = "milliseconds"
      report |= profile(program, spec, str(scratch), steps=steps.value)
      notes = [f"{report['wall_milliseconds']:.3f} ms a step by the host's clock"]
    print(
      f"{report['config']} on {report['device']}, {report['devices']} of them, "
      f"{report['batch_size']} images of {report['image_size']} pixels each, "
      f"{report['precision']}\n"
    )
    report["heaviest"] = report["heaviest"][: top.value]
    print_report(report, unit)
    print("\n" + "\n".join(notes))
    if not described.value:
      rows = sorted((row[unit], name) for name, row in report["classes"].items())
      listed = ", ".join(f"{name} {time / report[unit]:.0%}" for time, name in rows[:-5:-1])
      what = f"a step of `{report['config']}` under the profiler, batch {report['batch_size']}"
      figure = f"{report[unit]:.2f} ms, {report['kernels']:.0f} kernels: {listed}"
      benchmarking.say(report, what, figure)
    benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
