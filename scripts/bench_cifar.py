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

The report is written after every round: a benchmark that is cut off keeps what it has.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import benchmarking
import numpy as np
import rich
import rich.table
from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import flags as command_line
from jaxspeed.config import stored as stored_lib
from jaxspeed.errors import UserError
from jaxspeed.models import make  # noqa: F401  registers the families of config.model
from jaxspeed.records.statistics import p_value_of_at_most
from jaxspeed.records.writer import read_metrics

_SCRIPTS = pathlib.Path(__file__).resolve().parent
_PEER_SCRIPTS = ("airbench94_muon.py", "cifar10_speedrun.py")
_RECIPE = """\
import pathlib
from jaxspeed.config import stored
def get_config():
  return stored.load(pathlib.Path({path!r}))
"""
# The row that airbench prints after a run; the line that `jaxspeed.train` prints before one.
_END_OF_RUN = r"\|.*\|\s*eval\s*\|"
_START_OF_RUN = r"run \d+ of \d+, seed"
_MOST_SECONDS = 600.0  # for our compilation, or one of our runs
_PEER_IMAGES = """\
import numpy, torch
for split in ("train", "test"):
  images, labels = (torch.from_numpy(numpy.load(f"{split}_{x}.npy")) for x in ("images", "labels"))
  classes = [str(i) for i in range(int(labels.max()) + 1)]
  torch.save({"images": images, "labels": labels.long(), "classes": classes}, f"{split}.pt")
"""


class Ended(Exception):
  """A held process ended or fell silent; the message says how."""


@dataclasses.dataclass(frozen=True)
class Options:
  """Values of the flags: see `main`."""

  runs: int
  cold_starts: int
  peers: list[str]
  peer_seconds: float
  out: pathlib.Path | None


@dataclasses.dataclass(frozen=True)
class Run:
  """Seconds of one run by airbench's rule, and its accuracy as a fraction."""

  seconds: float
  accuracy: float


