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
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
from absl import flags
from cifar_sides import Ours, Peer, Run, find_peers, write_peer_images, write_recipe
from held_processes import Ended, last_line
from ml_collections import ConfigDict

from jaxspeed.cluster.signals import exit_on_sigterm
from jaxspeed.config import flags as command_line
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of config.model
from jaxspeed.records.statistics import p_value_of_at_most

_COUNT_FLOPS = pathlib.Path(__file__).resolve().with_name("count_flops.py")


def start_cold(recipe: pathlib.Path, workdir: pathlib.Path) -> dict[str, Any]:
  """Runs a whole training in its own Python process, without a warm-up; returns its result.json.

  Raises:
    UserError: the run failed.
  """
  command = [sys.executable, "-m", "jaxspeed.train", f"--config={recipe}", f"--workdir={workdir}"]
  done = subprocess.run([*command, "--config.warmup=off"], capture_output=True, text=True)
  if done.returncode:
    raise UserError(f"jaxspeed.train ended with code {done.returncode}: {last_line(done.stderr)}")
  result = json.loads((workdir / "result.json").read_text())
  shutil.rmtree(workdir)
  return result


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
    print(f"operations are not counted: {last_line(done.stderr)}")
    return None
  counts = json.loads(out.read_text())
  return {
    "total": counts["tflop"]["total"],
    "with_padding": counts["tflop_with_padding"]["total"],
  }


@contextlib.contextmanager
def dropping(name: str, peers: dict[str, Peer], failed: dict[str, str]) -> Iterator[None]:
  """Closes a peer that fails, so that the benchmark goes on without it."""
  try:
    yield
  except Ended as error:
    failed[name] = str(error)
    print(f"{name} is left out from here on: {error}", flush=True)
    peers.pop(name).close()


@contextlib.contextmanager
def warmed_peers(
  scripts: dict[str, pathlib.Path], folder: pathlib.Path, seconds: float, failed: dict[str, str]
) -> Iterator[dict[str, Peer]]:
  """Warms the peers up one after another; yields those that succeed, adds others to `failed`."""
  peers: dict[str, Peer] = {}
  try:
    for name, script in scripts.items():
      own = folder / f"peer_{len(peers) + len(failed)}"
      own.mkdir()
      (own / "cifar10").symlink_to(folder / "images", target_is_directory=True)
      peers[name], start = Peer(script, own, seconds=seconds), time.perf_counter()
      with dropping(name, peers, failed):
        peers[name].warm_up()
        seconds_taken = time.perf_counter() - start
        print(f"{name}: compiled and warmed up in {seconds_taken:.1f} s", flush=True)
    yield peers
  finally:
    for peer in peers.values():
      peer.close()


def run_rounds(
  ours: Any,
  peers: dict[str, Peer],
  failed: dict[str, str],
  rounds: int,
  save: Callable[[dict[str, list[Run]]], None],
) -> dict[str, list[Run]]:
  """Returns the runs of "jaxspeed" and of each peer; calls `save` after each run."""
  runs: dict[str, list[Run]] = {name: [] for name in ("jaxspeed", *peers)}
  for number, name in benchmarking.turns(list(runs), rounds):
    if name == "jaxspeed":
      runs[name].append(ours.run(number))
    elif name in peers:
      with dropping(name, peers, failed):
        runs[name].append(peers[name].run(number))
    if runs["jaxspeed"]:
      save(runs)
  return runs


def check(config: ConfigDict | None) -> ConfigDict:
  """Returns the config, or raises a UserError if it cannot be timed here."""
  if config is None:
    raise UserError("--config=FILE.py names the recipe to time, as in configs/cifar10.py.")
  if config.data.feed != "resident":
    raise UserError(f"config.data.feed={config.data.feed!r}: only sets in memory are timed here.")
  if config.runs != 1:
    raise UserError(f"config.runs={config.runs}: say --runs={config.runs} here.")
  return config


