"""Time whole runs of a CIFAR-10 recipe, and PyTorch's records beside them under the same clock.

    python scripts/bench_cifar.py --config=configs/cifar10.py --config.data.path=DATA \\
        --peer=cifar10-airbench --peer=cifar10-speedrun --out=cifar.json

In this order, and never two at once:

1. `jaxspeed.train` in its own Python process, once with an empty cache of programs (the first
   compilation), then --cold_starts times with that cache. These runs have no warm-up; they are
   timed from the start of Python to the accuracy. One that ends below the target has not reached
   it.
2. Each peer's script, unchanged, in its own process and scratch folder, to the end of its warm-up
   run, and `jaxspeed.train` to the end of its own. Then they are held (`run_held.py`).
3. --runs rounds of one of our runs and one of each peer's, every other round backwards. Seconds
   follow airbench's rule on both sides: whitening, training, final evaluation with its test-time
   augmentation; no compiling, loading, warm-up or validation between epochs. Peers time
   themselves by CUDA events; our clock is the host's, read when the device is done.
4. The matrix-product ceiling, and the operations of a run (`count_flops.py`).

The report is written after every run: a benchmark that is cut off keeps what it has.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import benchmarking
from absl import flags
from cifar_sides import (
  Ended,
  Ours,
  Peer,
  Side,
  find_peers,
  write_peer_images,
  write_recipe,
)
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of config.model
from jaxspeed.records.statistics import p_value_of_at_most

_COUNT_FLOPS = pathlib.Path(__file__).resolve().with_name("count_flops.py")


def time_starts(config: ConfigDict, starts: int, scratch: pathlib.Path) -> dict[str, Any]:
  """Compile and process seconds of one run with an empty cache and `starts` runs with that cache.

  Compile seconds are summed over the threads that compile side by side.

  Raises:
    UserError: a run failed.
  """
  recipe, workdir, results = write_recipe(config, scratch / "recipe.py"), scratch / "cold", []
  command = [sys.executable, "-m", "jaxspeed.train", f"--config={recipe}", "--config.warmup=off"]
  for _ in range(1 + starts):
    done = subprocess.run([*command, f"--workdir={workdir}"], capture_output=True, text=True)
    if done.returncode:
      said = benchmarking.last(done.stderr)
      raise UserError(f"jaxspeed.train ended with code {done.returncode}: {said}")
    results.append(json.loads((workdir / "result.json").read_text()))
    shutil.rmtree(workdir)
    print(f"a whole process: {results[-1]['seconds']['process']:.1f} s", flush=True)
  compiled = [result["seconds"]["compile"] for result in results]
  seconds = [result["seconds"]["process"] for result in results]
  accuracies = [result["top1"] for result in results[1:]]
  return {
    "compile_s": {
      "first": compiled[0]["cold"],
      "cached": [each["cached"] for each in compiled[1:]],
    },
    "process_s": {
      "first": seconds[0],
      "cached": seconds[1:],
      "to_target": [
        each if accuracy >= config.target else None
        for each, accuracy in zip(seconds[1:], accuracies, strict=True)
      ],
      "accuracy": accuracies,
    },
  }


def count_tflop(config: ConfigDict, folder: pathlib.Path) -> dict[str, float] | None:
  """10^12 operations of a run: as XLA counts them, and with the products of padding.

  Counts in a process of its own, without the GPU. If that fails, prints why and returns None.
  """
  counted = config.copy_and_resolve_references()
  counted.tune_on = "test"  # the resolved numbers of images are those without the hold-out
  recipe, out = write_recipe(counted, folder / "counted.py"), folder / "tflop.json"
  done = subprocess.run(
    [sys.executable, str(_COUNT_FLOPS), f"--config={recipe}", f"--out={out}"],
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
  )
  if done.returncode:
    print(f"operations are not counted: {benchmarking.last(done.stderr)}")
    return None
  counts = json.loads(out.read_text())
  return {
    "total": counts["tflop"]["total"],
    "with_padding": counts["tflop_with_padding"]["total"],
  }


def take_part(side: Side, do: Callable[[], None]) -> None:
  """Does something with a side, unless it has failed; a peer that fails is left out from then on.

  Raises:
    UserError: our own side failed.
  """
  if side.failed:
    return
  try:
    do()
  except Ended as error:
    if isinstance(side, Ours):
      raise UserError(f"jaxspeed.train: {error}") from None
    side.failed = str(error)
    side.close()
    print(f"{side.name} is left out from here on: {error}", flush=True)


def run_rounds(sides: list[Side], rounds: int, save: Callable[[], None]) -> None:
  """Lets the sides make their runs in turns; calls `save` after each run once there is one of ours.

  Args:
    sides: ours first.
    rounds: runs of each.
    save: what keeps the runs so far.
  """
  for number, side in benchmarking.turns(sides, rounds):
    take_part(side, lambda side=side, number=number: side.run(number))
    if sides[0].runs:
      save()


def report_of(sides: list[Side], target: float) -> dict[str, Any]:
  """The report on the rounds so far: each side, and the ratio of our seconds to each peer's."""
  summaries: dict[str, Any] = {side.name: {} for side in sides}
  ours = [run.seconds for run in sides[0].runs]
  for side in sides:
    summary = summaries[side.name]
    if side.runs:
      seconds = [run.seconds for run in side.runs]
      accuracies = [run.accuracy for run in side.runs]
      summary["seconds"] = benchmarking.interval(seconds)
      summary["accuracy"] = benchmarking.interval(accuracies)
      summary["runs"] = [dataclasses.asdict(run) for run in side.runs]
      if side is not sides[0]:
        mean = summaries[sides[0].name]["seconds"]["mean"]
        summary["ratio"] = mean / summary["seconds"]["mean"]
        summary["ratio_of_rounds"] = benchmarking.ratio_of_rounds(ours, seconds)
      elif len(ours) > 1:
        summary["accuracy"]["p_value"] = p_value_of_at_most(accuracies, target)
    if side.failed:
      summary["failed"] = side.failed
  summary = summaries.pop(sides[0].name)
  return {"n": len(ours), "target": target, "jaxspeed": summary, "peers": summaries}