class Held:
  """A process that pauses after each line that matches a pattern (`run_held.py`).

  Args:
    arguments: what to run: the arguments of run_held.py after the pattern.
    pattern: regular expression of the lines.
    folder: where it runs.
    seconds: the longest time from one such line to the next.
    environment: variables to add.
  """

  def __init__(
    self,
    arguments: list[str],
    *,
    pattern: str,
    folder: pathlib.Path,
    seconds: float,
    environment: dict[str, str] | None = None,
  ) -> None:
    self._pattern, self._seconds = re.compile(pattern), seconds
    self._errors = tempfile.TemporaryFile("w+")
    self._process = subprocess.Popen(
      [sys.executable, str(_SCRIPTS / "run_held.py"), pattern, *arguments],
      cwd=folder,
      env=os.environ | (environment or {}),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=self._errors,
      text=True,
    )
    self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=self._read, daemon=True).start()

  def go_on(self) -> None:
    """Lets it run to the next matching line.

    Raises:
      Ended: it has ended.
    """
    assert self._process.stdin is not None
    try:
      self._process.stdin.write("\n")
      self._process.stdin.flush()
    except OSError:
      raise Ended(self._last_words()) from None

  def wait(self) -> list[str]:
    """Returns the lines it has printed, once it pauses after the last of them.

    Raises:
      Ended: it ended, or took too long.
    """
    deadline = time.monotonic() + self._seconds
    lines: list[str] = []
    while not lines or not self._pattern.match(lines[-1]):
      try:
        line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
      except queue.Empty:
        raise Ended(f"no run ended within {self._seconds:g} s") from None
      if line is None:
        raise Ended(self._last_words())
      lines.append(line)
    return lines

  def close(self) -> None:
    """Ends it, by force if it is still there after ten seconds."""
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    try:
      self._process.wait(10)
    except subprocess.TimeoutExpired:
      self.kill()
    self._errors.close()

  def kill(self) -> None:
    """Ends it by force."""
    self._process.kill()
    self._process.wait()

  def _read(self) -> None:
    assert self._process.stdout is not None
    for line in self._process.stdout:
      self._lines.put(line.rstrip("\n"))
    self._lines.put(None)

  def _last_words(self) -> str:
    """Why its process ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(10)
    self._errors.seek(0)
    last = last_line(self._errors.read())
    return f"its process ended with code {self._process.returncode}: {last}"


class Peer:
  """A script that prints airbench's table, held between its runs; its first run warms up.

  Args:
    script: the file.
    folder: where it runs; cifar10/ inside it holds its images.
    seconds: the longest time for a run, compiling included.
  """

  def __init__(self, script: pathlib.Path, folder: pathlib.Path, *, seconds: float) -> None:
    self._columns: list[str] = []
    self._held = Held([str(script.resolve())], pattern=_END_OF_RUN, folder=folder, seconds=seconds)
    self.close, self.kill = self._held.close, self._held.kill

  def warm_up(self) -> None:
    """Waits for its first run, on random labels, which compiles.

    Raises:
      Ended: it failed.
    """
    self._read_row()

  def run(self, number: int) -> Run:
    """Lets it do one more run.

    Raises:
      Ended: it failed, or does not print airbench's table.
    """
    self._held.go_on()
    row = self._read_row()
    try:
      return Run(float(row["time_seconds"]), float(row["tta_val_acc"]))
    except (KeyError, ValueError):
      raise Ended(f"its table has no number time_seconds or tta_val_acc: {row}") from None

  def _read_row(self) -> dict[str, str]:
    """Returns the row printed after a run, by column."""
    for line in self._held.wait():
      cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
      if "time_seconds" in cells:
        self._columns = cells
    return dict(zip(self._columns, cells, strict=False))


class Ours:
  """`jaxspeed.train` with many seeds and one compilation, held between the runs.

  Args:
    config: of the runs.
    runs: how many runs will be asked for.
    folder: new; the runs' own folders are made in it.
    alone: whether it may take most of the device's memory, as JAX does by default.
  """

  def __init__(self, config: ConfigDict, runs: int, folder: pathlib.Path, *, alone: bool) -> None:
    folder.mkdir()
    config = config.copy_and_resolve_references()
    # One run more than wanted: the process is held before that run, and ends there.
    config.runs = runs + 1
    recipe, self._workdir = write_recipe(config, folder / "recipe.py"), folder / "runs"
    self._held = Held(
      ["-m", "jaxspeed.train", f"--config={recipe}", f"--workdir={self._workdir}"],
      pattern=_START_OF_RUN,
      folder=pathlib.Path.cwd(),
      seconds=_MOST_SECONDS,
      environment={} if alone else {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"},
    )
    self.close = self._held.close
    self.result: dict[str, Any] = {}
    self.memory_gb: float | None = None

  def warm_up(self) -> None:
    """Waits until everything is compiled and warmed up.

    Raises:
      Ended: it failed.
    """
    self._held.wait()

  def run(self, number: int) -> Run:
    """Lets it do run `number`, counted from 0, and sets `result` and `memory_gb` to those of it.

    Raises:
      Ended: it failed.
    """
    self._held.go_on()
    self._held.wait()
    folder = self._workdir / f"run_{number:03d}"
    self.result = json.loads((folder / "result.json").read_text())
    self.memory_gb = read_metrics(folder)[-1].get("memory_gb")
    shutil.rmtree(folder)
    return Run(self.result["seconds"]["train"], self.result["top1"])


def last_line(text: str) -> str:
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  return lines[-1] if lines else "it said nothing"


def find_peers(paths: list[str]) -> dict[str, pathlib.Path]:
  """Returns the peers' scripts by name: files as given, and the known scripts of each folder.

  Raises:
    UserError: a path does not exist, or a folder has none of the known scripts.
  """
  found: list[pathlib.Path] = []
  for path in map(pathlib.Path, paths):
    if path.is_file():
      found.append(path)
      continue
    # Scripts in the folder itself come before copies in its subfolders.
    scripts = [
      next(iter([*path.glob(name), *sorted(path.glob(f"*/{name}"))]), None)
      for name in _PEER_SCRIPTS
    ]
    if not any(scripts):
      raise UserError(
        f"--peer={path}: there is no such file, nor a folder with {' or '.join(_PEER_SCRIPTS)}."
      )
    found += [script for script in scripts if script]
  stems = [script.stem for script in found]
  return {s.stem if stems.count(s.stem) == 1 else str(s): s for s in found}


def write_peer_images(arrays: Any, folder: pathlib.Path) -> str | None:
  """Writes our images where the peers' loaders look, so that both sides train on the same ones.

  Runs in its own process, because two frameworks in one share neither GPU nor libraries well.
  Returns what went wrong (most often, PyTorch is missing), or None.
  """
  folder.mkdir(parents=True)
  for split, images, labels in (
    ("train", arrays.train_images, arrays.train_labels),
    ("test", arrays.eval_images, arrays.eval_labels),
  ):
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", labels)
  command = [sys.executable, "-c", _PEER_IMAGES]
  done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
  return last_line(done.stderr) if done.returncode else None


def write_recipe(config: ConfigDict, path: pathlib.Path) -> pathlib.Path:
  """Writes a config with its overrides as a recipe, for commands in other processes."""
  stored = path.with_suffix(".json").resolve()
  stored_lib.save(config, stored)
  path.write_text(_RECIPE.format(path=str(stored)))
  return path


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


def summarize_starts(results: list[dict[str, Any]], target: float) -> dict[str, Any]:
  """Compile and process seconds of `start_cold`'s results; the first run had no cache.

  Compile seconds are summed over the threads that compile side by side.
  """
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
        result["seconds"]["process"] if result["top1"] >= target else None for result in warm
      ],
      "accuracy": [result["top1"] for result in warm],
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
    [sys.executable, str(_SCRIPTS / "count_flops.py"), f"--config={recipe}", f"--out={out}"],
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
  """Returns the runs of "jaxspeed" and of each peer; calls `save` after each round."""
  runs: dict[str, list[Run]] = {name: [] for name in ("jaxspeed", *peers)}
  for number in range(rounds):
    names = ["jaxspeed", *peers]
    for name in names if number % 2 == 0 else reversed(names):
      if name == "jaxspeed":
        runs[name].append(ours.run(number))
      else:
        with dropping(name, peers, failed):
          runs[name].append(peers[name].run(number))
    save(runs)
  return runs


def summarize_runs(runs: list[Run]) -> dict[str, Any]:
  """Means with their intervals, and the runs themselves."""
  return {
    "seconds": benchmarking.interval([run.seconds for run in runs]),
    "accuracy": benchmarking.interval([run.accuracy for run in runs]),
    "runs": [dataclasses.asdict(run) for run in runs],
  }


def compare(ours: list[Run], theirs: list[Run]) -> dict[str, Any]:
  """A peer's summary, and the ratio of our seconds to its: of the means, and round by round."""
  seconds = [run.seconds for run in ours], [run.seconds for run in theirs]
  means = [benchmarking.interval(each)["mean"] for each in seconds]
  return summarize_runs(theirs) | {
    "ratio": means[0] / means[1],
    "ratio_of_rounds": benchmarking.ratio_of_rounds(*seconds),
  }


