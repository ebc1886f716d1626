"""Time a training step of ResNet-50 at every image size, here and in PyTorch, in turns.

    python scripts/bench_resnet50.py --sizes=128,160,192,224,288 --batches=256,512,128,64 \\
        --out=resnet50.json

A step is forward, backward and SGD with momentum and weight decay, on a batch of uint8 noise that
lies on the device. Ours is the step of `jaxspeed.train` on a stream, with its normalisation and its
accuracies. PyTorch's is torchvision's ResNet-50 (its like in resnet50_steps.py where that is not
installed) with torch.compile, channels-last, autocast to bfloat16, cudnn.benchmark and fused SGD.

Each framework has a process of its own for each size and batch; a process pauses while the other
computes. A framework that runs out of memory beside the other is timed again alone, and its row
says so; if it still runs out, the row says that. At --variants_at, ours is also timed with LARS,
with BlurPool and with ghost norm (of 32 images), in turns with SGD.

The report is written after every row: a benchmark that is cut off keeps what it has.
"""

import argparse
import contextlib
import dataclasses
import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
import rich
import rich.table
from resnet50_steps import STAGES, VARIANTS, Shape, training_flops
from resnet50_workers import MEMORY, Contestant, Worker, WorkerFailed


@dataclasses.dataclass
class Timing:
  """A contestant at a shape: what preparing it cost, and the seconds per step of each turn."""

  prepared: dict[str, Any] = dataclasses.field(default_factory=dict)
  step_s: list[float] = dataclasses.field(default_factory=list)
  failed: str | None = None


def time_in_turns(
  make_worker: Callable[[], Worker],
  shape: Shape,
  contestants: list[Contestant],
  *,
  mode: str,
  turns: int,
  turn_seconds: float,
) -> dict[Contestant, Timing]:
  """Timings of contestants, turn by turn, every other turn backwards."""
  timings = {contestant: Timing() for contestant in contestants}
  with contextlib.ExitStack() as stack:
    frameworks = dict.fromkeys(contestant.framework for contestant in contestants)
    workers = {f: stack.enter_context(contextlib.closing(make_worker())) for f in frameworks}
    for contestant, timing in timings.items():
      who, what = dataclasses.asdict(contestant), dataclasses.asdict(shape)
      with failing(timing):
        timing.prepared = workers[contestant.framework].ask(
          "prepare", contestant=who, shape=what, mode=mode
        )
    for number in range(turns):
      for contestant in contestants if number % 2 == 0 else reversed(contestants):
        timing = timings[contestant]
        if timing.failed is None:
          steps = max(1, round(turn_seconds / timing.prepared["step_s"]))
          with failing(timing):
            answer = workers[contestant.framework].ask(
              "turn", variant=contestant.variant, steps=steps
            )
            timing.step_s.append(answer["step_s"])
  return timings


@contextlib.contextmanager
def failing(timing: Timing) -> Iterator[None]:
  """Records a worker's failure in `timing`, and goes on."""
  try:
    yield
  except WorkerFailed as error:
    timing.failed = str(error)


def time_shape(
  time_them: Callable[[list[Contestant]], dict[Contestant, Timing]], contestants: list[Contestant]
) -> tuple[dict[Contestant, Timing], list[Contestant]]:
  """Timings of contestants beside each other, or alone where memory is short.

  Returns:
    Timings, and which contestants were timed alone.
  """
  timings = time_them(contestants)
  short = [c for c, timing in timings.items() if timing.failed == MEMORY]
  alone = short if len(contestants) > 1 else []
  for contestant in alone:
    timings |= time_them([contestant])
  return timings, alone


def rows_of(
  shape: Shape, timings: dict[Contestant, Timing], alone: list[Contestant], ceiling: float
) -> list[dict[str, Any]]:
  """A row for each contestant: images per second and operations, or why there are none."""
  rows = []
  for contestant, timing in timings.items():
    row: dict[str, Any] = {
      "size": shape.size,
      "batch": shape.batch,
      **dataclasses.asdict(contestant),
      "alone": contestant in alone,
      **timing.prepared,
    }
    row.pop("step_s", None)
    if timing.failed is not None:
      rows.append(row | {"failed": timing.failed})
      continue
    images_per_s = benchmarking.interval([shape.batch / seconds for seconds in timing.step_s])
    flops = training_flops(shape.depth, shape.width, shape.size)
    tflops = flops * images_per_s["mean"] / 1e12
    row |= {"images_per_s": images_per_s, "tflops": tflops, "share_of_ceiling": tflops / ceiling}
    rows.append(row)
  return rows


def ratios_of(
  shape: Shape, timings: dict[Contestant, Timing], baseline: Contestant
) -> list[dict[str, Any]]:
  """Ratios of the others' images per second to the baseline's, turn by turn."""
  base = timings[baseline]
  if base.failed is not None:
    return []
  return [
    {
      "size": shape.size,
      "batch": shape.batch,
      "of": f"{contestant.framework} {contestant.variant}",
      "to": f"{baseline.framework} {baseline.variant}",
      "ratio": benchmarking.ratio_of_rounds(base.step_s, timing.step_s),
    }
    for contestant, timing in timings.items()
    if contestant != baseline and timing.failed is None
  ]


