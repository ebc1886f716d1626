"""The Markdown table of a day on a GPU (`gpu_day.py`), from its files."""

import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

TOY = "TOY SIZE, NO MEASUREMENT"
_CLASSES = 4  # the heaviest classes of kernels that a row lists


def without_accuracies(report: Any) -> Any:
  """A report of runs on noise without what would be said of their accuracy."""
  said = ("accuracy", "to_target", "p_value", "target")
  if isinstance(report, dict):
    return {k: without_accuracies(v) for k, v in report.items() if k not in said}
  return [without_accuracies(v) for v in report] if isinstance(report, list) else report


def heading(summary: Mapping[str, Any]) -> str:
  """The device, the driver, versions and the commit."""
  machine = summary["machine"]
  versions, driver = machine["versions"], machine["gpu"] or "nvidia-smi says nothing"
  named = [f"{k} {versions[k]}" for k in ("jax", "torch", "nvidia-cudnn-cu13") if versions.get(k)]
  first = f"{TOY}: " if summary["toy"] else ""
  known = [
    f"{first}{machine['device']}",
    driver,
    *named,
    f"commit {machine['commit'] or 'unknown'}",
  ]
  return "; ".join(known) + "."


def damage(out: pathlib.Path, entry: Mapping[str, Any]) -> str:
  """Why the file of a part cannot be read; "" if it can, or if the part has none."""
  return _rows(out, entry)[1]


def _rows(out: pathlib.Path, entry: Mapping[str, Any]) -> tuple[list[tuple[str, str]], str]:
  """What the file of a part says, and why it cannot be read."""
  if not (file := entry.get("file")):
    return [], ""
  try:
    return list(_ROWS[entry["script"]](json.loads((out / file).read_text()))), ""
  except OSError as error:
    return [], error.strerror or str(error)
  except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
    return [], "it is damaged"


def markdown(out: pathlib.Path, summary: Mapping[str, Any], *, names_files: bool = True) -> str:
  """A table of what was measured, then a list of what was not or cannot be read, and why.

  Args:
    out: the folder that `file` of a part is in.
    summary: what `gpu_day.py` keeps; {}: nothing.
    names_files: whether the files stay, so that the table names them.
  """
  if not summary:
    return f"Nothing was measured yet: {out} has no gpu_day.json and no whole file of a part."
  columns = ["measured", "figure", "file"][: 3 if names_files else 2]
  lines = [heading(summary), "", _row(columns), "|" + "---|" * len(columns)]
  missing = []
  for name, entry in summary["parts"].items():
    note = "" if entry["state"] == "done" else f" ({entry['state']})"
    rows, why = _rows(out, entry)
    if why:
      missing.append(
        f"- {name}: {entry['file']} cannot be read ({why}): measure it again with --parts={name} "
        "--again"
      )
    for what, figure in rows:
      lines.append(_row([f"{what}{note}", figure, f"`{entry['file']}`"][: len(columns)]))
    if without := entry["how"].get("no_comparison"):
      missing.append(f"- {name}: no comparison with PyTorch: {without}")
    if entry["state"] != "done":
      log = f", `{entry['log']}`" if names_files and entry.get("log") else ""
      missing.append(f"- {name}, {entry['title']}: {entry['state']}: {entry['reason']}{log}")
  if missing:
    lines += ["", "Not measured, or not to the end:", "", *missing]
  return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
  return f"| {' | '.join(cells)} |"


def _spread(value: Mapping[str, Any], spec: str, factor: float = 1.0) -> str:
  half = "" if value["ci95"] is None else f" ± {factor * value['ci95']:{spec}}"
  return f"{factor * value['mean']:{spec}}{half}"


def _of_runs(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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
      ratio = f"; ours takes {_spread(peer['ratio_of_rounds'], '.3f')} of its time"
      yield f"{name}, seconds of a run", _run(peer) + ratio
    if "failed" in peer:
      yield name, f"failed: {peer['failed']}"


def _run(side: Mapping[str, Any]) -> str:
  seconds = side["seconds"]
  said = side.get("accuracy")
  accuracy = f", {_spread(said, '.2f', 100)} %" if said else ", on noise: no accuracy"
  return f"{_spread(seconds, '.3f')} s (n = {seconds['n']}){accuracy}"


def _list(values: list[float | None]) -> str:
  return ", ".join("not reached" if value is None else f"{value:.1f}" for value in values)


def _each_row(
  report: Mapping[str, Any], what_of: Callable[[Any], str], figure_of: Callable[[Any], str]
) -> Iterator[tuple[str, str]]:
  """What each row of a report measured, and its figure, or why it has none."""
  for row in report["rows"]:
    yield what_of(row), f"failed: {row['failed']}" if "failed" in row else figure_of(row)


def _of_steps(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  def what_of(row: Mapping[str, Any]) -> str:
    return f"{report['net']}, {row['size']} px, batch {row['batch']}, {row['framework']}"

  def figure_of(row: Mapping[str, Any]) -> str:
    rate = _spread(row["images_per_s"], ".0f")
    return f"{rate} images/s, {row['share_of_ceiling']:.0%} of the matrix ceiling"

  yield from _each_row(report, what_of, figure_of)
  for row in report["ratios"]:
    what = f"{row['size']} px, batch {row['batch']}, {row['of']} beside {row['to']}"
    yield what, f"{_spread(row['ratio'], '.3f')} times its images/s"


def _of_profile(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  shares = {name: row["share"] for name, row in report["classes"].items()}
  heaviest = sorted(shares, key=lambda name: -shares[name])[:_CLASSES]
  listed = ", ".join(f"{name} {shares[name]:.0%}" for name in heaviest)
  yield (
    f"a step of `{report['config']}` under the profiler, batch {report['batch_size']}",
    f"{report['milliseconds']:.2f} ms, {report['kernels']:.0f} kernels: {listed}",
  )


def _of_options(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  def what_of(row: Mapping[str, Any]) -> str:
    return f"a step of `{report['config']}`, {row['option'] or 'XLA as it is'}"

  def figure_of(row: Mapping[str, Any]) -> str:
    ratio = f", {_spread(row['ratio'], '.3f')} of the first row" if "ratio" in row else ""
    return f"{_spread(row['milliseconds'], '.3f')} ms{ratio}"

  return _each_row(report, what_of, figure_of)


def _of_allreduce(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  def what_of(row: Mapping[str, Any]) -> str:
    return f"all-reduce of {row['megabytes']:g} MB over {report['devices']} devices"

  def figure_of(row: Mapping[str, Any]) -> str:
    return f"{_spread(row['milliseconds'], '.3f')} ms, {row['gigabytes_per_s']:.1f} GB/s"

  return _each_row(report, what_of, figure_of)


_ROWS = {
  "bench_cifar.py": _of_runs,
  "bench_resnet50.py": _of_steps,
  "profile_step.py": _of_profile,
  "bench_options.py": _of_options,
  "bench_allreduce.py": _of_allreduce,
}