def report_of(runs: dict[str, list[Run]], failed: dict[str, str], target: float) -> dict[str, Any]:
  """The report on the rounds so far."""
  ours = runs["jaxspeed"]
  summary = summarize_runs(ours)
  if len(ours) > 1:
    accuracies = [run.accuracy for run in ours]
    summary["accuracy"]["p_value"] = p_value_of_at_most(accuracies, target)
  peers: dict[str, Any] = {
    name: compare(ours, theirs) for name, theirs in runs.items() if theirs and theirs is not ours
  }
  for name, reason in failed.items():
    peers[name] = peers.get(name, {}) | {"failed": reason}
  return {"n": len(ours), "target": target, "jaxspeed": summary, "peers": peers}


def print_report(report: dict[str, Any]) -> None:
  table = rich.table.Table(
    "", "n", "seconds", "sd", "least", "accuracy %", "sd", title=report["device"]
  )
  sides = {"jaxspeed": report["jaxspeed"], **report["peers"]}
  for name, side in sides.items():
    if "seconds" in side:
      table.add_row(name, *_cells(side))
  rich.print(table)
  for name, side in sides.items():
    if "ratio" in side:
      print(f"{report['config']} takes {side['ratio']:.3f} x the time of {name}")
  if "starts" in report:
    _print_starts(report["starts"], report["target"])
  if "achieved_tflops" in report:
    print(
      f"{report['achieved_tflops']:.3g} TFLOP/s, products of padding counted: "
      f"{report['share_of_ceiling']:.1%} of a matrix product's {report['ceiling_tflops']:.3g} in "
      f"{report['precision']}"
    )
  memory = report["memory_gb"]
  print(f"peak memory: {'not told here' if memory is None else f'{memory:.2f} GB'}")


