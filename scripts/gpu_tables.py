"""The files of a day on a GPU (`gpu_day.py`), and the Markdown table of what they say."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import gpu_parts

from jaxspeed.files import write_atomically

TOY = "TOY SIZE, NO MEASUREMENT"

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


def write(file: pathlib.Path, entry: Mapping[str, Any], raw: pathlib.Path) -> None:
  """Makes a part's file of its entry and of what its script wrote, if it wrote anything."""
  try:
    report = json.loads(raw.read_text())
  except (OSError, ValueError):
    report = {}
  if entry["how"].get("data") == "noise":
    report = without_accuracies(report)
  if report and entry["toy"]:
    report["what"] = f"{TOY}. {report['what']}"
  write_atomically(file, json.dumps({"gpu_day": entry} | report, indent=1) + "\n")


def without_accuracies(report: Any) -> Any:
  """A report of runs on noise without what would be said of their accuracy."""
  left_out = ("accuracy", "to_target", "p_value", "target")
  if isinstance(report, dict):
    kept = {k: without_accuracies(v) for k, v in report.items() if k not in left_out}
    said = [row for row in report.get("said", ()) if not row[0].endswith("accuracy")]
    return kept | ({"said": said} if said else {})
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
  found = report["said"] if "what" in report else ()
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
