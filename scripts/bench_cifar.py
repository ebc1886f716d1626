"""Time whole runs of a CIFAR-10 recipe, and of PyTorch's records behind them under the same clock.

    python scripts/bench_cifar.py --config=configs/cifar10.py --config.data.path=DATA \\
        --peer=cifar10-airbench --peer=cifar10-speedrun --out=cifar.json

In this order, and never two at once:

1. `jaxspeed.train` in its own Python process, once with an empty cache of programs (the first
   compilation), then --cold_starts times with that cache. These runs have no warm-up; they are
   timed from the start of Python to the accuracy. One that ends below the target has not reached
   it. --cold_starts=0 leaves them out, and programs come from the usual cache.
2. --runs of `jaxspeed.train`, in one process and after one warm-up.
3. Peer after peer: its script, unchanged, in its own process and scratch folder, until it has made
   as many runs after its first one, which warms up. Seconds follow airbench's rule on both sides:
   whitening, training, final evaluation with its test-time augmentation; no compiling, loading,
   warm-up or validation between epochs. Peers time themselves by CUDA events; our clock is the
   host's, read when the device is done.
4. The matrix-product ceiling, and the operations of a run (`count_flops.py`).

The report is written after every run: a benchmark that is cut off keeps what it has.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import benchmarking
from absl import flags
from cifar_peers import Ended, Run, find_peers, peer_runs, printed_by, write_peer_images
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.config import stored as stored_lib
from jaxspeed.config.checks import to_flags
from jaxspeed.errors import UserError
from jaxspeed.records.statistics import p_value_of_at_most
from jaxspeed.records.writer import read_metrics

Report = benchmarking.Report
_COUNT_FLOPS = pathlib.Path(__file__).resolve().with_name("count_flops.py")


def time_starts(
  train: list[str], starts: int, report: Report, scratch: pathlib.Path, out: str
) -> None:
  """Adds one run with an empty cache and `starts` runs with that cache to the report.

  Compile seconds are summed over the threads that compile side by side.

  Args:
    train: the arguments of Python for a run.
    starts: number of runs after the first.
    report: written to `out` after each.
    scratch: a folder.

  Raises:
    UserError: a run failed.
  """
  workdir, report["starts"] = scratch / "cold", []
  for _ in range(1 + starts):
    command = [sys.executable, *train, "--config.warmup=off", f"--workdir={workdir}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
      said = benchmarking.last(done.stderr)
      raise UserError(f"jaxspeed.train ended with code {done.returncode}: {said}")
    result = json.loads((workdir / "result.json").read_text())
    shutil.rmtree(workdir)
    seconds = result["seconds"]
    start = {"process_s": seconds["process"], "compile_s": seconds["compile"]}
    report["starts"].append(start | {"accuracy": result["top1"]})
    print(f"a whole process: {seconds['process']:.1f} s", flush=True)
    write(out, report)


def count_tflop(recipe: list[str], resolved: ConfigDict, folder: pathlib.Path) -> float | None:
  """10^12 operations of a run, by `count_flops.py` in a process of its own, without the GPU.

  If that fails, prints why and returns None.
  """
  out, data = folder / "tflop.json", resolved.data
  # The numbers of images that the run has counted, which are those without the hold-out.
  images = {"data.train_images": data.train_images, "data.eval_images": data.eval_images}
  command = [sys.executable, str(_COUNT_FLOPS), *recipe, *to_flags(images | {"tune_on": "test"})]
  done = subprocess.run([*command, f"--out={out}"], capture_output=True, text=True)
  if done.returncode:
    print(f"operations are not counted: {benchmarking.last(done.stderr)}")
    return None
  total: float = json.loads(out.read_text())["tflop_with_padding"]["total"]
  return total


def summary_of(runs: Sequence[Run]) -> dict[str, Any]:
  """Runs, with the means of their seconds and accuracies."""
  return {
    "seconds": benchmarking.interval([run.seconds for run in runs]),
    "accuracy": benchmarking.interval([run.accuracy for run in runs]),
    "runs": [dataclasses.asdict(run) for run in runs],
  }


def time_ours(train: list[str], runs: int, report: Report, workdir: pathlib.Path, out: str) -> None:
  """Adds our runs, with their device and its peak memory (None: not known), to the report.

  Args:
    train: the arguments of Python for a run, without runs and --workdir.
    runs: how many, in one process.
    report: written to `out` after each.
    workdir: a folder that is not there yet.

  Raises:
    UserError: they failed.
  """
  print("jaxspeed: compiles and warms up", flush=True)
  arguments = [*train, f"--config.runs={runs}", f"--workdir={workdir}"]
  done = 0
  try:
    for _ in itertools.chain(printed_by(arguments, pathlib.Path.cwd()), [""]):
      files = [*workdir.glob("run_*/result.json")] or [*workdir.glob("result.json")]
      if len(files) > done:
        done = len(files)
        add_ours(report, sorted(file.parent for file in files))
        write(out, report)
  except Ended as error:
    raise UserError(f"jaxspeed.train: {error}") from None


def add_ours(report: Report, folders: list[pathlib.Path]) -> None:
  """Adds our runs in some folders to the report."""
  results = [json.loads((folder / "result.json").read_text()) for folder in folders]
  summary = summary_of([Run(each["seconds"]["train"], each["top1"]) for each in results])
  if len(results) > 1:
    accuracies = [each["top1"] for each in results]
    summary["accuracy"]["p_value"] = p_value_of_at_most(accuracies, report["target"])
  memory = read_metrics(folders[-1])[-1].get("memory_gb")
  report |= {"n": len(results), "jaxspeed": summary}
  report |= {"device": results[-1]["device"], "memory_gb": memory}


def said_of(report: Report) -> list[tuple[str, str]]:
  """What was measured so far, each with its figure; accuracies in lines of their own."""
  found = []
  config = report["config"]
  if "starts" in report:
    first, *cached = report["starts"]
    listed = ", ".join(f"{start['process_s']:.1f}" for start in cached)
    figure = f"{first['process_s']:.1f} s with an empty cache, {listed or '-'} s with it"
    found.append((f"`{config}`, start of the process to the result", figure))
    reached = [s["process_s"] for s in cached if s["accuracy"] >= report["target"]]
    figure = f"{', '.join(f'{s:.1f}' for s in reached)} s ({len(reached)} of {len(cached)})"
    found.append((f"`{config}`, start to the target accuracy, full cache", figure))
  ours = report.get("jaxspeed", {})
  sides = {f"`{config}`": ours, **report.get("peers", {})}
  for name, side in sides.items():
    if "seconds" in side:
      seconds = side["seconds"]
      figure = f"{benchmarking.show(seconds, '.3f')} s (n = {seconds['n']})"
      if side is not ours:
        figure += f"; ours takes {ours['seconds']['mean'] / seconds['mean']:.3f} of its time"
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


def write(out: str, report: Report) -> None:
  benchmarking.write_report(out, report | {"said": said_of(report)})


def time_peer(
  name: str, script: pathlib.Path, runs: int, report: Report, scratch: pathlib.Path, out: str
) -> None:
  """Adds a peer's runs to the report, and why it failed, if so.

  Args:
    name: the peer's in the report.
    script: its file.
    runs: how many, after its warm-up.
    report: written to `out` after each.
    scratch: a folder that holds images/ for the peer.
  """
  folder, theirs = scratch / name.replace("/", "_"), list[Run]()
  folder.mkdir()
  (folder / "cifar10").symlink_to(scratch / "images", target_is_directory=True)
  print(f"{name}: compiles and warms up", flush=True)
  try:
    with contextlib.closing(peer_runs(script, folder)) as found:
      for run in itertools.islice(found, 1, runs + 1):
        theirs.append(run)
        report["peers"][name] = summary_of(theirs)
        write(out, report)
    if len(theirs) < runs:
      raise Ended(f"its process ended after {len(theirs)} of {runs} runs")
  except Ended as error:
    report["peers"].setdefault(name, {})["failed"] = str(error)
    write(out, report)
    print(f"{name}: {error}", flush=True)


def bench(
  config: ConfigDict, recipe: list[str], given: Any, scratch: pathlib.Path
) -> dict[str, Any]:
  """Runs the whole benchmark; returns its report, and writes it to --out.

  Args:
    config: the recipe's.
    recipe: the words of a command line that name it, with what it overrides.
    given: the values of the flags.
    scratch: an empty folder.

  Raises:
    UserError: a mistake in the config, or our own run failed.
  """
  train = ["-m", "jaxspeed.train", *recipe]
  if given.cold_starts:
    # A new cache, so that the first compilation does compile.
    os.environ["JAXSPEED_COMPILE_CACHE"] = str(scratch / "programs")
  report: Report = {
    "what": "Whole runs by airbench's clock (whitening, training, final evaluation), ours and then "
    "the peers' on one machine; written by scripts/bench_cifar.py.",
    "config": config.name,
    "target": config.target,
    "peers": {},
  } | benchmarking.environment()
  peers = find_peers(given.peer)
  if given.cold_starts:
    time_starts(train, given.cold_starts, report, scratch, given.out)
  workdir = scratch / "runs"
  time_ours(train, given.runs, report, workdir, given.out)
  resolved = stored_lib.load(workdir / "config.json")
  if peers:
    from jaxspeed.run.setup import open_data

    if problem := write_peer_images(open_data(config), scratch / "images"):
      print(f"the peers have no images: {problem}")
  for name, script in peers.items():
    time_peer(name, script, given.runs, report, scratch, given.out)
  report |= {
    "precision": resolved.precision,
    "ceiling_tflops": benchmarking.matrix_product_tflops(resolved.precision),
  }
  write(given.out, report)
  # Last, as it takes seconds in which the device has nothing to do.
  if tflop := count_tflop(recipe, resolved, scratch):
    achieved = tflop / report["jaxspeed"]["seconds"]["mean"]
    share = achieved / report["ceiling_tflops"]
    report |= {"tflop": tflop, "achieved_tflops": achieved, "share_of_ceiling": share}
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
  benchmarking.define_out()

  def run(scratch: pathlib.Path) -> None:
    config = config_flag.value
    if config is None:
      raise UserError("--config=FILE.py names the recipe to time, as in configs/cifar10.py.")
    if config.data.feed != "resident":
      raise UserError(f"config.data.feed={config.data.feed!r}: only sets in memory are timed here.")
    if config.runs != 1:
      raise UserError(f"config.runs={config.runs}: say --runs={config.runs} here.")
    recipe = [f"--config={flags.FLAGS['config'].value}", *to_flags(config_flag.overrides)]
    for what, figure in said_of(bench(config, recipe, flags.FLAGS, scratch)):
      print(f"{what}: {figure}")

  benchmarking.run(run)


if __name__ == "__main__":
  main()
