"""Runs and their data: hold-outs, arrays of one's own, and data of another kind."""

import json
import re
import shutil

import numpy as np
import pytest
from tiny_sets import write_npy
from toy import digits

from jaxspeed.data.memory.arrays import Arrays
from jaxspeed.errors import UserError
from jaxspeed.planning.make import make_plan
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.restore import load_config
from jaxspeed.run.session import train


def write_arrays(folder, classes=3, size=12):
  labels = np.arange(200) % classes
  noise = np.random.default_rng(0).integers(0, 60, (200, size, size, 3))
  images = np.clip(80 * labels[:, None, None, None] + noise, 0, 255).astype(np.uint8)
  return write_npy(folder, images, labels)


def test_a_run_without_a_result_is_evaluated_again_on_its_own_images_only(
  finished, tmp_path, monkeypatch
):
  folder = shutil.copytree(finished[0], tmp_path / "run")
  for name in ("result.json", "predictions.npz"):  # as a kill after the last checkpoint
    (folder / name).unlink()
  *_, manifest = folder.glob("checkpoints/*/manifest.json")
  assert re.fullmatch("arrays [0-9a-f]{8}", json.loads(manifest.read_text())["images"])
  monkeypatch.setattr(Arrays, "fingerprint", "arrays 00000000")
  with pytest.raises(UserError, match="images of this run have changed since its checkpoint of"):
    train(digits(), str(folder))
  monkeypatch.setattr(Arrays, "fingerprint", "shards 00000000")  # of another kind
  again = train(digits(), str(folder))
  for name in ("top1", "macro_top1", "ece", "per_class", "confusion"):
    assert again[name] == finished[1][name], name
  assert again["seconds"]["train"] == finished[1]["seconds"]["train"]
  for name in ("predictions.npz", "metrics.jsonl"):
    assert (folder / name).read_bytes() == (finished[0] / name).read_bytes()


def test_tuning_leaves_the_test_set_alone(tmp_path, capsys):
  config = digits(tune_on="validation")
  planned = make_plan(config)
  folder = tmp_path / "tuned"
  result = train(config, str(folder))
  printed = capsys.readouterr().out
  # A tenth of each class of the 1,500 training digits; a plan without them counts 150.
  data = json.loads((folder / "config.json").read_text())["data"]
  assert (data["train_images"], data["eval_images"]) == (1348, 152)
  assert "evaluated  152 held-out images" in printed and "test images" not in printed
  assert result["evaluated_on"] == "validation"
  (row,) = evaluate(folder)
  assert (row["images"], row["evaluated_on"]) == (152, "validation")
  assert (row["top1"], row["loss"]) == (
    result["top1"],
    pytest.approx(read_metrics(folder)[-1]["eval_loss"], rel=1e-5),
  )
  whole = load_config(folder)
  whole.data.hold_out = 1.0
  (row,) = evaluate(folder, config=whole)
  assert (row["images"], row["evaluated_on"]) == (1500, "all")
  assert "note: all images are evaluated (data.hold_out=1), those" in capsys.readouterr().err
  whole.data.hold_out = 0.2
  evaluate(folder, config=whole)
  words = r"1,348 images were trained on, and the data have 1,\d+ now: some that are held out may"
  assert re.search(words, capsys.readouterr().err)
  # The plan without the data, the plan of the run and the run itself have as many steps.
  steps = read_metrics(folder)[-1]["step"]
  assert (planned.train_images, planned.eval_images) == (1350, 150)
  assert planned.total_steps == steps == 2 * (1348 // 160)
  narrow = write_npy(tmp_path / "narrow", np.zeros((20, 8, 6, 3), np.uint8), np.arange(20) % 10)
  for fields, words in (
    ({}, "config.tune_on: 'validation' -> 'test'"),
    ({"data.path": str(narrow)}, r"have 8 x 6 pixels .* squares .*: crop or resize them\.$"),
    ({"data.image_size": 12}, r"have 8 x 8 pixels .* set --config.data.image_size=8"),
    ({"tune_on": "validation", "data.hold_out": 1.0}, "hold_out=1 leaves no images to train on"),
  ):
    with pytest.raises(UserError, match=words):
      train(digits(**fields), str(tmp_path / "b" if fields else folder), given=tuple(fields))


def test_a_run_is_evaluated_on_data_of_its_kind_and_names_only(finished, tmp_path):
  config = load_config(finished[0])
  for size, classes, words in (
    (12, 10, "has data.image_size=12, and the run in .* was trained with 8: set --conf"),
    (8, 3, "has data.classes=3, and the run in .* was trained with 10: set --conf"),
  ):
    config.data.path = str(write_arrays(tmp_path / str(size), size=size, classes=classes))
    with pytest.raises(UserError, match=words):
      evaluate(finished[0], config=config)
  folder = shutil.copytree(finished[0], tmp_path / "run")
  names = json.loads((folder / "classes.json").read_text())
  (folder / "classes.json").write_text(json.dumps([*names[1:], names[0]]))
  with pytest.raises(UserError, match="names the class 1, and the data set has the class 0 in"):
    evaluate(folder)
  # Data without any name in common number their classes only.
  (folder / "classes.json").write_text(json.dumps([f"digit {name}" for name in names]))
  assert evaluate(folder)[0]["top1"] == finished[1]["top1"]
