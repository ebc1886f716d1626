"""What rows of evaluations say: the best one, patience, and how results tell them."""

import json
import random
import types

import pytest
from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.run import restore
from jaxspeed.run.best import METRICS, best_of, ranked
from jaxspeed.run.epoch_report import planned_row, reason_to_stop
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


def test_the_best_step_is_among_the_rows_that_a_resumed_run_keeps(tmp_path, monkeypatch):
  with pytest.raises(UserError, match="has no evaluation with top1, so that none is the best"):
    best_step(tmp_path, config())
  rows = [row | dict(examples=9, world=1, dawn_seconds=1.0) for row in rows_of(0.2, 0.6, 0.9)]
  (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  for saved, changed, best in (
    (20, {}, 20),
    (30, {}, 30),
    (30, {"checkpoint.keep_best": "loss"}, 10),
  ):
    monkeypatch.setattr(restore, "steps_of", lambda _: [saved])  # noqa: B023
    assert best_step(tmp_path, config(**changed)) == best


def test_a_result_has_the_best_evaluation_in_its_words():
  found = best_of(rows_of(0.2, 0.6, 0.4), config(**{"checkpoint.keep_best": "top1"}))
  assert found == {"metric": "top1", "epoch": 2, "step": 20, "top1": 0.6, "loss": 1.0}
  assert best_of(rows_of(0.2), config()) is None


@pytest.mark.parametrize(
  "name, own, momentum", [("sgd", "", 0.75), ("adamw", "", None), ("sgd", "scale_by_adam", None)]
)
def test_a_row_has_the_momentum_of_an_optimizer_that_has_one(name, own, momentum):
  fields = {"optimizer.name": name, "optimizer.momentum": 0.75, "given.optimizer": own}
  planned = make_plan(config(**fields), devices=1)
  spec = types.SimpleNamespace(config=config(**fields), plan=planned, devices=1)
  assert planned_row(spec, 1).get("momentum") == momentum
