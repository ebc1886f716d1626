"""Whole runs in this process, on eight devices and real digits: folder, resume, several runs."""

import dataclasses
import json
import math
import re
import shutil

import jax
import numpy as np
import pytest
from PIL import Image
from toy import digits
from toy_images import params_of

from jaxspeed.config import stored
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.planning.make import make_plan
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.console import format_result
from jaxspeed.records.meters import network_bytes
from jaxspeed.records.writer import read_metrics
from jaxspeed.run import setup
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.session import train


def test_the_folder_of_a_run(finished):
  folder, result = finished
  assert {p.name for p in folder.iterdir()} == {
    "checkpoints",
    "classes.json",
    "config.json",
    "metrics.jsonl",
    ".owner.lock",
    "owner.json",
    "predictions.npz",
    "result.json",
    "run.lock",
    "tensorboard",
    "thumbnails.npz",
  }
  assert json.loads((folder / "result.json").read_text()) == result
  config = json.loads((folder / "config.json").read_text())
  assert {"format": stored.FORMAT} | result["config"] == config
  assert (result["evaluated_on"], config["tune_on"]) == ("held-out", "test")
  assert result["evaluated_weights"] == "average"
  assert config["precision"] == "float32"  # "auto", resolved
  assert config["data"]["train_images"] == 1500 and len(config["data"]["mean"]) == 3
  rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  assert [(row["epoch"], row["step"], row["examples"]) for row in rows] == [
    (1, 9, 1440),
    (2, 18, 2880),
  ]
  assert result["top1"] == rows[-1]["eval_top1"] and result["top5"] == rows[-1]["eval_top5"]
  # 297 images: the accuracy is a multiple of 1 / 297.
  assert math.isclose(result["top1"] * 297, round(result["top1"] * 297), abs_tol=1e-6)
  assert rows[-1]["train_loss"] < rows[0]["train_loss"]


def test_the_row_of_an_epoch(finished, cache):
  folder, result = finished
  rows = read_metrics(folder)
  config = digits(cache)
  rates = make_plan(config, devices=8, train_images=1500, eval_images=297).table["learning_rate"]
  assert [row["learning_rate"] for row in rows] == [rates[8], rates[17]]
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
  # Validation is no training: the last one counts for airbench's clock alone.
  seconds = result["seconds"]
  assert 0 < rows[0]["dawn_seconds"] < rows[1]["dawn_seconds"] == seconds["dawn"]
  assert seconds["train"] < seconds["process"] and seconds["compile"]["cold"] > 0
  assert seconds["to_target"] is None
  counted = seconds["train"] - seconds["dawn"]
  assert rows[-1]["eval_seconds"] == pytest.approx(counted, rel=0.2, abs=0.01)
  assert rows[1]["dawn_seconds"] - rows[0]["dawn_seconds"] == pytest.approx(
    9 * rows[1]["step_seconds"]
  )
  assert "cost_usd" not in result


@pytest.mark.float16
def test_what_the_rows_of_some_runs_have(cache, tmp_path, monkeypatch, capsys):
  # A scale that is halved some times before the first step is taken. A second costs a dollar.
  monkeypatch.setattr(precision, "FIRST_SCALE", 2.0**26)
  config = digits(cache, **{"precision": "float16", "cost_per_hour": 3600.0})
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
def test_a_loss_scale_that_always_overflows_ends_the_run(cache, tmp_path):
  # No gradient times 10^38 is finite in float16.
  config = digits(cache, precision="float16", loss_scale=1e38, epochs=3.0)
  words = (
    "24 steps in a row were skipped, as their float16 gradients overflowed, at step 24 of 27: "
    r"the run stops, there is no checkpoint yet; --config.loss_scale=1e\+38 is too large, 0 finds"
  )
  with pytest.raises(UserError, match=words):
    train(config, str(tmp_path / "none"))
  assert not (tmp_path / "none" / "result.json").exists()


def test_a_run_leaves_as_many_images_as_its_field_says(finished, cache, tmp_path):
  found = Thumbnails.read(finished[0], 10)
  assert 24 < len(found.eval_index) <= 48 and len(found.train_image) == 24
  folder = tmp_path / "a"
  train(digits(cache, **{"records.thumbnails": 1}), str(folder))
  found = Thumbnails.read(folder, 10)
  predictions = Predictions.read(folder, 10)
  assert found.eval_index[0] == predictions.index[predictions.loss.argmax()]
  assert len(found.eval_index) == len(found.eval_image) == 2
  assert len(found.train_image) == len(found.train_share) == 1


