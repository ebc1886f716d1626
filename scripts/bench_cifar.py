"""Time whole runs of a CIFAR-10 recipe, and PyTorch's records beside them under the same clock.

    python scripts/bench_cifar.py --config=configs/cifar10.py --config.data.path=DATA \\
        --peer=cifar10-airbench --peer=cifar10-speedrun --out=cifar.json

In this order, and never two at once:

1. `jaxspeed.train` in its own Python process, once with an empty cache of programs (the first
   compilation), then --cold_starts times with that cache. These runs have no warm-up; they are
   timed from the start of Python to the accuracy. One that ends below the target has not reached
   it. --cold_starts=0 leaves them out, and programs come from the usual cache.
2. `jaxspeed.train`, to the end of its warm-up; then it is held (`run_held.py`).
3. Peer after peer: its script, unchanged, in its own process and scratch folder, to the end of its
   warm-up run; then --runs rounds of one of our runs and one of the peer's, every other round
   backwards. Without peers, --runs of our runs. Seconds follow airbench's rule on both sides:
   whitening, training, final evaluation with its test-time augmentation; no compiling, loading,
   warm-up or validation between epochs. Peers time themselves by CUDA events; our clock is the
   host's, read when the device is done.
4. The matrix-product ceiling, and the operations of a run (`count_flops.py`).

The report is written after every step: a benchmark that is cut off keeps what it has.
"""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import benchmarking
from absl import flags
from cifar_sides import Ended, Run, Runs, find_peers, ours, peer, write_peer_images
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.config import stored as stored_lib
from jaxspeed.config.checks import to_flags
from jaxspeed.errors import UserError
from jaxspeed.records.statistics import p_value_of_at_most

Report = benchmarking.Report
_COUNT_FLOPS = pathlib.Path(__file__).resolve().with_name("count_flops.py")


def time_starts(
  train: list[str], starts: int, report: Report, scratch: pathlib.Path, out: str
) -> None:
  """Adds one run with an empty cache and `starts` runs with that cache to the report.

  Compile seconds are summed over the threads that compile side by side.

  Args:
    train: the arguments of Python for a run, which name the cache.
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


def summary_of(runs: list[Run]) -> dict[str, Any]:
  """Runs, with the means of their seconds and accuracies."""
  if not runs:
    return {}
  return {
    "seconds": benchmarking.interval([run.seconds for run in runs]),
    "accuracy": benchmarking.interval([run.accuracy for run in runs]),
    "runs": [dataclasses.asdict(run) for run in runs],
  }


class Rounds:
  """Our runs so far, which a report gets, alone or in turns with a peer's.

  Args:
    ours: our runs, one at each `next`, after the warm-up.
    rounds: how many of each in `take`.
    report: written to `out` after each run.
  """

  def __init__(self, ours: Runs, rounds: int, report: Report, out: str) -> None:
    self._ours, self._rounds, self._report, self._out = ours, rounds, report, out
    self._runs: list[Run] = []

  def take(self, name: str = "", peer: Runs | None = None) -> None:
    """Takes some rounds of our runs, in turns with those of the peer that is named."""
    before, theirs = len(self._runs), list[Run]()
    sides = [(self._ours, self._runs), *([(peer, theirs)] if peer else [])]
    for _, (side, runs) in benchmarking.turns(sides, self._rounds):
      run = next(side)
      assert run is not None
      runs.append(run)
      self._save(name, self._runs[before:], theirs)

  def _save(self, name: str, ours: list[Run], theirs: list[Run]) -> None:
    report, summary = self._report, summary_of(self._runs)
    accuracies = [run.accuracy for run in self._runs]
    if len(accuracies) > 1:
      summary["accuracy"]["p_value"] = p_value_of_at_most(accuracies, report["target"])
    report |= {"n": len(accuracies), "jaxspeed": summary}
    if theirs:
      seconds = [[run.seconds for run in runs] for runs in (ours, theirs)]
      report["peers"][name] = summary_of(theirs)
      if ours:
        ratio = benchmarking.ratio_of_rounds(*seconds)
        report["peers"][name] |= {
          "ours": benchmarking.interval(seconds[0]),
          "ratio_of_rounds": ratio,
        }
    write(self._out, report)


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


def write(out: str, report: Report) -> None:
  benchmarking.write_report(out, report | {"said": said_of(report)})


def run_beside(
  name: str, script: pathlib.Path, rounds: Rounds, report: Report, scratch: pathlib.Path
) -> None:
  """Our runs and a peer's in turns; a peer that fails is left out from then on.

  Args:
    name: the peer's in the report.
    script: its file.
    rounds: of our side, held.
    report: says why it failed, if so.
    scratch: a folder that holds images/ for the peer.

  Raises:
    UserError: our own side failed.
  """
  start, folder = time.perf_counter(), scratch / name.replace("/", "_")
  folder.mkdir()
  (folder / "cifar10").symlink_to(scratch / "images", target_is_directory=True)
  print(f"{name}: compiles and warms up", flush=True)
  try:
    with peer(script, folder) as runs:
      next(runs)
      print(f"{name}: warm after {time.perf_counter() - start:.1f} s", flush=True)
      rounds.take(name, runs)
  except Ended as error:
    report["peers"].setdefault(name, {})["failed"] = str(error)
    print(f"{name} is left out from here on: {error}", flush=True)


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
    # On the command line, since a stored config names no cache; a new one, so that the first
    # compilation does compile.
    train.append(f"--config.compile_cache={scratch / 'programs'}")
  report: Report = {
    "what": "Whole runs by airbench's clock (whitening, training, final evaluation), ours and the "
    "peers' in turns on one machine; written by scripts/bench_cifar.py.",
    "config": config.name,
    "target": config.target,
    "peers": {},
  } | benchmarking.environment()
  peers = find_peers(given.peer)
  if given.cold_starts:
    time_starts(train, given.cold_starts, report, scratch, given.out)
  if peers:
    from jaxspeed.run.setup import open_data

    if problem := write_peer_images(open_data(config), scratch / "images"):
      print(f"the peers have no images: {problem}")
  number, workdir = given.runs * max(1, len(peers)), scratch / "runs"
  with ours(train, number, workdir, report, alone=not peers) as runs:
    print("jaxspeed: compiles and warms up", flush=True)
    next(runs)
    resolved = stored_lib.load(workdir / "config.json")
    rounds = Rounds(runs, given.runs, report, given.out)
    for name, script in peers.items():
      run_beside(name, script, rounds, report, scratch)
    if all("runs" not in each for each in report["peers"].values()):
      rounds.take()
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