def _cells(side: dict[str, Any]) -> list[str]:
  """The cells of a row of the table, from `summarize_runs`."""
  seconds, accuracy = side["seconds"], side["accuracy"]
  percent = {k: 100 * accuracy[k] if accuracy[k] is not None else None for k in ("mean", "ci95")}
  sd, percent_sd = (
    "" if value is None else f"{value:.3f}"
    for value in (seconds["sd"], accuracy["sd"] and 100 * accuracy["sd"])
  )
  values = benchmarking.show(seconds, ".3f"), sd, f"{seconds['min']:.3f}"
  return [str(seconds["n"]), *values, benchmarking.show(percent, ".3f"), percent_sd]


def _print_starts(starts: dict[str, Any], target: float) -> None:
  compiled, process = starts["compile_s"], starts["process_s"]
  print(
    f"compile seconds, summed over threads: {_list([compiled['first']])} at first, "
    f"{_list(compiled['cached'])} from the cache"
  )
  print(
    f"process seconds: {_list([process['first']])} at first, {_list(process['cached'])} with the "
    f"cache, to {target:.1%} {_list(process['to_target'])}"
  )


def _list(values: list[float | None]) -> str:
  return ", ".join("-" if value is None else f"{value:.2f}" for value in values)


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
  """`summarize_starts` of one run with an empty cache and `starts` runs with that cache."""
  recipe, results = write_recipe(config, scratch / "recipe.py"), []
  for _ in range(1 + starts):
    results.append(start_cold(recipe, scratch / "cold"))
    print(f"a whole process: {results[-1]['seconds']['process']:.1f} s", flush=True)
  return summarize_starts(results, config.target)


def bench(config: ConfigDict, options: Options, scratch: pathlib.Path) -> dict[str, Any]:
  """Runs the whole benchmark; returns its report, and writes it to `options.out`.

  Raises:
    UserError: a mistake in the config, or our own run failed.
  """
  scripts = find_peers(options.peers)
  # A new cache, so that the first compilation does compile.
  config.compile_cache = config.compile_cache or str(scratch / "programs")
  report: dict[str, Any] = {
    "what": "Whole runs by airbench's clock (whitening, training, final evaluation), ours and the "
    "peers' in turns on one machine; written by scripts/bench_cifar.py.",
    "config": config.name,
  } | benchmarking.environment()
  if options.cold_starts:
    report["starts"] = time_starts(config, options.cold_starts, scratch)
    benchmarking.write_report(options.out, report)
  failed: dict[str, str] = {}
  if scripts:
    from jaxspeed.run.setup import open_data

    problem = write_peer_images(open_data(config), scratch / "images")
    if problem:
      print(f"the peers have no images: {problem}")
  with warmed_peers(scripts, scratch, options.peer_seconds, failed) as peers:
    alone = not peers
    with contextlib.closing(Ours(config, options.runs, scratch / "ours", alone=alone)) as ours:

      def save(runs):
        report["device"] = ours.result["device"]
        benchmarking.write_report(options.out, report | report_of(runs, failed, config.target))

      try:
        ours.warm_up()
        runs = run_rounds(ours, peers, failed, options.runs, save)
      except Ended as error:
        raise UserError(f"jaxspeed.train: {error}") from None
  resolved = stored_lib.load(scratch / "ours" / "runs" / "config.json")
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
  benchmarking.write_report(options.out, report)
  return report


def main() -> None:
  config_flag = command_line.define_config_flag()
  runs = flags.DEFINE_integer("runs", 20, "Runs of each side.", lower_bound=1)
  cold_starts = flags.DEFINE_integer(
    "cold_starts", 3, "Whole processes with a warm cache; 0: not even the first.", lower_bound=0
  )
  peers = flags.DEFINE_multi_string(
    "peer", [], "A PyTorch script, or a folder with airbench's or hiverge's; may be repeated."
  )
  peer_seconds = flags.DEFINE_float("peer_seconds", 600, "Most that a peer's run may take.")
  out = flags.DEFINE_string("out", "", "A JSON file for the figures.")

  def run(arguments: list[str]) -> None:
    command_line.nothing_left(arguments)
    options = Options(
      runs=runs.value,
      cold_starts=cold_starts.value,
      peers=peers.value,
      peer_seconds=peer_seconds.value,
      out=pathlib.Path(out.value) if out.value else None,
    )
    with tempfile.TemporaryDirectory() as scratch:
      print_report(bench(check(config_flag.value), options, pathlib.Path(scratch).resolve()))

  command_line.run(run)


if __name__ == "__main__":
  main()