def test_a_runs_folder_names_no_place_for_compiled_programs(finished, tmp_path):
  folder = shutil.copytree(finished[0], tmp_path / "theirs")
  path = folder / "config.json"
  config = json.loads(path.read_text())
  assert config["compile_cache"] == ""
  path.write_text(json.dumps(config | {"compile_cache": str(tmp_path / "programs")}))
  assert evaluate(folder)[0]["data"].startswith("scikit-learn's digits")
  Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
  predict(run_predictor(folder), [str(tmp_path / "a.png")])
  assert not (tmp_path / "programs").exists()


def test_a_finished_run_is_told_and_not_trained_again(finished, cache, tmp_path, capsys):
  folder, result = finished
  before = (folder / "result.json").stat().st_mtime_ns
  assert train(digits(cache), str(folder)) == result
  assert "finished" in capsys.readouterr().out
  # Places may differ.
  config = digits(cache, **{"data.cache": str(tmp_path), "cost_per_hour": 2.0})
  assert train(config, str(folder)) == result
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


def test_a_run_that_ended_before_its_result_evaluates_its_last_weights_again(
  finished, cache, tmp_path
):
  folder, result = finished
  copy = shutil.copytree(folder, tmp_path / "a")
  for name in ("result.json", "predictions.npz"):
    (copy / name).unlink()
  again = train(digits(cache), str(copy))
  for name in ("top1", "macro_top1", "ece", "per_class", "confusion"):
    assert again[name] == result[name], name
  assert again["seconds"]["train"] == result["seconds"]["train"]
  assert (copy / "predictions.npz").read_bytes() == (folder / "predictions.npz").read_bytes()
  assert len(read_metrics(copy)) == len(read_metrics(folder))


def test_several_runs_share_one_compilation(cache, tmp_path, capsys):
  config = digits(cache, runs=3, seed=5, target=0.15)
  result = train(config, str(tmp_path / "many"))
  assert result["n"] == 3
  rows = [json.loads((tmp_path / f"many/run_{i:03d}/result.json").read_text()) for i in range(3)]
  top1 = [row["top1"] for row in rows]
  assert [row["seed"] for row in rows] == [5, 6, 7]
  assert len(set(top1)) > 1
  assert result["mean"] == pytest.approx(np.mean(top1))
  to_target = [row["seconds"]["to_target"] for row in rows]
  assert result["reached"] == 3 - to_target.count(None)
  assert [row["seconds"] for row in result["runs"]] == [row["seconds"] for row in rows]
  config = json.loads((tmp_path / "many/config.json").read_text())
  assert {"format": stored.FORMAT} | result["config"] == config
  printed = capsys.readouterr().out.splitlines()
  assert [line for line in printed if line.startswith("run ")] == [
    f"run {i + 1} of 3, seed {5 + i}" for i in range(3)
  ]
  lines = format_result(result)
  assert len(lines) == 1 + 3 + 2 + 2 + 3 and printed[-len(lines) :] == lines
  assert [line.split()[:2] for line in lines[1:4]] == [
    [str(5 + i), f"{top1[i]:.3%}"] for i in range(3)
  ]
  assert evaluate(tmp_path / "many" / "run_001")[0]["top1"] == top1[1]
  with pytest.raises(UserError, match="holds 3 runs: name one of them, as in /.*run_000"):
    evaluate(tmp_path / "many")


def test_several_runs_that_were_killed_go_on(cache, tmp_path):
  config = digits(cache, epochs=1.0, runs=3)
  folder = tmp_path / "killed"
  before = train(config, str(folder))
  # What a kill during the third run leaves.
  (folder / "result.json").unlink()
  shutil.rmtree(folder / "run_002")
  stamps = [(folder / f"run_{i:03d}/result.json").stat().st_mtime_ns for i in range(2)]
  after = train(config, str(folder))
  assert after["runs"][:2] == before["runs"][:2]
  assert stamps == [(folder / f"run_{i:03d}/result.json").stat().st_mtime_ns for i in range(2)]
  for key in ("top1", "mean", "sd", "ci95", "p_value", "evaluated_on"):
    assert after[key] == before[key]
  assert json.loads((folder / "result.json").read_text()) == after
  assert train(config, str(folder)) == after


