"""Time a training step with options of XLA beside the same step without them, in turns.

    python scripts/bench_options.py --config=configs/cifar10.py --steps=20 --out=options.json \\
        --option=xla_gpu_enable_command_buffer= --option=NAME=VALUE

Each option is a variant of its own. A step is what `profile_step.py` compiles, on noise and without
the profiler, so a GPU uses its command buffers. An option that this version of XLA refuses is left
out, with XLA's reason.
"""

import time
from typing import Any

import benchmarking
import jax
import jax.numpy as jnp
import step_program
from absl import flags
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.devices.compile import use_cache
from jaxspeed.planning.make import make_plan
from jaxspeed.records import provenance
from jaxspeed.steps.spec import make_train_spec

_FLAGS = step_program.define_flags()
_OPTIONS = flags.DEFINE_multi_string("option", [], "NAME=VALUE of XLA; may be repeated.")
_TURNS = flags.DEFINE_integer("turns", 7, "Turns of each variant.", lower_bound=1)
_TURN_SECONDS = flags.DEFINE_float("turn_seconds", 0.5, "About what a turn takes.")


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
      self._carry = self._call(self._carry)
    jax.block_until_ready(self._carry)
    return (time.perf_counter() - start) / calls / self.steps


def make_variants(
  config: ConfigDict,
  options: list[str],
  *,
  mesh: Mesh,
  image_size: int,
  batch_size: int,
  steps: int,
) -> tuple[dict[str, Variant], dict[str, str], dict[str, Any]]:
  """The variants by option, "" being the plain step; why others are missing; and what they share.

  Raises:
    UserError: as `step_program.choose_phase`.
  """
  phase = step_program.choose_phase(
    config, devices=mesh.size, image_size=image_size, batch_size=batch_size
  )
  platform = "cpu" if mesh.devices.flat[0].platform == "cpu" else "gpu"
  variants: dict[str, Variant] = {}
  failed: dict[str, str] = {}
  arguments = None
  for option in ("", *options):
    own = config.copy_and_resolve_references()
    own.compiler_options = (*config.compiler_options, *([option] if option else []))
    spec = make_train_spec(own, make_plan(own), mesh)
    try:
      program = step_program.compile_step(spec, phase, platform=platform, steps=steps)
    except jax.errors.JaxRuntimeError as error:
      if not option:
        raise
      failed[option] = str(error).splitlines()[0][:300]
      continue
    arguments = arguments or step_program.noise(program, spec)
    variants[option] = Variant(program, arguments)
  shared = {
    "image_size": phase.image_size,
    "batch_size": phase.batch_size // mesh.size,
    "devices": mesh.size,
    "steps": program.steps,
  }
  return variants, failed, shared


def time_in_turns(
  variants: dict[str, Variant], *, turns: int, turn_seconds: float
) -> dict[str, list[float]]:
  """Seconds of a step in each turn, by option; every other turn goes backwards."""
  plain = variants[""]
  for variant in variants.values():
    variant.seconds_of(2)
  calls = max(1, round(turn_seconds / (plain.seconds_of(1) * plain.steps)))
  seconds: dict[str, list[float]] = {option: [] for option in variants}
  for turn in range(turns):
    for option in list(variants)[:: -1 if turn % 2 else 1]:
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


def main(arguments: list[str]) -> None:
  command_line.nothing_left(arguments)
  config = _FLAGS.required_config()
  use_cache("")
  mesh = mesh_lib.make_mesh(_FLAGS.devices.value)
  device = mesh.devices.flat[0]
  config = step_program.resolve(config, device, "")
  variants, failed, shared = make_variants(
    config,
    _OPTIONS.value,
    mesh=mesh,
    image_size=_FLAGS.image_size.value,
    batch_size=_FLAGS.batch_size.value,
    steps=_FLAGS.steps.value,
  )
  seconds = time_in_turns(variants, turns=_TURNS.value, turn_seconds=_TURN_SECONDS.value)
  report = {
    "what": f"scripts/bench_options.py: {__doc__.split(chr(10))[0]}",
    "config": config.name,
    "device": provenance.describe_device(),
    **shared,
    "precision": precision.resolve(config.precision, device),
    **benchmarking.environment(),
    "rows": rows_of(seconds, failed),
  }
  for row in report["rows"]:
    if "failed" in row:
      print(f"{row['option']}: {row['failed']}")
      continue
    ratio = f", {benchmarking.show(row['ratio'], '.3f')} of the plain step" if row["option"] else ""
    shown = benchmarking.show(row["milliseconds"], ".3f")
    print(f"{row['option'] or 'no option'}: {shown} ms a step{ratio}")
  benchmarking.write_report(_FLAGS.report_file(), report)


if __name__ == "__main__":
  command_line.run(main)