def print_report(report: dict[str, Any]) -> None:
  title = f"{report['device']}, {report['net']}, {report['precision']}"
  table = rich.table.Table(
    "px", "batch", "", "images/s", "TFLOP/s", "of ceiling", "compile s", "GB", title=title
  )
  for row in report["rows"]:
    name = f"{row['framework']} {row['variant']}{', alone' if row['alone'] else ''}"
    where = str(row["size"]), str(row["batch"]), name
    if "failed" in row:
      table.add_row(*where, row["failed"])
      continue
    memory = "" if row["memory_gb"] is None else f"{row['memory_gb']:.1f}"
    rates = benchmarking.show(row["images_per_s"], ".0f"), f"{row['tflops']:.3g}"
    table.add_row(
      *where, *rates, f"{row['share_of_ceiling']:.1%}", f"{row['compile_s']:.0f}", memory
    )
  rich.print(table)
  for row in report["ratios"]:
    print(
      f"{row['size']} px, batch {row['batch']}: {row['of']} makes "
      f"{benchmarking.show(row['ratio'], '.3f')} x the images of {row['to']}"
    )
  print(f"ceiling: {report['ceiling_tflops']:.3g} TFLOP/s of a matrix product")


def parse_flags() -> argparse.Namespace:
  def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]

  def names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]

  def one_shape(text: str) -> tuple[int, int]:
    size, batch = text.split("x")
    return int(size), int(batch)

  parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
  parser.add_argument("--sizes", type=numbers, default=[128, 160, 192, 224, 288], help="pixels")
  parser.add_argument("--batches", type=numbers, default=[256, 512, 128, 64], help="of the device")
  parser.add_argument("--frameworks", type=names, default=["jaxspeed", "torch"])
  parser.add_argument(
    "--variants_at", type=one_shape, action="append", help="SIZExBATCH (224x256); repeatable"
  )
  parser.add_argument(
    "--variants", type=names, default=list(VARIANTS), help="of ours beside SGD; '': none"
  )
  parser.add_argument("--turns", type=int, default=5, help="of each, timed")
  parser.add_argument("--turn_seconds", type=float, default=1.0, help="about what a turn takes")
  parser.add_argument("--mode", default="default", help="of torch.compile, or eager")
  parser.add_argument("--precision", default="bfloat16", choices=["bfloat16", "float32"])
  parser.add_argument("--depth", type=int, default=50, choices=sorted(STAGES))
  parser.add_argument("--width", type=int, default=64, help="of the net; 64 is ResNet's own")
  parser.add_argument("--answer_seconds", type=float, default=900, help="most, also to compile")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  flags = parser.parse_args()
  flags.variants_at = flags.variants_at or [(224, 256)]
  for flag, choices in (("frameworks", ("jaxspeed", "torch")), ("variants", VARIANTS)):
    if unknown := set(getattr(flags, flag)) - set(choices):
      parser.error(f"--{flag}: {', '.join(sorted(unknown))}; there are {', '.join(choices)}")
  if flags.turns < 1:
    parser.error(f"--turns={flags.turns}: give at least 1")
  return flags


def bench(flags: argparse.Namespace) -> dict[str, Any]:
  """Runs the whole benchmark; returns its report, and writes it to --out."""

  def make_worker() -> Worker:
    return Worker(flags.answer_seconds)

  with contextlib.closing(make_worker()) as worker:
    ceiling = worker.ask("ceiling", precision=flags.precision)
  rows: list[dict[str, Any]] = []
  ratios: list[dict[str, Any]] = []
  report = {
    "what": "Training steps of ResNet-50 on noise, forward, backward and optimizer, ours and "
    "PyTorch's in turns on one machine; written by scripts/bench_resnet50.py.",
    "device": ceiling["device"],
    **benchmarking.environment(),
    "net": f"ResNet-{flags.depth}, width {flags.width}",
    "precision": flags.precision,
    "turns": flags.turns,
    "ceiling_tflops": ceiling["tflops"],
    "rows": rows,
    "ratios": ratios,
  }
  frameworks = [Contestant(framework) for framework in flags.frameworks]
  variants = [Contestant("jaxspeed", name) for name in ("sgd", *flags.variants)]
  jobs = [
    (size, batch, frameworks) for batch, size in itertools.product(flags.batches, flags.sizes)
  ]
  if flags.variants:
    jobs += [(size, batch, variants) for size, batch in flags.variants_at]
  for size, batch, contestants in jobs:
    shape = Shape(size, batch, flags.depth, flags.width, flags.precision)

    def time_them(them: list[Contestant], shape=shape) -> dict[Contestant, Timing]:
      limits = {"turns": flags.turns, "turn_seconds": flags.turn_seconds}
      return time_in_turns(make_worker, shape, them, mode=flags.mode, **limits)

    timings, alone = time_shape(time_them, contestants)
    found = rows_of(shape, timings, alone, ceiling["tflops"])
    # The baseline is PyTorch if it is there; among the variants it is SGD.
    ratios += ratios_of(shape, timings, contestants[-1 if contestants is frameworks else 0])
    rows += found
    for row in found:
      print(_line(row), flush=True)
    benchmarking.write_report(flags.out, report)
  return report


def _line(row: dict[str, Any]) -> str:
  what = row.get("failed") or f"{benchmarking.show(row['images_per_s'], '.1f')} images/s"
  return f"{row['size']} px, batch {row['batch']}, {row['framework']} {row['variant']}: {what}"


def main():
  flags = parse_flags()
  try:
    report = bench(flags)
  except WorkerFailed as error:
    sys.exit(f"the ceiling cannot be measured: {error}")
  print_report(report)


if __name__ == "__main__":
  main()