@pytest.mark.parametrize("fields, run", [({"runs": 2}, "run_000"), ({"warmup": "on"}, "")])
def test_neither_other_seeds_nor_the_warm_up_change_a_run(finished, cache, tmp_path, fields, run):
  train(digits(cache, **fields), str(tmp_path))
  alone, found = read_metrics(finished[0]), read_metrics(tmp_path / run)
  for name in ("train_loss", "eval_loss"):
    assert [row[name] for row in alone] == [row[name] for row in found]


def test_the_last_epoch_may_be_a_fraction_and_evaluations_rarer_than_epochs(cache, tmp_path):
  train(digits(cache, epochs=2.5, **{"eval.every_epochs": 2}), str(tmp_path / "a"))
  rows = read_metrics(tmp_path / "a")
  assert [row["step"] for row in rows] == [9, 18, 23]  # ceil(2.5 * 9)
  assert rows[-1]["epoch"] == pytest.approx(23 / 9)
  assert ["eval_top1" in row for row in rows] == [False, True, True]


def test_it_stops_at_the_target_and_tells_the_time(cache, tmp_path):
  config = digits(cache, epochs=4.0, target=0.05, stop_at_target=True)
  result = train(config, str(tmp_path / "stop"))
  rows = read_metrics(tmp_path / "stop")
  assert len(rows) < 4 and rows[-1]["eval_top1"] >= 0.05
  assert result["seconds"]["to_target"] == rows[-1]["dawn_seconds"]
  # The evaluation that ended the run was its last, which the clock of airbench's rule contains.
  assert result["seconds"]["train"] == rows[-1]["train_seconds"] > result["seconds"]["dawn"]
  assert rows[0]["train_seconds"] == rows[0]["dawn_seconds"] or len(rows) == 1
  assert evaluate(tmp_path / "stop")[0]["top1"] == result["top1"]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(cache, tmp_path):
  # The rate explodes in the second epoch; the first epoch's checkpoint stays.
  config = digits(
    cache,
    epochs=3.0,
    **{
      "schedule.peak": 1e6,
      "schedule.warmup": 0.99,
      "schedule.start": 1e-6,
      "checkpoint.every_seconds": 0.0,
    },
  )
  # Whether the loss or the weights overflow first depends on the CPU.
  message = (
    "(the training loss is|the weights after) .* run stops, the checkpoint of (.*) stays; lower"
  )
  with pytest.raises(UserError, match=message) as error:
    train(config, str(tmp_path / "bad"))
  assert not (tmp_path / "bad" / "result.json").exists()
  step, carry = params_of(tmp_path / "bad")
  assert step == int(re.search(message, str(error.value))[2])
  assert all(np.isfinite(each).all() for each in jax.tree.leaves(carry.state.params))
  config.checkpoint.every_seconds = 1e6
  with pytest.raises(UserError, match=r"the training loss is (nan|inf) at step \d+ of 27: the "):
    train(config, str(tmp_path / "unsaved"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_not_saved(cache, tmp_path, monkeypatch, value):
  # The step that spoils them has a finite loss.
  def spoil(self, *arguments):
    for output in train_steps(self, *arguments):
      leaves, tree = jax.tree.flatten(output.carry.state.params)
      leaves[-1] = jax.device_put(np.full_like(leaves[-1], value), leaves[-1].sharding)
      state = output.carry.state.replace(params=jax.tree.unflatten(tree, leaves))
      yield dataclasses.replace(output, carry=output.carry.replace(state=state))

  train_steps = ResidentFeed.train
  monkeypatch.setattr(ResidentFeed, "train", spoil)
  fields = {"checkpoint.every_seconds": 0.0}
  with pytest.raises(UserError, match="after step 1 are not finite: .* there is no checkpoint yet"):
    train(digits(cache, **fields), str(tmp_path / "a"))


def test_a_plan_that_cannot_be_is_refused_before_the_data_are_opened(cache, tmp_path, monkeypatch):
  monkeypatch.setattr(setup, "open_data", None)
  with pytest.raises(UserError, match="config.batch_size=50001 is larger than the training set"):
    train(digits(cache, batch_size=50_001, **{"data.train_images": 50_000}), str(tmp_path / "a"))
  assert not (tmp_path / "a").exists()