def said_of(report: dict[str, Any]) -> list[tuple[str, str]]:
  """What was measured so far, each with its figure; accuracies in lines of their own."""
  found = []
  config = report["config"]
  if "starts" in report:
    seconds = report["starts"]["process_s"]
    cached = ", ".join(f"{each:.1f}" for each in seconds["cached"])
    figure = f"{seconds['first']:.1f} s with an empty cache, {cached} s with it"
    found.append((f"`{config}`, start of the process to the result", figure))
    reached = ["-" if each is None else f"{each:.1f}" for each in seconds["to_target"]]
    found.append((f"`{config}`, start to the target accuracy", f"{', '.join(reached)} s"))
  sides = {f"`{config}`": report.get("jaxspeed", {}), **report.get("peers", {})}
  for name, side in sides.items():
    if "seconds" in side:
      seconds = side["seconds"]
      figure = f"{benchmarking.show(seconds, '.3f')} s (n = {seconds['n']})"
      if "ratio_of_rounds" in side:
        ratio = benchmarking.show(side["ratio_of_rounds"], ".3f")
        figure += f"; ours takes {ratio} of its time"
      found.append((f"{name}, seconds of a run", figure))
      percent = benchmarking.show(side["accuracy"], ".3f", 100)
      found.append((f"{name}, accuracy", f"{percent} %"))
    if "failed" in side:
      found.append((name, f"failed: {side['failed']}"))
  if "achieved_tflops" in report:
    rate = (
      f"{report['achieved_tflops']:.3g} TFLOP/s, products of padding counted: "
      f"{report['share_of_ceiling']:.1%} of a matrix product's {report['ceiling_tflops']:.3g} in "
      f"{report['precision']}"
    )
    found.append((f"`{config}`, operations", rate))
  if report.get("memory_gb") is not None:
    found.append((f"`{config}`, peak memory", f"{report['memory_gb']:.2f} GB"))
  return found


def write(out: str, report: dict[str, Any]) -> None:
  benchmarking.write_report(out, report | {"said": said_of(report)})


