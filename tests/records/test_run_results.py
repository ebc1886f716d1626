"""The result of one run and of several: what is written, read and refused."""

import json
import math
import pathlib
import shlex
import sys

import numpy as np
import pytest
from made_rows import CONFIG, SECONDS, one_result
from scipy import stats

from jaxspeed.errors import UserError
from jaxspeed.records.console import format_result
from jaxspeed.records.provenance import of_this_process
from jaxspeed.records.results import read_result, result_of, write_result


def test_result_of_one_run(tmp_path):
  row = one_result(np.float32(0.5), config={"phases": (1, 2), "limit": math.inf})
  row["confusion"] = [[3, 0], [0, 0]]
  returned = write_result(tmp_path, [row])
  text = (tmp_path / "result.json").read_text()
  expected = row | {"top1": 0.5, "config": {"phases": [1, 2], "limit": None}}
  assert returned == json.loads(text) == expected == read_result(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
  # A line for each class.
  assert '\n  "confusion": [\n    [3, 0],\n    [0, 0]\n  ]' in text
  assert read_result(tmp_path / "none") is None
  # Where it comes from, without the folder of Python, which is of no use on another machine.
  found = of_this_process()
  program, *arguments = shlex.split(found["command"])
  assert program == pathlib.Path(sys.orig_argv[0]).name and arguments == sys.orig_argv[1:]
  assert found["device"] and set(found) == {"device", "versions", "commit", "command"}
  assert of_this_process("fit('a')")["command"] == "fit('a')"


def test_result_of_three_runs(tmp_path):
  rows = []
  # Only the first run of a process compiles; the first does not reach the target.
  for seed, top1, top5, train, to_target in (
    (1, 0.92, 0.5, 2.0, None),
    (2, 0.94, 0.75, 3.0, 1.25),
    (3, 0.96, 1.0, 7.0, 2.25),
  ):
    compiled = {"cold": 30.0 if seed == 1 else None, "cached": None}
    seconds = SECONDS | {"train": train, "compile": compiled, "to_target": to_target}
    rows.append(one_result(top1, seed=seed, top5=top5, seconds=seconds))
    rows[-1]["config"] = CONFIG | {"seed": seed}
  rows[2]["device"] = "another"
  result = write_result(tmp_path, rows)
  means = SECONDS | {"train": 4.0, "to_target": 1.75}
  interval = stats.t.interval(0.95, 2, loc=0.94, scale=0.02 / math.sqrt(3))
  p = stats.ttest_1samp([0.92, 0.94, 0.96], 0.93, alternative="greater").pvalue
  assert result == one_result(pytest.approx(0.94)) | {
    "seconds": means,
    "config": CONFIG | {"runs": 3},  # that of the group, as its folder holds it
    "n": 3,
    "mean": pytest.approx(0.94),
    "sd": pytest.approx(0.02),
    "ci95": pytest.approx(interval[1] - 0.94),
    "target": 0.93,
    "p_value": pytest.approx(p),
    "reached": 2,
    "seconds_min": means | {"train": 2.0, "to_target": 1.25},
    # What all runs share stands once, at the top.
    "runs": [{k: row[k] for k in ("seed", "top1", "top5", "seconds", "device")} for row in rows],
  }
  assert result == json.loads((tmp_path / "result.json").read_text()) == read_result(tmp_path)


@pytest.mark.filterwarnings("error")
def test_what_several_runs_have_in_common():
  # Equal runs leave no doubt, and warn of nothing.
  found = [result_of([one_result(top1)] * 3) for top1 in (0.94, 0.93, 0.1)]
  assert [result["p_value"] for result in found] == [0.0, 1.0, 1.0]
  assert {(result["sd"], result["ci95"], result["reached"]) for result in found} == {(0.0, 0.0, 0)}
  # Each has its own best.
  best = {"metric": "top1", "epoch": 2, "step": 20, "top1": 0.6, "loss": 1.0}
  one, two = one_result(0.5, best=best, stopped_by="patience"), one_result(0.6, seed=2)
  both = result_of([one, two])
  assert not {"best", "stopped_by"} & both.keys()
  assert [run.get("best") for run in both["runs"]] == [best, None]
  assert [run.get("stopped_by") for run in both["runs"]] == ["patience", None]
  flatters = "best top1: 60.000% after epoch 2, step 20; it was chosen on the test images, which fl"
  assert format_result(result_of([one]))[-1].startswith(flatters)
  # A cost is that of DAWNBench's seconds.
  priced = {"config": CONFIG | {"cost_per_hour": 2.0}}
  hit = one_result(0.94, seconds=SECONDS | {"dawn": 1800.0, "to_target": 900.0}, **priced)
  missed = one_result(0.5, seconds=SECONDS | {"dawn": 5400.0}, **priced)
  for rows, dawn, to_target in (([hit], 1.0, 0.5), ([missed], 3.0, None), ([hit, missed], 2, 0.5)):
    assert result_of(rows)["cost_usd"] == {"dawn": dawn, "to_target": to_target}
  assert "cost_usd" not in result_of([missed | {"config": CONFIG}])


def test_figures_by_class_of_several_runs_are_means():
  def row(macro, ece, cat, **fields):
    per_class = {"cat": {"top1": cat, "images": 3}, "dog": {"top1": None, "images": 0}}
    figures = dict(macro_top1=macro, ece=ece, per_class=per_class, confusion=[[3, 0], [0, 0]])
    return one_result(0.5, **figures, **fields)

  rows = [row(0.25, 0.5, 1 / 4, seed=1), row(0.75, 0.25, 3 / 4, seed=2)]
  result = result_of(rows)
  assert (result["macro_top1"], result["ece"]) == (0.5, 0.375)
  assert result["per_class"] == row(0, 0, 0.5)["per_class"]
  # The matrices lie in the folders of the runs.
  assert "confusion" not in result
  assert [(run["macro_top1"], run["ece"]) for run in result["runs"]] == [(0.25, 0.5), (0.75, 0.25)]
  assert not any("per_class" in run or "confusion" in run for run in result["runs"])
  # Runs of an earlier version have none of these.
  older = result_of([rows[0], one_result(0.5, seed=2)])
  assert older["macro_top1"] == 0.25 and "per_class" not in older


@pytest.mark.parametrize(
  "wrong",
  [{"top1": -1}, {"top1": 1e300}, {"seconds": {}}, {"evaluated_on": "train"}]
  + [{"eval_images": -5}, {"confusion": [[1, -2], [3, 4]]}],
)
def test_a_result_that_no_run_has_is_neither_written_nor_read(wrong, tmp_path):
  result = write_result(tmp_path, [one_result(0.5)])
  with pytest.raises(ValueError, match=next(iter(wrong))):
    write_result(tmp_path, [one_result(0.5) | wrong])
  assert read_result(tmp_path) == result
  (tmp_path / "result.json").write_text(json.dumps(result | wrong))
  with pytest.raises(UserError, match=f"result.json .*{next(iter(wrong))}"):
    read_result(tmp_path)
  # What an earlier version wrote.
  older = result | {"confusion": "confusion.npy", "unknown": 1}
  del older["evaluated_weights"]
  (tmp_path / "result.json").write_text(json.dumps(older))
  assert read_result(tmp_path)["confusion"] == "confusion.npy"
