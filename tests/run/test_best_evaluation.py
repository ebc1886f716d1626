"""What rows of evaluations say: the best one, patience, and how results tell them."""

import json
import random

import pytest
from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.errors import UserError
from jaxspeed.records.console import format_result
from jaxspeed.records.results import result_of
from jaxspeed.run import checkpoint
from jaxspeed.run.best import METRICS, best_of, ranked
from jaxspeed.run.epoch_report import reason_to_stop
from jaxspeed.run.restore import best_step


def rows_of(*values, metric="top1"):
  """Rows of epochs; None: without an evaluation; "nan": with a loss that is not finite."""
  rows = []
  for epoch, value in enumerate(values, start=1):
    row = {"epoch": epoch, "step": 10 * epoch}
    if value == "nan":
      row["eval_loss"] = None
    elif value is not None:
      row |= {"eval_loss": 1.0, "eval_top1": 0.5, f"eval_{metric}": value}
    rows.append(row)
  return rows


def config(**changed) -> ConfigDict:
  found = fields.base()
  found.data.classes = 10
  found.update_from_flattened_dict(changed)
  return found


@pytest.mark.parametrize("metric", METRICS)
def test_ranking_prefers_the_better_and_of_equals_the_earlier(metric):
  draw = random.Random(0)
  values = [draw.choice((0.1, 0.2, 0.3, None, "nan")) for _ in range(40)]
  rows = rows_of(*values, metric=metric)
  if metric != "top1":
    for row in rows:
      row.pop("eval_top1", None)
  known = [(value, 10 * i) for i, value in enumerate(values, 1) if isinstance(value, float)]
  expected = sorted(known, key=lambda each: (-each[0] if METRICS[metric] else each[0], each[1]))
  assert [row["step"] for row in ranked(rows, metric)] == [step for _, step in expected]


def keras_stop(values, patience):
  """The epoch after which Keras's EarlyStopping (mode max, min_delta 0) ends a training.

  Its rule (keras/src/callbacks/early_stopping.py): an evaluation that is not better than the best
  so far adds one to `wait`, a better one sets it to 0; training ends once `wait` is `patience`.
  """
  best, wait = float("-inf"), 0
  for epoch, value in enumerate(values, start=1):
    if value is None:
      continue
    wait += 1
    if isinstance(value, float) and value > best:
      best, wait = value, 0
    if wait >= patience:
      return epoch
  return None


def test_patience_counts_as_keras_does():
  draw = random.Random(1)
  configs = {patience: config(patience=patience) for patience in range(1, 5)}
  for _ in range(200):
    values = [draw.choice((0.1, 0.2, 0.3, 0.4, None, "nan")) for _ in range(12)]
    patience = draw.randint(1, 4)
    rows = rows_of(*values)
    ends = [n for n in range(1, 13) if reason_to_stop(rows[:n], configs[patience])]
    assert (ends or [None])[0] == keras_stop(values, patience), (values, patience)
  assert not reason_to_stop(rows_of(0.3, 0.2, 0.1), config())
  assert not reason_to_stop([], config(patience=1))


def test_the_target_comes_before_patience():
  rows = rows_of(0.9, 0.9)
  assert reason_to_stop(rows, config(patience=1, stop_at_target=True, target=0.8)) == "target"
  assert reason_to_stop(rows, config(patience=1, target=0.8)) == "patience"
  assert reason_to_stop([*rows, *rows_of(None)], config(patience=1)) == ""
  assert reason_to_stop(rows, config(stop_at_target=True, target=0.0)) == ""  # 0: there is none


def test_nothing_follows_a_top5_accuracy_of_five_classes():
  rows = [{"step": step, "eval_loss": 1.0, "eval_top1": 0.5} for step in (1, 2, 3)]
  for classes, reason in ((5, ""), (10, "patience")):
    fields = {"data.classes": classes, "target_metric": "top5", "patience": 1}
    assert reason_to_stop(rows, config(**fields)) == reason
  assert best_of(rows, config(**{"checkpoint.keep_best": "top5"})) is None


def write(folder, rows, **result):
  (folder / "metrics.jsonl").write_text(
    "".join(
      json.dumps(row | {"examples": 9, "world": 1, "dawn_seconds": 1.0}) + "\n" for row in rows
    )
  )


def manifest(folder, step):
  path = folder / "checkpoints" / str(step)
  path.mkdir(parents=True)
  start = {"step": step, "clock": {}, "images": "", "arrays": {}}
  start["crc32"] = checkpoint._crc_of(start)
  (path / "manifest.json").write_text(json.dumps(start))


def test_the_best_step_is_among_the_rows_that_a_resumed_run_keeps(tmp_path):
  with pytest.raises(UserError, match="has no evaluation with top1, so that none is the best"):
    best_step(tmp_path, config())
  write(tmp_path, rows_of(0.2, 0.6, 0.9))
  # The run was killed before the checkpoint of step 30.
  manifest(tmp_path, 20)
  assert best_step(tmp_path, config()) == 20
  manifest(tmp_path, 30)
  assert best_step(tmp_path, config()) == 30
  assert best_step(tmp_path, config(**{"checkpoint.keep_best": "loss"})) == 10


def result_row(seed, **more):
  seconds = {name: 1.0 for name in ("train", "dawn", "process", "to_target")}
  seconds["compile"] = {}
  settings = {"target": 0.5, "target_metric": "top1"}
  row = {
    "config": settings,
    "seconds": seconds,
    "seed": seed,
    "evaluated_on": "test",
    "device": "x",
  }
  return row | {"evaluated_on": "test", "top1": 0.5 + seed / 10, "top5": None} | more


def test_each_of_several_runs_has_its_own_best():
  best = best_of(rows_of(0.2, 0.6, 0.4), config(**{"checkpoint.keep_best": "top1"}))
  assert best == {"metric": "top1", "epoch": 2, "step": 20, "top1": 0.6, "loss": 1.0}
  assert best_of(rows_of(0.2), config()) is None
  one, two = result_row(0, best=best, stopped_by="patience"), result_row(1)
  both = result_of([one, two])
  assert not {"best", "stopped_by"} & both.keys()
  assert [run.get("best") for run in both["runs"]] == [best, None]
  assert [run.get("stopped_by") for run in both["runs"]] == ["patience", None]
  assert format_result(result_of([one]))[-1] == (
    "best top1: 60.000% after epoch 2, step 20; it was chosen on the test images, which flatters "
    "it: the last epoch counts"
  )
  assert "best" not in "".join(format_result(result_of([two])))