def start_peers(
  given: Any, config: ConfigDict, scratch: pathlib.Path, stack: contextlib.ExitStack
) -> list[Side]:
  """The peers, each compiled and warmed up, one after another; the stack closes them."""
  scripts, peers = find_peers(given.peer), []
  if scripts:
    from jaxspeed.run.setup import open_data

    if problem := write_peer_images(open_data(config), scratch / "images"):
      print(f"the peers have no images: {problem}")
  for number, (name, script) in enumerate(scripts.items()):
    folder, start = scratch / f"peer_{number}", time.perf_counter()
    folder.mkdir()
    (folder / "cifar10").symlink_to(scratch / "images", target_is_directory=True)
    peer = Peer(name, script, folder, seconds=given.peer_seconds)
    stack.callback(peer.close)
    take_part(peer, peer.warm_up)
    if not peer.failed:
      print(f"{name}: compiled and warmed up in {time.perf_counter() - start:.1f} s", flush=True)
    peers.append(peer)
  return peers


def bench(config: ConfigDict, given: Any, scratch: pathlib.Path) -> dict[str, Any]:
  """Runs the whole benchmark; returns its report, and writes it to --out.

  Args:
    config: the recipe's.
    given: the values of the flags.
    scratch: an empty folder.

  Raises:
    UserError: a mistake in the config, or our own run failed.
  """
  # A new cache, so that the first compilation does compile.
  config.compile_cache = config.compile_cache or str(scratch / "programs")
  report: dict[str, Any] = {
    "what": "Whole runs by airbench's clock (whitening, training, final evaluation), ours and the "
    "peers' in turns on one machine; written by scripts/bench_cifar.py.",
    "config": config.name,
  } | benchmarking.environment()
  find_peers(given.peer)  # so that a mistake is told at once
  if given.cold_starts:
    report["starts"] = time_starts(config, given.cold_starts, scratch)
    write(given.out, report)
  with contextlib.ExitStack() as stack:
    peers = start_peers(given, config, scratch, stack)
    alone = all(peer.failed for peer in peers)
    ours = stack.enter_context(
      contextlib.closing(Ours(config, given.runs, scratch / "ours", alone=alone))
    )
    sides = [ours, *peers]

    def save() -> None:
      report["device"] = ours.result["device"]
      write(given.out, report | report_of(sides, config.target))

    take_part(ours, ours.warm_up)
    run_rounds(sides, given.runs, save)
  resolved = ours.config
  report |= report_of(sides, config.target) | {
    "precision": resolved.precision,
    "memory_gb": ours.memory_gb,
    "ceiling_tflops": benchmarking.matrix_product_tflops(resolved.precision),
    "tflop": count_tflop(resolved, scratch),
  }
  if report["tflop"]:
    # Products of padding count, as in published figures: a GPU computes them too.
    achieved = report["tflop"]["with_padding"] / report["jaxspeed"]["seconds"]["mean"]
    share = achieved / report["ceiling_tflops"]
    report |= {"achieved_tflops": achieved, "share_of_ceiling": share}
  write(given.out, report)
  return report


def main() -> None:
  config_flag = command_line.define_config_flag()
  flags.DEFINE_integer("runs", 20, "Runs of each side.", lower_bound=1)
  flags.DEFINE_integer(
    "cold_starts", 3, "Whole processes with a warm cache; 0: not even the first.", lower_bound=0
  )
  flags.DEFINE_multi_string(
    "peer", [], "A PyTorch script, or a folder with airbench's or hiverge's; may be repeated."
  )
  flags.DEFINE_float("peer_seconds", 600, "Most that a peer's run may take.")
  benchmarking.define_out()

  def run(scratch: pathlib.Path) -> None:
    config = config_flag.value
    if config is None:
      raise UserError("--config=FILE.py names the recipe to time, as in configs/cifar10.py.")
    if config.data.feed != "resident":
      raise UserError(f"config.data.feed={config.data.feed!r}: only sets in memory are timed here.")
    if config.runs != 1:
      raise UserError(f"config.runs={config.runs}: say --runs={config.runs} here.")
    for what, figure in said_of(bench(config, flags.FLAGS, scratch)):
      print(f"{what}: {figure}")

  benchmarking.run(run)


if __name__ == "__main__":
  main()
