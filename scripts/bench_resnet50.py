"""Time a training step of ResNet-50 at every image size, here and in PyTorch, in turns.

    python scripts/bench_resnet50.py --sizes=128,160,192,224,288 --batches=256,512,128,64 \\
        --out=resnet50.json

A step is forward, backward and SGD with momentum and weight decay, on a batch of uint8 noise that
lies on the device. Ours is the step of `jaxspeed.train` on a stream, with its normalisation and its
accuracies. PyTorch's is torchvision's ResNet-50 (its like below where that is not installed)
with torch.compile, channels-last, autocast to bfloat16, cudnn.benchmark and fused SGD.

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
import json
import math
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
import rich
import rich.table

RATE, MOMENTUM, DECAY = 1e-4, 0.9, 1e-4
_STAGES = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
_CLASSES = 1000
_GHOST_IMAGES = 32
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_WARM_STEPS = 3
_MEMORY = "out of memory"
VARIANTS = ("lars", "blurpool", "ghost_norm")


@dataclasses.dataclass(frozen=True)
class Shape:
  """Side of the images, images per step, and the net that takes them."""

  size: int
  batch: int
  depth: int
  width: int
  precision: str


@dataclasses.dataclass(frozen=True)
class Contestant:
  """What is timed: "jaxspeed" with a variant of its step, or "torch"."""

  framework: str
  variant: str = "sgd"


@dataclasses.dataclass
class Timing:
  """A contestant at a shape: what preparing it cost, and the seconds per step of each turn."""

  prepared: dict[str, Any] = dataclasses.field(default_factory=dict)
  step_s: list[float] = dataclasses.field(default_factory=list)
  failed: str | None = None


class WorkerFailed(Exception):
  """A worker cannot do what it was asked; the message says why."""


def training_flops(depth: int, width: int, size: int) -> float:
  """Operations of a step per image, two per product: forward, and twice that backward.

  Products of padding count, as in published figures (4.1 x 10^9 products forward for ResNet-50 at
  224 pixels); the gradient of the image is not computed and does not count.
  """
  half = math.ceil(size / 2)
  stem = 7 * 7 * 3 * width * half**2
  side, inputs, total = math.ceil(half / 2), width, 0
  for stage, blocks in enumerate(_STAGES[depth]):
    features = width * 2**stage
    outputs = 4 * features if depth >= 50 else features
    for block in range(blocks):
      stride = 2 if block == 0 and stage > 0 else 1
      before, side = side, math.ceil(side / stride)
      if depth >= 50:
        total += inputs * features * before**2 + (9 * features + outputs) * features * side**2
      else:
        total += 9 * (inputs + features) * features * side**2
      if block == 0 and (stage > 0 or inputs != outputs):
        total += inputs * outputs * side**2
      inputs = outputs
  total += inputs * _CLASSES
  return 2.0 * (2 * stem + 3 * total)


# What runs in the workers.


def make_config(shape: Shape, variant: str) -> Any:
  """The config of a step: ImageNet's, with the one change of the variant."""
  from jaxspeed.config import fields

  config = fields.imagenet()
  # An epoch is one step here, so this gives the table a row for every step that is asked for.
  config.update(batch_size=shape.batch, precision=shape.precision, epochs=10_000.0)
  config.data.update(image_size=shape.size, train_images=shape.batch, classes=_CLASSES)
  config.data.update(mean=_MEAN, std=_STD)
  config.augment.flip = "none"
  config.model.update(depth=shape.depth, width=shape.width)
  config.optimizer.update(momentum=MOMENTUM, weight_decay=DECAY)
  config.schedule.update(peak=RATE, start=1.0, final=1.0, warmup=0.0)
  if variant == "lars":
    config.optimizer.name = "lars"
  elif variant == "blurpool":
    config.model.blurpool = True
  elif variant == "ghost_norm":
    config.model.ghost_splits = max(1, shape.batch // _GHOST_IMAGES)
  return config


def make_jax_step(shape: Shape, variant: str) -> tuple[Callable[[int], float], dict[str, Any]]:
  """A function that takes a number of steps and returns the last loss, and what it cost."""
  import jax
  import jax.numpy as jnp

  from jaxspeed.data.batch import Batch, seed_key
  from jaxspeed.devices import mesh as mesh_lib
  from jaxspeed.devices.compile import compile_program, use_cache
  from jaxspeed.planning.make import make_plan
  from jaxspeed.steps.init import init_state
  from jaxspeed.steps.losses import MetricSums
  from jaxspeed.steps.programs import batch_step, on_mesh
  from jaxspeed.steps.spec import make_train_spec
  from jaxspeed.steps.state import Carry

  config = make_config(shape, variant)
  use_cache("")
  mesh = mesh_lib.make_mesh(1)
  spec = make_train_spec(config, make_plan(config), mesh)
  key, first = jax.random.key(1), jnp.zeros((1, shape.size, shape.size, 3), jnp.uint8)
  init = jax.jit(on_mesh(init_state, spec))
  state = init(*mesh_lib.replicate((seed_key(0), first), mesh))
  carry = mesh_lib.replicate(Carry(state, MetricSums.zero()), mesh)
  batch = Batch(
    image=jax.random.bits(key, (shape.batch, shape.size, shape.size, 3), jnp.uint8),
    label=jax.random.randint(key, (shape.batch,), 0, _CLASSES, jnp.int32),
    mask=jnp.ones((shape.batch,), bool),
    flip=jnp.ones((shape.batch,), bool),
  )
  batch = jax.device_put(batch, mesh_lib.sharded(mesh))
  table = mesh_lib.replicate(spec.plan.table_in(jnp.float32), mesh)
  arguments = (batch, table)
  function = batch_step(spec)
  program = compile_program(
    function,
    jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), (carry, *arguments)
    ),
    donate=(0,),
  )

  def run(steps: int) -> float:
    nonlocal carry
    for _ in range(steps):
      carry, loss = program.call(carry, *arguments)
    return float(loss)

  return run, {
    "compile_s": program.seconds,
    "compile_cached": program.cached,
    "memory_gb": memory_gb(program.call),
    "parameters": sum(x.size for x in jax.tree.leaves(carry.state.params)),
    "implementation": f"jaxspeed, jax {jax.__version__}",
  }


