"""The files of a day on a GPU (`gpu_day.py`), and the Markdown table of what they say."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import gpu_parts

TOY = "TOY SIZE, NO MEASUREMENT"

Report = Mapping[str, Any]


def file_of(out: pathlib.Path, name: str) -> pathlib.Path:
  return out / "gpu_day" / f"{name}.json"


def read(out: pathlib.Path) -> dict[str, Report]:
  """The reports of the parts that have one, by name, in order of value."""
  reports = {}
  for part in gpu_parts.PARTS:
    try:
      report = json.loads(file_of(out, part.name).read_text("utf-8"))
    except (OSError, ValueError):
      continue  # its part is not done
    if isinstance(report, dict) and "gpu_day" in report:
      reports[part.name] = report
  return reports


def heading(report: Report) -> str:
  """The device, the driver, versions and the commit of a report."""
  machine = report["gpu_day"]["machine"]
  versions, driver = machine["versions"], machine["gpu"] or "nvidia-smi says nothing"
  named = [f"{k} {versions[k]}" for k in ("jax", "torch", "nvidia-cudnn-cu13") if versions.get(k)]
  first = f"{TOY}: " if report["gpu_day"]["toy"] else ""
  commit = f"commit {machine['commit'] or 'unknown'}"
  return "; ".join([f"{first}{machine['device']}", driver, *named, commit]) + "."


def markdown(out: pathlib.Path, skipped: Mapping[str, str] | None = None) -> str:
  """A table for each machine and commit, then a list of what was not measured, and why.

  Args:
    out: the folder of the figures.
    skipped: why the call did not run a part, by name.
  """
  reports, tables, lacking = read(out), dict[str, list[str]](), []
  for part in gpu_parts.PARTS:
    report = reports.get(part.name)
    if report is None:
      reason = (skipped or {}).get(part.name, "no call has come to it")
      lacking.append(f"- {part.name}: not run: {reason}")
      continue
    entry, file = report["gpu_day"], f"gpu_day/{part.name}"
    note = "" if entry["state"] == "done" else f" ({entry['state']})"
    rows = tables.setdefault(heading(report), [])
    rows += [f"| {what}{note} | {said} | `{file}.json` |" for what, said in report.get("said", ())]
    if without := entry.get("no_comparison"):
      lacking.append(f"- {part.name}: no comparison with PyTorch: {without}")
    if note:
      reason = f"{entry['state']}: {entry['reason']}"
      lacking.append(f"- {part.name}: {reason}, `{file}.log`")
  blocks = [
    "\n".join([title, "", "| measured | figure | file |", "|---|---|---|", *rows])
    for title, rows in tables.items()
  ] or ["Nothing was measured yet."]
  if lacking:
    blocks.append("\n".join(["Not measured, or not to the end:", "", *lacking]))
  return "\n\n".join(blocks)
