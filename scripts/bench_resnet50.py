"""Time a training step of ResNet-50 at every image size, here and in PyTorch, in turns.

    python scripts/bench_resnet50.py --sizes=128,160,192,224,288 --batches=256,512,128,64 \\
        --out=resnet50.json

A step is forward, backward and SGD with momentum and weight decay, on a batch of uint8 noise that
lies on the device. Ours is the step of `jaxspeed.train` on a stream, with its normalisation and its
accuracies. PyTorch's is a ResNet-50 as torchvision has it, with torch.compile, channels-last,
autocast to bfloat16, cudnn.benchmark and fused SGD.

Each framework has a process of its own for each size and batch; a process pauses while the other
computes. A framework that runs out of memory beside the other has a row that says so: time it alone
with --frameworks. Steps with other options of a recipe are timed by bench_options.py.

The report is written after every row: a benchmark that is cut off keeps what it has.
"""

import contextlib
import functools
import itertools
import os
import pathlib
from typing import Any

import benchmarking
from absl import flags
from resnet50_steps import STAGES, Shape, make_jax_step, make_torch_step, training_flops
from side_by_side import Timing, Worker, WorkerFailed, time_in_turns

from jaxspeed.errors import UserError


def rows_of(
  shape: Shape, timings: dict[str, Timing], *, flops: float, ceiling: float
) -> list[dict[str, Any]]:
  """A row for each framework: images per second and operations, or why there are none.

  Args:
    flops: operations of a step per image.
    ceiling: 10^12 operations per second of a matrix product.
  """
  rows = []
  for framework, timing in timings.items():
    row: dict[str, Any] = {
      "size": shape.size,
      "batch": shape.batch,
      "framework": framework,
      **timing.prepared,
    }
    row.pop("step_s", None)
    if timing.failed is not None:
      row["failed"] = timing.failed
    else:
      images_per_s = benchmarking.interval([shape.batch / seconds for seconds in timing.step_s])
      tflops = flops * images_per_s["mean"] / 1e12
      row |= {"images_per_s": images_per_s, "tflops": tflops, "share_of_ceiling": tflops / ceiling}
    rows.append(row)
  return rows


def ratios_of(shape: Shape, timings: dict[str, Timing], baseline: str) -> list[dict[str, Any]]:
  """Ratios of the others' images per second to the baseline's, turn by turn."""
  base = timings[baseline]
  if base.failed is not None:
    return []
  return [
    {
      "size": shape.size,
      "batch": shape.batch,
      "of": framework,
      "to": baseline,
      "ratio": benchmarking.ratio_of_rounds(base.step_s, timing.step_s),
    }
    for framework, timing in timings.items()
    if framework != baseline and timing.failed is None
  ]


def measure(shapes: list[Shape]) -> dict[str, Any]:
  """The rate of a matrix product, the device, and the operations of each step per image."""
  from jaxspeed.records import provenance

  tflops = benchmarking.matrix_product_tflops(shapes[0].precision)
  flops = [training_flops(shape) for shape in shapes]
  return {"tflops": tflops, "device": provenance.describe_device(), "flops": flops}


def bench(scratch: pathlib.Path) -> None:
  """Runs the whole benchmark.

  Raises:
    UserError: a size is no number, or the ceiling cannot be measured.
  """
  given: Any = flags.FLAGS
  # JAX would reserve three quarters of the memory, but the other framework needs half of it.
  os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

  sizes = benchmarking.numbers("sizes", given.sizes, int)
  batches = benchmarking.numbers("batches", given.batches, int)
  net = (given.depth, given.width, given.precision)
  shapes = [Shape(size, batch, *net) for batch, size in itertools.product(batches, sizes)]

  def make_worker() -> Worker:
    return Worker(given.answer_seconds)

  with contextlib.closing(make_worker()) as worker:
    try:
      ceiling = worker.ask("call", function=functools.partial(measure, shapes))
    except WorkerFailed as error:
      raise UserError(f"the ceiling cannot be measured: {error}.") from None
  rows: list[dict[str, Any]] = []
  ratios: list[dict[str, Any]] = []
  report: dict[str, Any] = {
    "what": "Training steps of ResNet-50 on noise, forward, backward and optimizer, ours and "
    "PyTorch's in turns on one machine; written by scripts/bench_resnet50.py.",
    "device": ceiling["device"],
    **benchmarking.environment(),
    "net": f"ResNet-{given.depth}, width {given.width}",
    "precision": given.precision,
    "mode": given.mode,
    "turns": given.turns,
    "ceiling_tflops": ceiling["tflops"],
    "rows": rows,
    "ratios": ratios,
  }
  for shape, flops in zip(shapes, ceiling["flops"], strict=True):
    makes = {
      "jaxspeed": functools.partial(make_jax_step, shape),
      "torch": functools.partial(make_torch_step, shape, given.mode),
    }
    timings = time_in_turns(
      {framework: makes[framework] for framework in given.frameworks},
      make_worker,
      turns=given.turns,
      turn_seconds=given.turn_seconds,
    )
    found = rows_of(shape, timings, flops=flops, ceiling=ceiling["tflops"])
    compared = ratios_of(shape, timings, given.frameworks[-1])  # PyTorch, if it is there
    ratios += compared
    rows += found
    where = f"{report['net']}, {shape.size} px, batch {shape.batch}"
    for row in found:
      benchmarking.say(report, f"{where}, {row['framework']}", said(row))
    for row in compared:
      ratio = f"{benchmarking.show(row['ratio'], '.3f')} times its images/s"
      benchmarking.say(report, f"{where}, {row['of']} beside {row['to']}", ratio)
    benchmarking.write_report(given.out, report)


def said(row: dict[str, Any]) -> str:
  """The figure of a row."""
  if "failed" in row:
    return f"failed: {row['failed']}"
  memory = "" if row["memory_gb"] is None else f", {row['memory_gb']:.1f} GB"
  return (
    f"{benchmarking.show(row['images_per_s'], '.0f')} images/s, {row['tflops']:.3g} TFLOP/s, "
    f"{row['share_of_ceiling']:.1%} of the matrix ceiling, compiled in {row['compile_s']:.0f} s"
    f"{memory}"
  )


def main() -> None:
  flags.DEFINE_list("sizes", ["128", "160", "192", "224", "288"], "Pixels.")
  flags.DEFINE_list("batches", ["256", "512", "128", "64"], "Of the device.")
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