def memory_gb(program: Any) -> float | None:
  """Memory that a compiled JAX program needs, in 10^9 bytes, arguments included."""
  memory = program.memory_analysis()
  if memory is None:
    return None
  held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
  return (held - memory.alias_size_in_bytes) / 1e9


def make_torch_net(depth: int, width: int) -> tuple[Any, str]:
  """A PyTorch ResNet and its origin: torchvision's if it has that net, else the one below."""
  if (depth, width) == (50, 64):
    # A torchvision built for another version of torch raises a RuntimeError.
    with contextlib.suppress(ImportError, RuntimeError):
      import torchvision

      net = torchvision.models.resnet50()
      return net, f"torchvision {torchvision.__version__}"
  return make_plain_net(depth, width), "bench_resnet50.py"


def make_plain_net(depth: int, width: int) -> Any:
  """ResNet v1.5 (He et al. 2015, stride in the 3x3) as torchvision has it."""
  import torch
  from torch import nn

  def unit(inputs, outputs, size, stride=1):
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)

  class Block(nn.Module):
    def __init__(self, inputs, features, stride):
      super().__init__()
      outputs = 4 * features if depth >= 50 else features
      if depth >= 50:
        first, second = unit(inputs, features, 1), unit(features, features, 3, stride)
        last = unit(features, outputs, 1)
        self.body = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *last)
      else:
        first, last = unit(inputs, features, 3, stride), unit(features, outputs, 3)
        self.body = nn.Sequential(*first, nn.ReLU(), *last)
      changes = stride > 1 or inputs != outputs
      shortcut = unit(inputs, outputs, 1, stride) if changes else [nn.Identity()]
      self.shortcut, self.relu = nn.Sequential(*shortcut), nn.ReLU()

    def forward(self, x):
      return self.relu(self.body(x) + self.shortcut(x))

  layers, inputs = [*unit(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
  for stage, blocks in enumerate(_STAGES[depth]):
    features = width * 2**stage
    for number in range(blocks):
      layers.append(Block(inputs, features, 2 if number == 0 and stage > 0 else 1))
      inputs = 4 * features if depth >= 50 else features
  net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, _CLASSES))
  for module in net.modules():
    if isinstance(module, nn.Conv2d):
      torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
  return net


