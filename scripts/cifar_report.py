"""What `bench_cifar.py` says of its runs: means, ratios and the printed table."""

import dataclasses
from typing import Any

import benchmarking
import rich
import rich.table
from cifar_sides import Run

from jaxspeed.records.statistics import p_value_of_at_most


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