def time_starts(config: ConfigDict, starts: int, scratch: pathlib.Path) -> dict[str, Any]:
  """Compile and process seconds of one run with an empty cache and `starts` runs with that cache.

  Compile seconds are summed over the threads that compile side by side.
  """
  recipe, results = write_recipe(config, scratch / "recipe.py"), []
  for _ in range(1 + starts):
    results.append(start_cold(recipe, scratch / "cold"))
    print(f"a whole process: {results[-1]['seconds']['process']:.1f} s", flush=True)
  first, *warm = results
  return {
    "compile_s": {
      "first": first["seconds"]["compile"]["cold"],
      "cached": [result["seconds"]["compile"]["cached"] for result in warm],
    },
    "process_s": {
      "first": first["seconds"]["process"],
      "cached": [result["seconds"]["process"] for result in warm],
      "to_target": [
        result["seconds"]["process"] if result["top1"] >= config.target else None for result in warm
      ],
      "accuracy": [result["top1"] for result in warm],
    },
  }


def summarize(runs: list[Run]) -> dict[str, Any]:
  """Means with their intervals, and the runs themselves."""
  return {
    "seconds": benchmarking.interval([run.seconds for run in runs]),
    "accuracy": benchmarking.interval([run.accuracy for run in runs]),
    "runs": [dataclasses.asdict(run) for run in runs],
  }


def report_of(runs: dict[str, list[Run]], failed: dict[str, str], target: float) -> dict[str, Any]:
  """The report on the rounds so far: each side, and the ratio of our seconds to each peer's."""
  ours = runs["jaxspeed"]
  summary = summarize(ours)
  if len(ours) > 1:
    accuracies = [run.accuracy for run in ours]
    summary["accuracy"]["p_value"] = p_value_of_at_most(accuracies, target)
  peers: dict[str, Any] = {}
  for name, theirs in runs.items():
    if theirs and theirs is not ours:
      peers[name] = summarize(theirs)
      seconds = [run.seconds for run in ours], [run.seconds for run in theirs]
      peers[name]["ratio"] = summary["seconds"]["mean"] / peers[name]["seconds"]["mean"]
      peers[name]["ratio_of_rounds"] = benchmarking.ratio_of_rounds(*seconds)
  for name, reason in failed.items():
    peers.setdefault(name, {})["failed"] = reason
  return {"n": len(ours), "target": target, "jaxspeed": summary, "peers": peers}


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


def bench(config: ConfigDict, given: Any, scratch: pathlib.Path) -> dict[str, Any]:
  """Runs the whole benchmark; returns its report, and writes it to --out.

  Args:
    given: the values of the flags.

  Raises:
    UserError: a mistake in the config, or our own run failed.
  """
  scripts = find_peers(given.peer)
  # A new cache, so that the first compilation does compile.
  config.compile_cache = config.compile_cache or str(scratch / "programs")
  report: dict[str, Any] = {
    "what": "Whole runs by airbench's clock (whitening, training, final evaluation), ours and the "
    "peers' in turns on one machine; written by scripts/bench_cifar.py.",
    "config": config.name,
  } | benchmarking.environment()
  if given.cold_starts:
    report["starts"] = time_starts(config, given.cold_starts, scratch)
    write(given.out, report)
  failed: dict[str, str] = {}
  if scripts:
    from jaxspeed.run.setup import open_data

    problem = write_peer_images(open_data(config), scratch / "images")
    if problem:
      print(f"the peers have no images: {problem}")
  with warmed_peers(scripts, scratch, given.peer_seconds, failed) as peers:
    alone = not peers
    with contextlib.closing(Ours(config, given.runs, scratch / "ours", alone=alone)) as ours:

      def save(runs):
        report["device"] = ours.result["device"]
        write(given.out, report | report_of(runs, failed, config.target))

      try:
        ours.warm_up()
        runs = run_rounds(ours, peers, failed, given.runs, save)
      except Ended as error:
        raise UserError(f"jaxspeed.train: {error}") from None
  resolved = ours.config
  report |= report_of(runs, failed, config.target) | {
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

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    config = check(config_flag.value)
    with exit_on_sigterm(), tempfile.TemporaryDirectory() as scratch:
      for what, figure in said_of(bench(config, flags.FLAGS, pathlib.Path(scratch).resolve())):
        print(f"{what}: {figure}")

  command_line.run(run)


if __name__ == "__main__":
  main()