def make_torch_step(shape: Shape, mode: str) -> tuple[Callable[[int], float], dict[str, Any]]:
  """As `make_jax_step`; `mode` is torch.compile's, or "eager" to compile nothing."""
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  torch.backends.cudnn.benchmark = True
  torch.manual_seed(0)
  net, implementation = make_torch_net(shape.depth, shape.width)
  net = net.to(device, memory_format=torch.channels_last)
  # As in imagenet18, and in ours: no decay of norms and biases.
  weights = [p for p in net.parameters() if p.ndim > 1]
  others = [p for p in net.parameters() if p.ndim == 1]
  optimizer = torch.optim.SGD(
    [{"params": weights, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
    RATE,
    MOMENTUM,
    fused=True,
  )
  images = torch.randint(
    0, 256, (shape.batch, 3, shape.size, shape.size), dtype=torch.uint8, device=device
  ).contiguous(memory_format=torch.channels_last)
  labels = torch.randint(0, _CLASSES, (shape.batch,), device=device)
  mean, std = (torch.tensor(x, device=device).view(1, 3, 1, 1) for x in (_MEAN, _STD))

  def loss_of(images, labels):
    with torch.autocast(device, torch.bfloat16, enabled=shape.precision == "bfloat16"):
      return torch.nn.functional.cross_entropy(net((images - mean) / std), labels)

  if mode != "eager":
    loss_of = torch.compile(loss_of, mode=mode, dynamic=False)

  def run(steps: int) -> float:
    for _ in range(steps):
      torch.compiler.cudagraph_mark_step_begin()
      loss = loss_of(images, labels)
      loss.backward()
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    return loss.item()

  start = time.perf_counter()
  run(1)
  compile_s = time.perf_counter() - start
  return run, {
    "compile_s": compile_s,
    "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    "parameters": sum(p.numel() for p in net.parameters()),
    "implementation": f"{implementation}, torch {torch.__version__}, {mode}",
  }


class Work:
  """Methods that a worker is asked for by name."""

  def __init__(self) -> None:
    self._runs: dict[str, Callable[[int], float]] = {}

  def prepare(self, contestant: dict, shape: dict, mode: str) -> dict[str, Any]:
    """Compiles a step and warms it up; `step_s` is a first estimate."""
    who, what = Contestant(**contestant), Shape(**shape)
    if who.framework == "torch":
      run, prepared = make_torch_step(what, mode)
    else:
      run, prepared = make_jax_step(what, who.variant)
    self._runs[who.variant] = run
    first_loss = run(1)
    return prepared | {"step_s": self.turn(who.variant, _WARM_STEPS)["step_s"], "loss": first_loss}

  def turn(self, variant: str, steps: int) -> dict[str, Any]:
    """Times some steps, after an untimed one; returns the seconds per step."""
    run = self._runs[variant]
    run(1)
    start = time.perf_counter()
    loss = run(steps)
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
      raise ValueError(f"the loss is {loss}")
    return {"step_s": seconds / steps}

  def ceiling(self, precision: str) -> dict[str, Any]:
    """Returns the rate of a matrix product, and the device."""
    from jaxspeed.records import provenance

    tflops = benchmarking.matrix_product_tflops(precision)
    return {"tflops": tflops, "device": provenance.describe_device()}


def is_out_of_memory(error: BaseException) -> bool:
  """Whether an error of JAX, PyTorch or NumPy says that it ran out of memory."""
  text = f"{type(error).__name__}: {error}"
  return bool(re.search(r"RESOURCE_EXHAUSTED|OutOfMemory|out of memory|MemoryError", text))


def serve() -> None:
  """Answers requests, a line of JSON each, until the input ends."""
  # Libraries print to standard output; the answers get a stream of their own.
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  work = Work()
  for line in sys.stdin:
    request = json.loads(line)
    try:
      answer = getattr(work, request.pop("do"))(**request)
    except Exception as error:  # any error is reported, so that the other rows go on
      said = [part for part in str(error).splitlines() if part.strip()] or [""]
      short = f"{type(error).__name__}: {said[0]}"[:300]
      answer = {"failed": _MEMORY if is_out_of_memory(error) else short}
    print(json.dumps(answer), file=answers, flush=True)


# What starts the workers.


class Worker:
  """A process that prepares and times contestants of one framework, and pauses in between.

  Args:
    seconds: the longest time for an answer.
  """

  def __init__(self, seconds: float) -> None:
    self._seconds = seconds
    self._process = subprocess.Popen(
      [sys.executable, __file__, "--worker"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      # JAX would reserve three quarters of the memory, but the other framework needs half of it.
      env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
    self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=self._read, daemon=True).start()

  def ask(self, do: str, **request: Any) -> dict[str, Any]:
    """Returns the answer of a method of `Work`.

    Raises:
      WorkerFailed: the worker reports a failure, has ended, or took too long.
    """
    assert self._process.stdin is not None
    try:
      self._process.stdin.write(json.dumps({"do": do} | request) + "\n")
      self._process.stdin.flush()
      line = self._answers.get(timeout=self._seconds)
    except queue.Empty:
      # Otherwise its late answer would be taken for the answer to the next request.
      self._kill()
      raise WorkerFailed(f"no answer within {self._seconds:g} s") from None
    except OSError:
      line = ""
    if not line:
      code = self._process.wait()
      # The kernel kills a process this way when the host runs out of memory.
      raise WorkerFailed(_MEMORY if code == -signal.SIGKILL else f"it ended with code {code}")
    answer = json.loads(line)
    if "failed" in answer:
      raise WorkerFailed(answer["failed"])
    return answer

  def close(self) -> None:
    """Ends it, by force if it is still there after ten seconds."""
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    try:
      self._process.wait(10)
    except subprocess.TimeoutExpired:
      self._kill()

  def _kill(self) -> None:
    self._process.kill()
    self._process.wait()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      self._answers.put(line)
    self._answers.put("")


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
  short = [c for c, timing in timings.items() if timing.failed == _MEMORY]
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
  parser.add_argument("--depth", type=int, default=50, choices=sorted(_STAGES))
  parser.add_argument("--width", type=int, default=64, help="of the net; 64 is ResNet's own")
  parser.add_argument("--answer_seconds", type=float, default=900, help="most, also to compile")
  parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the figures")
  parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
  flags = parser.parse_args()
  flags.variants_at = flags.variants_at or [(224, 256)]
  for flag, choices in (("frameworks", ("jaxspeed", "torch")), ("variants", VARIANTS)):
    if unknown := set(getattr(flags, flag)) - set(choices):
      parser.error(f"--{flag}: {', '.join(sorted(unknown))}; there are {', '.join(choices)}")
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
  if flags.worker:
    serve()
    return
  try:
    report = bench(flags)
  except WorkerFailed as error:
    sys.exit(f"the ceiling cannot be measured: {error}")
  print_report(report)


if __name__ == "__main__":
  main()
