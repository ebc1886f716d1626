"""Time a training step with options beside the same step without them, in turns.

    python scripts/bench_options.py --config=configs/cifar10.py --steps=20 --out=options.json \\
        --option=xla_gpu_enable_command_buffer= --option=NAME=VALUE

Each option is a variant of its own; config.FIELD=VALUE sets a field in place of an option of XLA.
A step is what `profile_step.py` compiles, on noise and without the profiler, so a GPU uses its
command buffers. An option that this version of XLA refuses is left out, with XLA's reason.
"""

import functools
import pathlib
from multiprocessing.pool import ThreadPool
from typing import Any

import benchmarking
import step_program
from absl import flags
from side_by_side import time_in_turns

from jaxspeed.devices.compile import use_cache
from jaxspeed.errors import UserError

PLAIN = "XLA as it is"


def main() -> None:
  make_step = step_program.define_flags()
  steps = flags.DEFINE_integer("steps", 5, "Steps of a program.", lower_bound=1)
  options = flags.DEFINE_multi_string(
    "option", [], "NAME=VALUE of XLA, or config.FIELD=VALUE; may be repeated."
  )
  turns = flags.DEFINE_integer("turns", 7, "Turns of each variant.", lower_bound=1)
  turn_seconds = flags.DEFINE_float("turn_seconds", 0.5, "About what a turn takes.")
  out = benchmarking.define_out()

  def bench(scratch: pathlib.Path) -> None:
    use_cache()
    step = make_step("")
    prepare = functools.partial(step_program.prepare, step, steps=steps.value)
    makes = {PLAIN: prepare, **{each: functools.partial(prepare, each) for each in options.value}}
    timings = time_in_turns(
      makes, lambda: ThreadPool(1), turns=turns.value, turn_seconds=turn_seconds.value
    )
    plain = timings[PLAIN]
    if plain.failed:
      raise UserError(f"the step without options fails ({plain.failed}).")
    rows: list[dict[str, Any]] = []
    report = {
      "what": f"scripts/bench_options.py: {__doc__.split(chr(10))[0]}",
      **step.describe(),
      "steps": plain.prepared["steps"],
      **benchmarking.environment(),
      "rows": rows,
    }
    for option, timing in timings.items():
      row: dict[str, Any] = {"option": option}
      if timing.failed:
        row["failed"] = timing.failed
        figure = f"failed: {timing.failed}"
      else:
        milliseconds = [1e3 * s / timing.prepared["steps"] for s in timing.step_s]
        row["milliseconds"] = benchmarking.interval(milliseconds)
        row["ratio"] = benchmarking.ratio_of_rounds(timing.step_s, plain.step_s)
        figure = f"{benchmarking.show(row['milliseconds'], '.3f')} ms"
        if timing is not plain:
          figure += f", {benchmarking.show(row['ratio'], '.3f')} of {PLAIN}"
      rows.append(row)
      benchmarking.say(report, f"a step of `{report['config']}`, {option}", figure)
    benchmarking.write_report(out.value, report)

  benchmarking.run(bench)


if __name__ == "__main__":
  main()
