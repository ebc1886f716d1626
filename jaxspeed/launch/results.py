"""Results of a run's jobs: one row a job, and mean and interval of jobs that differ in seeds."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxspeed.files import dump_json, to_json
from jaxspeed.launch.names import job_name
from jaxspeed.launch.record import Facts
from jaxspeed.launch.state import result_of_job
from jaxspeed.launch.status import table
from jaxspeed.records.statistics import interval, p_value_of_at_most

# Figures by which results are sorted, and whether larger is better.
METRICS = {"top1": True, "top5": True, "train": False, "to_target": False, "cost": False}


@dataclasses.dataclass(frozen=True)
class JobResult:
  """The result of a finished job.

  Attributes:
    name: the job's name.
    group: the name without the seed.
    settings: recipe and overrides without the seed; other settings may have the same name.
    metric: config.target_metric.
    target: config.target.
    values: the accuracy of each of the job's runs.
    seeds: the seed of each of them.
    top1: accuracy, the mean over the job's runs.
    top5: the same; None for five classes or fewer.
    train: seconds on the training clock.
    to_target: seconds until the target was reached; None if it was not.
    cost: USD for the seconds of the `dawn` clock; None without a price.
  """

  name: str
  group: str
  settings: str
  metric: str
  target: float
  values: tuple[float, ...]
  seeds: tuple[int, ...]
  top1: float
  top5: float | None
  train: float
  to_target: float | None
  cost: float | None


@dataclasses.dataclass(frozen=True)
class GroupResult:
  """Runs that differ in their seeds.

  Attributes:
    name: the jobs' name without the seed.
    n: the number of different seeds.
    mean: mean accuracy config.target_metric.
    sd: its standard deviation (n - 1).
    ci95: half the width of the mean's 95 % interval, by Student's t.
    target: config.target.
    p_value: the p of the one-sided t-test of "the true mean is at most the target".
  """

  name: str
  n: int
  mean: float
  sd: float
  ci95: float
  target: float
  p_value: float


def results_of(jobs: Sequence[Facts], metric: str) -> list[JobResult]:
  """The results of the finished jobs, the best first.

  Args:
    jobs: what the jobs' folders say.
    metric: one of `METRICS`.
  """
  found = [_result(facts) for facts in jobs]
  rows = [row for row in found if row is not None]
  larger = METRICS[metric]
  known = [row for row in rows if getattr(row, metric) is not None]
  unknown = [row for row in rows if getattr(row, metric) is None]
  return sorted(known, key=lambda row: getattr(row, metric), reverse=larger) + unknown


def _result(facts: Facts) -> JobResult | None:
  result = result_of_job(facts)
  if result is None:
    return None
  metric = facts.job.metric
  seedless = {name: value for name, value in facts.job.overrides.items() if name != "seed"}
  return JobResult(
    name=facts.job.name,
    group=job_name(facts.job.recipe, seedless),
    settings=dump_json([facts.job.recipe, seedless], sort_keys=True),
    metric=metric,
    target=float(result["config"].get("target", 0.0)),
    values=tuple(run[metric] for run in result.get("runs", [result])),
    seeds=tuple(run["seed"] for run in result.get("runs", [result])),
    top1=result["top1"],
    top5=result["top5"],
    train=result["seconds"]["train"],
    to_target=result["seconds"]["to_target"],
    cost=(result.get("cost_usd") or {}).get("dawn"),
  )


def groups_of(results: Sequence[JobResult]) -> list[GroupResult]:
  """Mean and interval of each group of two or more runs, the best first."""
  found = []
  for settings in dict.fromkeys(row.settings for row in results):
    rows = [row for row in results if row.settings == settings]
    # A seed that was trained twice counts once.
    pairs = {s: v for row in rows for s, v in zip(row.seeds, row.values, strict=True)}
    values = [value for value in pairs.values() if value is not None]
    if len(values) > 1:
      name, target = rows[0].group, rows[0].target
      p_value = p_value_of_at_most(values, target)
      found.append(GroupResult(name, len(values), *interval(values), target, p_value))
  return sorted(found, key=lambda group: group.mean, reverse=True)


def results_table(results: Sequence[JobResult], unfinished: int) -> str:
  """The results as text, and below them the groups of seeds."""
  names = ["job", "runs", "top-1", "top-5", "train s", "to target s", "cost"]
  rows = [
    (
      row.name,
      str(len(row.values)) if len(row.values) > 1 else "",
      _percent(row.top1),
      _percent(row.top5),
      f"{row.train:.1f}",
      "" if row.to_target is None else f"{row.to_target:.1f}",
      f"${row.cost:.2f}" if row.cost else "",
    )
    for row in results
  ]
  parts = [table(names, rows)] if rows else ["no job has finished"]
  groups = groups_of(results)
  if groups:
    metric = results[0].metric.replace("top", "top-")
    names = ["over seeds", "n", metric, "95 % interval", "sd", "target", "p"]
    parts += ["", table(names, [_group_row(group) for group in groups])]
  if unfinished:
    parts.append(f"{unfinished} job{'s have' if unfinished > 1 else ' has'} not finished")
  return "\n".join(parts)


def _group_row(group: GroupResult) -> tuple[str, ...]:
  return (
    group.name,
    str(group.n),
    _percent(group.mean),
    f"± {100 * group.ci95:.2f}",
    f"{100 * group.sd:.2f}",
    _percent(group.target) if group.target else "",
    f"{group.p_value:.2g}" if group.target else "",
  )


def _percent(value: float | None) -> str:
  return "" if value is None else f"{100 * value:.2f} %"


def as_json(results: Sequence[JobResult]) -> dict[str, Any]:
  """Results and groups in JSON's types."""
  return {
    "jobs": [to_json(dataclasses.asdict(row)) for row in results],
    "over_seeds": [dataclasses.asdict(group) for group in groups_of(results)],
  }
