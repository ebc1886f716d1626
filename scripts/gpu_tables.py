"""The files of a day on a GPU (`gpu_day.py`), and the Markdown table of what they say."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gpu_parts
from benchmarking import show

TOY = "TOY SIZE, NO MEASUREMENT"
_CLASSES = 4  # the heaviest classes of kernels that a row lists

Report = Mapping[str, Any]


def file_of(out: pathlib.Path, name: str) -> pathlib.Path:
  return out / "gpu_day" / f"{name}.json"


def read(out: pathlib.Path) -> tuple[dict[str, Any], dict[str, str]]:
  """The reports of the parts that have one, by name; and why others cannot be read."""
  reports, damaged = {}, {}
  for part in gpu_parts.PARTS:
    try:
      report = json.loads(file_of(out, part.name).read_text("utf-8"))
      # All that is said of it, so that what a report lacks is found here.
      heading(report), lines_of(part.name, report), bool(report["gpu_day"]["toy"])
    except FileNotFoundError:
      continue
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
      damaged[part.name] = getattr(error, "strerror", None) or "it is damaged"
    else:
      reports[part.name] = report
  return reports, damaged


def without_accuracies(report: Any) -> Any:
  """A report of runs on noise without what would be said of their accuracy."""
  said = ("accuracy", "to_target", "p_value", "target")
  if isinstance(report, dict):
    return {k: without_accuracies(v) for k, v in report.items() if k not in said}
  return [without_accuracies(v) for v in report] if isinstance(report, list) else report


def heading(report: Report) -> str:
  """The device, the driver, versions and the commit of a report."""
  machine = report["gpu_day"]["machine"]
  versions, driver = machine["versions"], machine["gpu"] or "nvidia-smi says nothing"
  named = [f"{k} {versions[k]}" for k in ("jax", "torch", "nvidia-cudnn-cu13") if versions.get(k)]
  first = f"{TOY}: " if report["gpu_day"]["toy"] else ""
  commit = f"commit {machine['commit'] or 'unknown'}"
  return "; ".join([f"{first}{machine['device']}", driver, *named, commit]) + "."


def lines_of(name: str, report: Report) -> tuple[list[str], list[str]]:
  """The rows of a part in the table, and the lines about what it lacks."""
  entry = report["gpu_day"]
  note = "" if entry["state"] == "done" else f" ({entry['state']})"
  found = _ROWS[entry["script"]](report) if "what" in report else ()
  rows = [f"| {what}{note} | {figure} | `gpu_day/{name}.json` |" for what, figure in found]
  lacking = []
  if without := entry["how"].get("no_comparison"):
    lacking.append(f"- {name}: no comparison with PyTorch: {without}")
  if note:
    reason = f"{entry['state']}: {entry['reason']}"
    lacking.append(f"- {name}, {entry['title']}: {reason}, `gpu_day/{name}.log`")
  return rows, lacking


def markdown(out: pathlib.Path, skipped: Mapping[str, str] | None = None) -> str:
  """A table of what was measured, then a list of what was not or cannot be read, and why.

  Args:
    out: the folder of the figures.
    skipped: why the call did not run a part, by name.
  """
  reports, damaged = read(out)
  lacking = [
    f"- {name}: gpu_day/{name}.json cannot be read ({why}): the next call measures it again"
    for name, why in damaged.items()
  ]
  lines = ["Nothing was measured yet."]
  if reports:
    lines = [heading(next(iter(reports.values()))), "", "| measured | figure | file |"]
    lines.append("|---|---|---|")
  for name, report in reports.items():
    rows, missing = lines_of(name, report)
    lines += rows
    lacking += missing
  for part in gpu_parts.PARTS:
    if part.name not in reports.keys() | damaged.keys():
      reason = (skipped or {}).get(part.name, "no call has come to it")
      lacking.append(f"- {part.name}, {part.title}: not run: {reason}")
  if lacking:
    lines += ["", "Not measured, or not to the end:", "", *lacking]
  return "\n".join(lines)


def _of_runs(report: Report) -> Iterator[tuple[str, str]]:
  config = report["config"]
  if "starts" in report:
    seconds = report["starts"]["process_s"]
    reached = seconds.get("to_target")
    to = "" if reached is None else f"; to the target {_list(reached)} s"
    yield (
      f"`{config}`, start of the process to the result",
      f"{seconds['first']:.1f} s with an empty cache, {_list(seconds['cached'])} s with it{to}",
    )
  if "jaxspeed" not in report:
    return
  yield f"`{config}`, seconds of a run", _run(report["jaxspeed"])
  for name, peer in report["peers"].items():
    if "seconds" in peer:
      ratio = f"; ours takes {show(peer['ratio_of_rounds'], '.3f')} of its time"
      yield f"{name}, seconds of a run", _run(peer) + ratio
    if "failed" in peer:
      yield name, f"failed: {peer['failed']}"


def _run(side: Report) -> str:
  seconds = side["seconds"]
  said = side.get("accuracy")
  accuracy = f", {show(said, '.2f', 100)} %" if said else ", on noise: no accuracy"
  return f"{show(seconds, '.3f')} s (n = {seconds['n']}){accuracy}"


def _list(values: Sequence[float | None]) -> str:
  return ", ".join("not reached" if value is None else f"{value:.1f}" for value in values)


def _each_row(
  report: Report, what_of: Callable[[Any], str], figure_of: Callable[[Any], str]
) -> Iterator[tuple[str, str]]:
  """What each row of a report measured, and its figure, or why it has none."""
  for row in report["rows"]:
    yield what_of(row), f"failed: {row['failed']}" if "failed" in row else figure_of(row)


def _of_steps(report: Report) -> Iterator[tuple[str, str]]:
  yield from _each_row(
    report,
    lambda row: f"{report['net']}, {row['size']} px, batch {row['batch']}, {row['framework']}",
    lambda row: (
      f"{show(row['images_per_s'], '.0f')} images/s, {row['share_of_ceiling']:.0%} of the "
      "matrix ceiling"
    ),
  )
  for row in report["ratios"]:
    what = f"{row['size']} px, batch {row['batch']}, {row['of']} beside {row['to']}"
    yield what, f"{show(row['ratio'], '.3f')} times its images/s"


def _of_profile(report: Report) -> Iterator[tuple[str, str]]:
  shares = {name: row["share"] for name, row in report["classes"].items()}
  heaviest = sorted(shares, key=lambda name: -shares[name])[:_CLASSES]
  listed = ", ".join(f"{name} {shares[name]:.0%}" for name in heaviest)
  yield (
    f"a step of `{report['config']}` under the profiler, batch {report['batch_size']}",
    f"{report['milliseconds']:.2f} ms, {report['kernels']:.0f} kernels: {listed}",
  )


def _of_options(report: Report) -> Iterator[tuple[str, str]]:
  def figure_of(row: Report) -> str:
    ratio = f", {show(row['ratio'], '.3f')} of the first row" if "ratio" in row else ""
    return f"{show(row['milliseconds'], '.3f')} ms{ratio}"

  return _each_row(
    report,
    lambda row: f"a step of `{report['config']}`, {row['option'] or 'XLA as it is'}",
    figure_of,
  )


def _of_allreduce(report: Report) -> Iterator[tuple[str, str]]:
  return _each_row(
    report,
    lambda row: f"all-reduce of {row['megabytes']:g} MB over {report['devices']} devices",
    lambda row: f"{show(row['milliseconds'], '.3f')} ms, {row['gigabytes_per_s']:.1f} GB/s",
  )


_ROWS: dict[str, Callable[[Report], Iterator[tuple[str, str]]]] = {
  "bench_cifar.py": _of_runs,
  "bench_resnet50.py": _of_steps,
  "profile_step.py": _of_profile,
  "bench_options.py": _of_options,
  "bench_allreduce.py": _of_allreduce,
}
