"""Time a training step of ResNet-50 at every image size, here and in PyTorch, in turns.

    python scripts/bench_resnet50.py --size=128 --size=224 --batch=256 --out=resnet50.json

A step is forward, backward and SGD with momentum and weight decay, on a batch of uint8 noise that
lies on the device. Ours is the step of `jaxspeed.train` on a stream, with its normalisation and its
accuracies. PyTorch's is a ResNet-50 as torchvision has it, with torch.compile, channels-last,
autocast to bfloat16, cudnn.benchmark and fused SGD.

Each framework has a process of its own for each size and batch; a process pauses while the other
computes. A framework that runs out of memory beside the other has a row with its error: time it
alone with --frameworks. Steps with other options of a recipe are timed by bench_options.py.

The report is written when a framework is ready, then with a first estimate of its step, and after
its turns: a benchmark that is cut off keeps what it has.
"""

import functools
import itertools
import os
import pathlib
from typing import Any

import benchmarking
from absl import flags
from resnet50_steps import STAGES, Shape, make_jax_step, make_torch_step
from side_by_side import Timing, process, time_in_turns


def rows_of(shape: Shape, timings: dict[str, Timing]) -> list[dict[str, Any]]:
  """A row for each framework: images per second and operations, or why there are none.

  One without turns, because the benchmark was cut off, has a first estimate.
  """
  rows, theirs = [], timings.get("torch", Timing()).step_s
  ours = timings.get("jaxspeed", Timing()).prepared
  for framework, timing in timings.items():
    row: dict[str, Any] = {
      "size": shape.size,
      "batch": shape.batch,
      "framework": framework,
      **timing.prepared,
    }
    if timing.failed:
      row["failed"] = timing.failed
    elif timing.prepared:
      seconds = timing.step_s or [row.pop("step_s")]
      row["images_per_s"] = benchmarking.interval([shape.batch / each for each in seconds])
      if ours:
        row["tflops"] = ours["flops"] * row["images_per_s"]["mean"] / 1e12
        row["share_of_ceiling"] = row["tflops"] / ours["ceiling_tflops"]
      if theirs and timing.step_s and framework != "torch":
        row["times_torch"] = benchmarking.ratio_of_rounds(theirs, timing.step_s)
    rows.append(row)
  return rows


def said(row: dict[str, Any]) -> str:
  """The figure of a row."""
  if "failed" in row:
    return f"failed: {row['failed']}"
  figures = [f"{benchmarking.show(row['images_per_s'], '.0f')} images/s"]
  if "tflops" in row:
    share = f"{row['share_of_ceiling']:.1%} of the matrix ceiling"
    figures.append(f"{row['tflops']:.3g} TFLOP/s, {share}")
  figures.append(f"compiled in {row['compile_s']:.0f} s")
  if row["memory_gb"] is not None:
    figures.append(f"{row['memory_gb']:.1f} GB")
  if "times_torch" in row:
    figures.append(f"{benchmarking.show(row['times_torch'], '.3f')} times torch's images/s")
  return ", ".join(figures)


def time_shape(shape: Shape, given: Any, report: benchmarking.Report) -> None:
  """Adds the rows of a shape to the report, and writes it whenever there is more."""
  before = report["rows"]
  makes = {
    "jaxspeed": functools.partial(make_jax_step, shape),
    "torch": functools.partial(make_torch_step, shape, given.mode),
  }

  def keep(timings: dict[str, Timing]) -> list[dict[str, Any]]:
    rows = rows_of(shape, timings)
    report["rows"] = before + rows
    benchmarking.write_report(given.out, report)
    return rows

  timings = time_in_turns(
    {framework: makes[framework] for framework in given.frameworks},
    process,
    turns=given.turns,
    turn_seconds=given.turn_seconds,
    answer_seconds=given.answer_seconds,
    on_ready=keep,
  )
  for row in keep(timings):
    where = f"{report['net']}, {shape.size} px, batch {shape.batch}, {row['framework']}"
    benchmarking.say(report, where, said(row))
  benchmarking.write_report(given.out, report)


def bench(scratch: pathlib.Path) -> None:
  """Runs the whole benchmark."""
  given: Any = flags.FLAGS
  # JAX would reserve three quarters of the memory, but the other framework needs half of it.
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
  report: benchmarking.Report = {
    "what": "Training steps of ResNet-50 on noise, forward, backward and optimizer, ours and "
    "PyTorch's in turns on one machine; written by scripts/bench_resnet50.py.",
    **benchmarking.environment(),
    "net": f"ResNet-{given.depth}, width {given.width}",
    "precision": given.precision,
    "mode": given.mode,
    "turns": given.turns,
    "rows": [],
    "said": [],
  }
  benchmarking.write_report(given.out, report)
  for batch, size in itertools.product(given.batch, given.size):
    time_shape(Shape(size, batch, given.depth, given.width, given.precision), given, report)


def main() -> None:
  flags.DEFINE_multi_integer("size", [224], "Pixels; repeatable.", lower_bound=32)
  flags.DEFINE_multi_integer("batch", [256], "Of the device; repeatable.", lower_bound=1)
  frameworks = ["jaxspeed", "torch"]
  benchmarking.define_choices("frameworks", frameworks, frameworks, "What is timed.")
  flags.DEFINE_integer("turns", 5, "Of each, timed.", lower_bound=1)
  flags.DEFINE_float("turn_seconds", 1.0, "About what a turn takes.")
  flags.DEFINE_string("mode", "default", "Of torch.compile, or eager.")
  flags.DEFINE_enum("precision", "bfloat16", ["bfloat16", "float32"], "Dtype.")
  depth = flags.DEFINE_integer("depth", 50, "18 or 50.")
  flags.register_validator(depth, STAGES.__contains__, "choose 18 or 50")
  flags.DEFINE_integer("width", 64, "Of the net; 64 is ResNet's own.", lower_bound=1)
  flags.DEFINE_float("answer_seconds", 900, "Most, also to compile.")
  benchmarking.define_out()
  benchmarking.run(bench)


if __name__ == "__main__":
  main()
