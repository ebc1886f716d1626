"""Results of runs, and of several runs: means, deviations, intervals, a t-test of the target."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxspeed.files import to_json

RESULT_KEYS = (
  "config",
  "evaluated_on",
  "evaluated_weights",
  "top1",
  "top5",
  "seconds",
  "device",
  "versions",
  "seed",
  "commit",
  "command",
)
# Only in a row of a float16 run: {"number", "share"} of the skipped steps.
SKIPPED = "skipped_steps"
# Only in a row of a run that counts them: images evaluated and skipped, training images replaced.
IMAGE_COUNTS = ("eval_images", "eval_images_skipped", "train_images_broken")
# Not in a row of an earlier version: `class_figures.figures_of`.
CLASS_MEANS, PER_CLASS = ("macro_top1", "ece"), "per_class"
_OF_CLASSES = (*CLASS_MEANS, PER_CLASS, "confusion")
# Only in a row of a run that keeps its best checkpoint (`run.best.best_of`), and of one that ended
# before its last step: "target" or "patience".
BEST, STOPPED_BY = "best", "stopped_by"
_OF_ONE_RUN = (BEST, STOPPED_BY)
OPTIONAL_KEYS = (SKIPPED, *_OF_ONE_RUN, *IMAGE_COUNTS, *_OF_CLASSES)
# Keys of each run in a result of several; other keys only if they differ between the runs.
_OWN_KEYS = ("seed", "top1", "top5", *CLASS_MEANS, "seconds", SKIPPED, *_OF_ONE_RUN)


def result_of(rows: Sequence[Mapping[str, Any]], *, cost_per_hour: float = 0.0) -> dict[str, Any]:
  """The content of result.json for one run, or for several (`summarize`).

  Args:
    rows: one `result_row` per run.
    cost_per_hour: US dollars for all the hardware; above 0 it adds cost_usd, for seconds.dawn and
      seconds.to_target: DAWNBench's rule, without validation or anything before training.

  Raises:
    ValueError: a row's keys are not `RESULT_KEYS`, or runs were evaluated on different images.
  """
  for row in rows:
    if set(row) - {*OPTIONAL_KEYS} != set(RESULT_KEYS):
      raise ValueError(f"a result row has {sorted(row)}, not {sorted(RESULT_KEYS)}")
  if len({row["evaluated_on"] for row in rows}) > 1:
    raise ValueError("rows of test images and of validation images have no common mean")
  result = to_json(rows[0] if len(rows) == 1 else summarize([to_json(row) for row in rows]))
  if cost_per_hour > 0:
    seconds = {name: result["seconds"][name] for name in ("dawn", "to_target")}
    result["cost_usd"] = {
      name: None if value is None else value / 3600 * cost_per_hour
      for name, value in seconds.items()
    }
  return result


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """The result of several runs that differ in their seeds.

  Args:
    rows: at least two `result_row`; their configs contain `target` and `target_metric`.

  Returns:
    The keys of a row but "confusion", with the first run's seed; top1, top5, macro_top1, ece, the
    accuracies of per_class and seconds are means over the runs that have the figure (compile.cold:
    the runs that compiled). Also
      n: the number of runs,
      mean, sd: mean and standard deviation (n - 1) of the accuracy config.target_metric,
      ci95: half the width of the 95 % interval of the mean, by Student's t,
      target: config.target,
      p_value: the p of the one-sided t-test of "the true mean is at most the target"
        (`p_value_of_at_most`): small if the mean is above,
      reached: the number of runs that reached the target, over which seconds.to_target is a mean,
      seconds_min: the minimum of each of the seconds,
      runs: a row per run, in order: seed, top1, top5, macro_top1, ece, seconds and the keys that
        differ; the folder of a run has its per_class and confusion.
  """
  target, metric = (rows[0]["config"][name] for name in ("target", "target_metric"))
  accuracies = [row[metric] for row in rows]
  mean, sd, ci95 = interval(accuracies)
  keys = (*RESULT_KEYS, *IMAGE_COUNTS)
  differing = {key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)}
  # Configs differ only in the seed, which has a key of its own.
  kept = {*_OWN_KEYS, *differing} - {"config"}
  seconds = [row["seconds"] for row in rows]
  skipped = [row[SKIPPED] for row in rows if SKIPPED in row]
  left_out = (*_OF_CLASSES, *_OF_ONE_RUN)
  first = {key: value for key, value in rows[0].items() if key not in left_out}
  return first | {
    "config": rows[0]["config"] | {"runs": len(rows)},
    "top1": statistics.fmean(row["top1"] for row in rows),
    "top5": _over_known(statistics.fmean, (row["top5"] for row in rows)),
    "seconds": _over_runs(statistics.fmean, seconds),
    "n": len(rows),
    "mean": mean,
    "sd": sd,
    "ci95": ci95,
    "target": target,
    "p_value": p_value_of_at_most(accuracies, target),
    "reached": sum(one["to_target"] is not None for one in seconds),
    "seconds_min": _over_runs(min, seconds),
    "runs": [
      {key: row[key] for key in (*RESULT_KEYS, *OPTIONAL_KEYS) if key in kept & row.keys()}
      for row in rows
    ],
    **({SKIPPED: _over_runs(statistics.fmean, skipped)} if skipped else {}),
    **_class_means(rows),
  }


def _class_means(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """The means of the figures by class that all rows have."""
  means = {
    key: statistics.fmean(row[key] for row in rows)
    for key in CLASS_MEANS
    if all(key in row for row in rows)
  }
  if any(PER_CLASS not in row for row in rows):
    return means
  per_class = {
    name: {
      "top1": _over_known(statistics.fmean, (row[PER_CLASS][name]["top1"] for row in rows)),
      "images": one["images"],
    }
    for name, one in rows[0][PER_CLASS].items()
  }
  return means | {PER_CLASS: per_class}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
  """Mean, standard deviation (n - 1) and half the width of the mean's 95 % interval.

  Args:
    values: at least two numbers; the interval is Student's.
  """
  from scipy import stats  # 0.6 s, which only several runs take

  sd = statistics.stdev(values)
  width = stats.t.ppf(0.975, len(values) - 1) * sd / math.sqrt(len(values))
  return statistics.fmean(values), sd, float(width)


def p_value_of_at_most(values: Sequence[float], bound: float) -> float:
  """The p of the one-sided one-sample t-test of "the true mean is at most `bound`".

  It is the probability of a sample mean at least this far above `bound` if the true mean were
  `bound`, so it is small if the true mean is above (KellerJordan/cifar10-airbench: "p<0.0001 for
  the true mean being below 94%"). For identical values it is 0 above the bound, else 1.

  Args:
    values: at least two numbers.
    bound: a number in the unit of the values.
  """
  from scipy import stats

  if statistics.stdev(values) == 0.0:
    return 0.0 if values[0] > bound else 1.0
  return float(stats.ttest_1samp(values, bound, alternative="greater").pvalue)


def p_value_of_equal_means(first: Sequence[float], second: Sequence[float]) -> float:
  """The p of Welch's two-sided t-test of "both samples have the same true mean".

  For two samples without any variance it is 1 where they are equal, else 0.

  Args:
    first, second: at least two numbers each.
  """
  from scipy import stats

  sides = [(statistics.fmean(x), statistics.stdev(x), len(x)) for x in (first, second)]
  if not any(sd for _, sd, _ in sides):
    return float(first[0] == second[0])
  return float(stats.ttest_ind_from_stats(*sides[0], *sides[1], equal_var=False).pvalue)


def interval_of_share(share: float, count: int) -> tuple[float, float]:
  """The 95 % interval of a probability, given the share of `count` draws that it produced.

  Wilson's score interval without continuity correction (Wilson 1927, JASA 22).

  Args:
    share: a fraction.
    count: the number of draws, at least one.
  """
  # By hand: every run prints it, and `scipy.stats` alone would take 0.6 s.
  z = statistics.NormalDist().inv_cdf(0.975)
  centre = (share + z * z / (2 * count)) / (1 + z * z / count)
  inner = share * (1 - share) / count + z * z / (4 * count * count)
  width = z / (1 + z * z / count) * math.sqrt(inner)
  return max(0.0, centre - width), min(1.0, centre + width)


def _over_runs(
  figure: Callable[[list[float]], float], seconds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
  """Applies `figure` to each of the seconds over the runs, and keeps their nesting."""
  return {
    key: _over_runs(figure, [one[key] for one in seconds])
    if isinstance(seconds[0][key], Mapping)
    else _over_known(figure, (one[key] for one in seconds))
    for key in seconds[0]
  }


def _over_known(
  figure: Callable[[list[float]], float], values: Iterable[float | None]
) -> float | None:
  known = [value for value in values if value is not None]
  return figure(known) if known else None
