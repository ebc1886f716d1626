"""Time a training step with options beside the same step without them, in turns.

    python scripts/bench_options.py --config=configs/cifar10.py --steps=20 --out=options.json \\
        --option=xla_gpu_enable_command_buffer= --option=NAME=VALUE

Each option is a variant of its own; config.FIELD=VALUE sets a field in place of an option of XLA.
A step is what `profile_step.py` compiles, on noise and without the profiler, so a GPU uses its
command buffers. An option that this version of XLA refuses is left out, with XLA's reason.
"""

import time
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
import step_program
from absl import flags
from step_program import Step

from jaxspeed.config import flags as command_line
from jaxspeed.devices.compile import use_cache


class Variant:
  """A step's program with one option, and its own copy of the state.

  Args:
    program: the compiled step.
    arguments: from `step_program.noise`.
  """

  def __init__(self, program: step_program.StepProgram, arguments: tuple[Any, ...]) -> None:
    self._call, self.steps = step_program.caller(program, arguments), program.steps
    # A program takes its state over, and the others need theirs.
    self._carry = jax.tree.map(jnp.copy, arguments[0])

  def seconds_of(self, calls: int) -> float:
    """Seconds of one step, over some calls of the program."""
    start = time.perf_counter()
    for _ in range(calls):
      self._carry, _ = self._call(self._carry)
    jax.block_until_ready(self._carry)
    return (time.perf_counter() - start) / calls / self.steps


def make_variants(
  step: Step, options: list[str], *, steps: int
) -> tuple[dict[str, Variant], dict[str, str]]:
  """The variants by option, "" being the plain step; and why others are missing."""
  variants: dict[str, Variant] = {}
  failed: dict[str, str] = {}
  arguments = None
  for option in ("", *options):
    spec = step.spec(*filter(None, [option]))
    try:
      program = step_program.compile_step(spec, step.phase, steps=steps)
    except jax.errors.JaxRuntimeError as error:
      if not option:
        raise
      failed[option] = str(error).splitlines()[0][:300]
      continue
    arguments = arguments or step_program.noise(program, spec)
    variants[option] = Variant(program, arguments)
  return variants, failed


def time_in_turns(
  variants: dict[str, Variant], *, turns: int, turn_seconds: float
) -> dict[str, list[float]]:
  """Seconds of a step in each turn, by option."""
  plain = variants[""]
  for variant in variants.values():
    variant.seconds_of(2)
  calls = max(1, round(turn_seconds / (plain.seconds_of(1) * plain.steps)))
  seconds: dict[str, list[float]] = {option: [] for option in variants}
  for _, option in benchmarking.turns(list(variants), turns):
    seconds[option].append(variants[option].seconds_of(calls))
  return seconds


def rows_of(seconds: dict[str, list[float]], failed: dict[str, str]) -> list[dict[str, Any]]:
  """A row for each option: milliseconds a step, and its ratio to the plain step's turn by turn."""
  rows: list[dict[str, Any]] = []
  for option, each in seconds.items():
    row = {"option": option, "milliseconds": benchmarking.interval([1e3 * s for s in each])}
    if option:
      row["ratio"] = benchmarking.ratio_of_rounds(each, seconds[""])
    rows.append(row)
  return rows + [{"option": option, "failed": reason} for option, reason in failed.items()]


def main() -> None:
  make_step = step_program.define_flags()
  steps = flags.DEFINE_integer("steps", 5, "Steps of a program.", lower_bound=1)
  options = flags.DEFINE_multi_string(
    "option", [], "NAME=VALUE of XLA, or config.FIELD=VALUE; may be repeated."
  )
  turns = flags.DEFINE_integer("turns", 7, "Turns of each variant.", lower_bound=1)
  turn_seconds = flags.DEFINE_float("turn_seconds", 0.5, "About what a turn takes.")
  out = benchmarking.define_out()

  def bench(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    use_cache("")
    step = make_step("")
    variants, failed = make_variants(step, options.value, steps=steps.value)
    seconds = time_in_turns(variants, turns=turns.value, turn_seconds=turn_seconds.value)
    report = {
      "what": f"scripts/bench_options.py: {__doc__.split(chr(10))[0]}",
      **step.describe(),
      "steps": variants[""].steps,
      **benchmarking.environment(),
      "rows": rows_of(seconds, failed),
    }
    for row in report["rows"]:
      what = f"a step of `{report['config']}`, {row['option'] or 'XLA as it is'}"
      if "failed" in row:
        benchmarking.say(report, what, f"failed: {row['failed']}")
        continue
      ratio = benchmarking.show(row["ratio"], ".3f") if row["option"] else ""
      figure = f"{benchmarking.show(row['milliseconds'], '.3f')} ms"
      benchmarking.say(report, what, figure + (f", {ratio} of XLA as it is" if ratio else ""))
    benchmarking.write_report(out.value, report)

  command_line.run(bench)


if __name__ == "__main__":
  main()
