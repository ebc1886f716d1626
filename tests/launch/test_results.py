"""Results of a run: one row a job, mean and interval over seeds."""

import pytest
from fake_jobs import result_of, seconds, write_job

from jaxspeed.launch.results import groups_of, results_of, results_table
from jaxspeed.records.statistics import interval, p_value_of_at_most


def test_a_row_of_a_finished_job(tmp_path):
  cost = {"dawn": 4.0, "process": 5.0}
  result = result_of(0.951, seconds=seconds(train=31.5, to_target=None), cost_usd=cost)
  facts = write_job(tmp_path, "a", result=result, overrides={"schedule.peak": 2.0, "seed": 3})
  figures = {"n": 3, "mean": 0.95, "sd": 0.1, "ci95": 0.1, "target": 0.94, "p_value": 0.1}
  figures |= {"reached": 1, "seconds_min": seconds()}
  values = [0.93, 0.95, 0.97]
  runs = [{"seed": i, "top1": v, "top5": 0.99, "seconds": seconds()} for i, v in enumerate(values)]
  result = result_of(0.95, runs=runs, **figures)
  several = write_job(tmp_path, "c", result=result, overrides={"runs": 3})
  row, other = results_of([several, facts, write_job(tmp_path, "b")], "train")[::-1]
  assert (row["name"], row["overrides"], row["metric"]) == ("a", {"schedule.peak": 2.0}, "top1")
  assert (row["values"], row["top5"], row["target"]) == ([0.951], 0.99, 0.94)
  assert (row["train"], row["to_target"], row["cost"]) == (31.5, None, 4.0)
  assert other["values"] == values and other["top1"] == pytest.approx(0.95)


def test_mean_and_interval_over_seeds(tmp_path):
  values = [0.941, 0.944, 0.939, 0.945, 0.942]
  found = [("a.py", {"schedule.peak": 2}, i, value) for i, value in enumerate(values)]
  found += [("a.py", {"p": p}, seed, 0.95) for p, seed in ((1, 0), (2, 0), (2, 1))]
  # Other recipes or data of the same name are no seeds of one group.
  found += [
    ("b/a.py", {"p": 1}, 1, 0.9),
    *(("x.py", {"data.path": f"/{i}/s/t"}, i, 0.9) for i in "12"),
  ]
  # A seed that was trained twice counts once.
  found.append(found[0])
  jobs = [
    write_job(
      tmp_path,
      f"j{i}",
      recipe=recipe,
      result=result_of(top1),
      overrides=overrides | {"seed": int(seed)},
    )
    for i, (recipe, overrides, seed, top1) in enumerate(found)
  ]
  # One seed is no group; the best comes first.
  best, group = groups_of(results_of(jobs, "train"))
  assert (best["name"], best["sd"], best["p_value"]) == ("a_p=2", 0.0, 0.0)
  assert (group["name"], group["n"], group["target"]) == ("a_peak=2", 5, 0.94)
  assert (group["mean"], group["sd"], group["ci95"]) == interval(values)
  assert group["p_value"] == p_value_of_at_most(values, 0.94)
  assert groups_of([row | {"values": [None]} for row in results_of(jobs, "top1")]) == []


@pytest.mark.parametrize(
  "metric, order",
  [("top1", "bca"), ("top5", "acb"), ("train", "acb"), ("to_target", "acb"), ("cost", "cba")],
)
def test_the_best_come_first_and_missing_values_last(tmp_path, metric, order):
  figures = {
    "a": (0.91, 0.999, 10.0, 5.0, 3),
    "b": (0.93, None, 30.0, None, 2),
    "c": (0.92, 0.99, 20.0, 6.0, 1),
  }
  jobs = []
  for name, (top1, top5, train, to_target, hours) in figures.items():
    result = result_of(top1, top5=top5, seconds=seconds(train, to_target))
    jobs.append(write_job(tmp_path, name, result=result | {"cost_usd": {"dawn": 1.0 * hours}}))
  assert "".join(row["name"] for row in results_of(jobs, metric)) == order


def test_the_table(tmp_path):
  jobs = [
    write_job(tmp_path, f"s{i}", result=result_of(value), overrides={"seed": i})
    for i, value in enumerate((0.93, 0.95))
  ]
  lines = results_table(results_of(jobs, "top1"), 2).splitlines()
  assert lines[0].split() == "job top-1 top-5 train s to target s".split()
  assert lines[1].split() == "s1 95.00 % 99.00 % 30.0 12.0".split()
  assert lines[2].split() == "s0 93.00 % 99.00 % 30.0 12.0".split()
  assert lines[3] == ""
  assert lines[4].split() == "over seeds n top-1 95 % interval sd target p".split()
  assert lines[5].split() == "quickstart 2 94.00 % ± 12.71 1.41 94.00 % 0.5".split()
  assert lines[6:] == ["2 jobs have not finished"]
  rows = [row | {"target": 0.0} for row in results_of(jobs, "top1")]
  assert results_table(rows, 0).splitlines()[5].split() == lines[5].split()[:-3]
  assert results_table([], 1) == "no job has finished\n1 job has not finished"
