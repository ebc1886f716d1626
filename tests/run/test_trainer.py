"""Whole runs in this process, on eight devices and real digits: folder, resume, several runs."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
from toy import digits
from toy_images import params_of

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.planning.make import make_plan
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.console import format_result
from jaxspeed.records.meters import network_bytes
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.session import train
from jaxspeed.run.thumbnails import filters_of, small

FILES = ".owner.lock checkpoints classes.json config.json metrics.jsonl owner.json predictions.npz "
FILES += "result.json run.lock tensorboard thumbnails.npz"


def losses(folder):
  return [(row["train_loss"], row["eval_loss"]) for row in read_metrics(folder)]


def test_the_folder_of_a_run(finished):
  folder, result = finished
  assert sorted(path.name for path in folder.iterdir()) == FILES.split()
  assert json.loads((folder / "result.json").read_text()) == result
  config = json.loads((folder / "config.json").read_text())
  assert result["config"] == config
  assert (result["evaluated_on"], result["evaluated_weights"]) == ("held-out", "average")
  assert config["precision"] == "float32"  # "auto", resolved
  assert config["data"]["train_images"] == 1500 and len(config["data"]["mean"]) == 3


def test_the_rows_of_the_epochs(finished):
  folder, result = finished
  rows = read_metrics(folder)
  config = digits()
  rates = make_plan(config, devices=8, train_images=1500, eval_images=297).table["learning_rate"]
  assert [row["learning_rate"] for row in rows] == [rates[8], rates[17]]
  steps = [(row["epoch"], row["step"], row["examples"]) for row in rows]
  assert steps == [(1, 9, 1440), (2, 18, 2880)]
  for row in rows:
    assert (row["world"], row["momentum"]) == (8, config.optimizer.momentum)
    assert row["images_per_second"] == pytest.approx(160 / row["step_seconds"])
    assert row["images_per_second_per_device"] == pytest.approx(row["images_per_second"] / 8)
    # The set is on the devices.
    assert row["data_wait"] == 0.0
    assert 0 <= row["train_top1"] < row["train_top5"] <= 1
    # Of 1,440 images.
    assert row["train_top5"] * 1440 == pytest.approx(round(row["train_top5"] * 1440))
    assert row["eval_seconds"] > 0
    # Neither float16 nor a device that counts its bytes.
    assert not {"skipped_steps", "memory_gb"} & row.keys()
    assert ("net_recv_gbit" in row) == ("net_transmit_gbit" in row) == bool(network_bytes())
  assert rows[-1]["train_loss"] < rows[0]["train_loss"]
  # Validation is no training: the last one counts for airbench's clock alone.
  seconds = result["seconds"]
  assert 0 < rows[0]["dawn_seconds"] < rows[1]["dawn_seconds"] == seconds["dawn"]
  assert seconds["train"] < seconds["process"] and seconds["compile"]["cold"] > 0
  assert seconds["to_target"] is None and "cost_usd" not in result
  counted = seconds["train"] - seconds["dawn"]
  assert rows[-1]["eval_seconds"] == pytest.approx(counted, rel=0.2, abs=0.01)
  last = rows[1]["dawn_seconds"] - rows[0]["dawn_seconds"]
  assert last == pytest.approx(9 * rows[1]["step_seconds"])


@pytest.mark.float16
def test_what_the_rows_of_some_runs_have(tmp_path, monkeypatch, capsys):
  # A scale that is halved some times before the first step is taken. A second costs a dollar.
  monkeypatch.setattr(precision, "FIRST_SCALE", 2.0**26)
  config = digits(**{"precision": "float16", "cost_per_hour": 3600.0})
  config.optimizer.momentum_segments = ((0, 1, 0.5, 0.75), (1, 2, 0.75, 0.25))
  result = train(config, str(tmp_path / "some"))
  rows = read_metrics(tmp_path / "some")
  # Over the run, not over the epoch.
  first, skipped = (row["skipped_steps"] for row in rows)
  assert 0 < first <= skipped < 18
  assert result["skipped_steps"] == {"number": skipped, "share": skipped / 18}
  assert f"{skipped} steps, {skipped / 18:.2%}" in capsys.readouterr().out
  # Of the epoch's last step.
  assert [row["momentum"] for row in rows] == pytest.approx([0.75, 0.25])
  assert result["cost_usd"] == {"dawn": pytest.approx(result["seconds"]["dawn"]), "to_target": None}


@pytest.mark.float16
def test_a_loss_scale_that_always_overflows_has_no_result(tmp_path):
  skipped = r"24 steps in a row were skipped, .*, at step 24 of 27: .* there is no checkpoint yet; "
  for epochs, words in (
    (3.0, skipped + r"--config.loss_scale=1e\+38 is too large, 0 "),
    (2.0, "all 18 steps of the run were skipped"),
  ):
    # No gradient times 10^38 is finite in float16.
    config = digits(precision="float16", loss_scale=1e38, epochs=epochs)
    with pytest.raises(UserError, match=words):
      train(config, str(tmp_path / str(epochs)))
    assert not (tmp_path / str(epochs) / "result.json").exists()


def test_a_run_leaves_as_many_images_as_its_field_says_and_a_warm_up_changes_nothing(
  finished, tmp_path
):
  found = Thumbnails.read(finished[0], 10)
  assert 24 < len(found.eval_index) <= 48 and len(found.train_image) == 24
  train(digits(warmup="on", **{"records.thumbnails": 1}), str(tmp_path))
  found, predictions = Thumbnails.read(tmp_path, 10), Predictions.read(tmp_path, 10)
  assert found.eval_index[0] == predictions.index[predictions.loss.argmax()]
  assert len(found.eval_index) == len(found.eval_image) == 2
  assert len(found.train_image) == len(found.train_share) == 1
  assert losses(tmp_path) == losses(finished[0])


def test_a_finished_run_is_told_and_not_trained_again(finished, tmp_path, capsys):
  folder, result = finished
  before = (folder / "result.json").stat().st_mtime_ns
  # Places may differ.
  for fields in ({}, {"data.cache": str(tmp_path), "cost_per_hour": 2.0}):
    assert train(digits(**fields), str(folder)) == result
    assert "finished" in capsys.readouterr().out
  assert (folder / "result.json").stat().st_mtime_ns == before


def test_figures_by_class_are_those_of_the_images_predictions(finished):
  folder, result = finished
  found, row = Predictions.read(folder, 1000), read_metrics(folder)[-1]
  right = found.label == found.predicted
  assert (found.step, found.names) == (18, ())
  np.testing.assert_array_equal(found.index, np.arange(297))
  assert right.mean() == result["top1"] == row["eval_top1"]
  assert found.loss.astype(np.float64).mean() == pytest.approx(row["eval_loss"], rel=297 * 2**-23)
  assert result["macro_top1"] == row["eval_macro_top1"]
  assert result["ece"] == row["eval_ece"]
  matrix = np.array(result["confusion"])
  assert matrix.sum() == 297 and np.trace(matrix) == right.sum()
  assert [each["images"] for each in result["per_class"].values()] == matrix.sum(axis=1).tolist()
  assert list(result["per_class"]) == list(map(str, range(10)))


def test_several_runs_share_one_compilation_and_go_on_where_they_were_killed(
  finished, tmp_path, capsys
):
  config, folder = digits(runs=3, target=0.15), tmp_path / "many"
  result = train(config, str(folder))
  printed = capsys.readouterr().out.splitlines()
  rows = [json.loads((folder / f"run_{i:03d}/result.json").read_text()) for i in range(3)]
  top1 = [row["top1"] for row in rows]
  assert (result["n"], [row["seed"] for row in rows]) == (3, [0, 1, 2]) and len(set(top1)) > 1
  assert result["mean"] == pytest.approx(np.mean(top1))
  assert [row["seconds"] for row in result["runs"]] == [row["seconds"] for row in rows]
  headings = [f"run {i + 1} of 3, seed {i}" for i in range(3)]
  assert [line for line in printed if line.startswith("run ")] == headings
  lines = format_result(result)
  assert printed[-len(lines) :] == lines
  # Neither other seeds nor a target change a run.
  assert losses(folder / "run_000") == losses(finished[0])
  assert evaluate(folder / "run_001")[0]["top1"] == top1[1]
  with pytest.raises(UserError, match="holds 3 runs: name one of them, as in /.*run_000"):
    evaluate(folder)
  # What a kill during the third run leaves.
  (folder / "result.json").unlink()
  shutil.rmtree(folder / "run_002")
  stamps = [(folder / f"run_{i:03d}/result.json").stat().st_mtime_ns for i in range(2)]
  after = train(config, str(folder))
  assert stamps == [(folder / f"run_{i:03d}/result.json").stat().st_mtime_ns for i in range(2)]
  assert after["runs"][:2] == result["runs"][:2]
  assert after["mean"] == result["mean"]
  assert json.loads((folder / "result.json").read_text()) == after == train(config, str(folder))


def test_it_stops_at_the_target_and_evaluations_may_be_rarer_than_epochs(tmp_path):
  result = train(digits(epochs=4.0, target=0.05, stop_at_target=True), str(tmp_path / "a"))
  rows = read_metrics(tmp_path / "a")
  assert len(rows) < 4 and rows[-1]["eval_top1"] >= 0.05
  assert result["seconds"]["to_target"] == rows[-1]["dawn_seconds"]
  # The evaluation that ended the run was its last, which the clock of airbench's rule contains.
  assert result["seconds"]["train"] == rows[-1]["train_seconds"] > result["seconds"]["dawn"]
  assert evaluate(tmp_path / "a")[0]["top1"] == result["top1"]
  # The last epoch may be a fraction.
  train(digits(epochs=2.5, **{"eval.every_epochs": 2}), str(tmp_path / "b"))
  rows = read_metrics(tmp_path / "b")
  assert [row["step"] for row in rows] == [9, 18, 23]  # ceil(2.5 * 9)
  assert rows[-1]["epoch"] == pytest.approx(23 / 9)
  assert ["eval_top1" in row for row in rows] == [False, True, True]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path):
  # The rate explodes in the second epoch; the first epoch's checkpoint stays.
  schedule = {"schedule.peak": 1e6, "schedule.warmup": 0.99, "schedule.start": 1e-6}
  config = digits(epochs=3.0, **schedule, **{"checkpoint.every_seconds": 0.0})
  # Whether the loss or the weights overflow first depends on the CPU.
  message = "(training loss is|the weights after) .* run stops, the checkpoint of (.*) stays; lower"
  with pytest.raises(UserError, match=message) as error:
    train(config, str(tmp_path / "bad"))
  assert not (tmp_path / "bad" / "result.json").exists()
  step, carry = params_of(tmp_path / "bad")
  assert step == int(re.search(message, str(error.value))[2])
  assert all(np.isfinite(each).all() for each in jax.tree.leaves(carry.state.params))


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
  # The step that spoils them has a finite loss.
  def spoil(self, *arguments):
    for output in train_steps(self, *arguments):
      leaves, tree = jax.tree.flatten(output.carry.state.params)
      leaves[-1] = jax.device_put(np.full_like(leaves[-1], np.inf), leaves[-1].sharding)
      state = output.carry.state.replace(params=jax.tree.unflatten(tree, leaves))
      yield dataclasses.replace(output, carry=output.carry.replace(state=state))

  train_steps = ResidentFeed.train
  monkeypatch.setattr(ResidentFeed, "train", spoil)
  fields = {"checkpoint.every_seconds": 0.0}
  with pytest.raises(UserError, match="after step 1 are not finite: .* there is no checkpoint yet"):
    train(digits(**fields), str(tmp_path / "a"))


def test_small_images_are_means_and_filters_those_over_three_channels():
  images = np.arange(2 * 130 * 65 * 3).reshape(2, 130, 65, 3) % 251
  found = small(images.astype(np.uint8))
  assert found.shape == (2, 44, 22, 3)
  assert abs(found[1, 2, 3, 0] - images[1, 6:9, 9:12, 0].mean()) <= 1
  ours, flax = np.full((5, 2, 2, 3), -1.0), np.ones((4, 4, 3, 6))
  inner = np.ones((7, 3, 3, 9))
  assert filters_of({"a": inner, "b": ours}).shape == (5, 2, 2, 3)
  assert filters_of({"b": ours}).max() == 0 and filters_of({"b": flax}).shape == (6, 4, 4, 3)
  assert len(filters_of({"b": np.ones((3, 3))})) == 0
