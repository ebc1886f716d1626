"""Results of a run's jobs: one row a job, and mean and interval of jobs that differ in seeds."""

from collections.abc import Sequence
from typing import Any

from jaxspeed.config import output
from jaxspeed.files import dump_json
from jaxspeed.launch.record import Facts
from jaxspeed.launch.state import percent
from jaxspeed.launch.sweep import job_name
from jaxspeed.records.results import read_result
from jaxspeed.records.statistics import interval, p_value_of_at_most

# Figures by which results are sorted, and whether larger is better.
METRICS = {"top1": True, "top5": True, "train": False, "to_target": False, "cost": False}
Row = dict[str, Any]


def results_of(jobs: Sequence[Facts], metric: str) -> list[Row]:
  """The results of the finished jobs, the best by one of `METRICS` first.

  Returns:
    Rows of `name`; `recipe`; `overrides` without the seed; `metric` and `target` of the config;
    `values` and `seeds` of each of the job's runs; `top1` and `top5`, their means; seconds `train`
    and `to_target`; `cost` in USD for the seconds of the `dawn` clock. None: not known.
  """
  found = [(facts, read_result(facts.folder)) for facts in jobs]
  rows = [_row(facts, result) for facts, result in found if result is not None]
  sign = -1 if METRICS[metric] else 1
  return sorted(rows, key=lambda row: (row[metric] is None, sign * (row[metric] or 0.0)))


def _row(facts: Facts, result: Row) -> Row:
  job, seconds = facts.job, result["seconds"]
  runs = result.get("runs", [result])
  return {
    "name": job.name,
    "recipe": job.recipe,
    "overrides": {name: value for name, value in job.overrides.items() if name != "seed"},
    "metric": job.metric,
    "target": float(result["config"].get("target", 0.0)),
    "values": [run[job.metric] for run in runs],
    "seeds": [run["seed"] for run in runs],
    "top1": result["top1"],
    "top5": result["top5"],
    "train": seconds["train"],
    "to_target": seconds["to_target"],
    "cost": (result.get("cost_usd") or {}).get("dawn"),
  }


def groups_of(results: Sequence[Row]) -> list[Row]:
  """Mean and interval of each group of two or more runs that differ in their seeds, the best first.

  Returns:
    Rows of `name`, that of the jobs without the seed; `n`, the number of seeds; `mean` and `sd` of
    the accuracy; `ci95`, half the width of the mean's 95 % interval; `target`; `p_value` of the
    one-sided t-test of "the true mean is at most the target".
  """
  found, groups = [], dict[str, list[Row]]()
  for row in results:
    settings = dump_json([row["recipe"], row["overrides"]], sort_keys=True)
    groups.setdefault(settings, []).append(row)
  for rows in groups.values():
    # A seed that was trained twice counts once.
    pairs = {s: v for row in rows for s, v in zip(row["seeds"], row["values"], strict=True)}
    values = [value for value in pairs.values() if value is not None]
    if len(values) > 1:
      (mean, sd, ci95), target = interval(values), rows[0]["target"]
      figures = {"n": len(values), "mean": mean, "sd": sd, "ci95": ci95, "target": target}
      p_value = p_value_of_at_most(values, target)
      name = job_name(rows[0]["recipe"], rows[0]["overrides"])
      found.append({"name": name, **figures, "p_value": p_value})
  return sorted(found, key=lambda group: group["mean"], reverse=True)


def results_table(results: Sequence[Row], unfinished: int) -> str:
  """The results as text, and below them the groups of seeds."""
  rows = [["job", "runs", "top-1", "top-5", "train s", "to target s", "cost"]]
  for row in results:
    runs = len(row["values"])
    seconds = ("" if row[name] is None else f"{row[name]:.1f}" for name in ("train", "to_target"))
    cost = f"${row['cost']:.2f}" if row["cost"] else ""
    accuracies = (percent(row[name]) for name in ("top1", "top5"))
    rows.append([row["name"], str(runs) if runs > 1 else "", *accuracies, *seconds, cost])
  parts = output.table(rows) if results else ["no job has finished"]
  if groups := groups_of(results):
    metric = results[0]["metric"].replace("top", "top-")
    rows = [["over seeds", "n", metric, "95 % interval", "sd", "target", "p"]]
    for group in groups:
      spread = (f"± {100 * group['ci95']:.2f}", f"{100 * group['sd']:.2f}")
      test = (percent(group["target"]), f"{group['p_value']:.2g}") if group["target"] else ("", "")
      rows.append([group["name"], str(group["n"]), percent(group["mean"]), *spread, *test])
    parts += ["", *output.table(rows)]
  if unfinished:
    parts.append(f"{unfinished} job{'s have' if unfinished > 1 else ' has'} not finished")
  return "\n".join(parts)
