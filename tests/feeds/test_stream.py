"""Runs on images from disk: order, resume, rectangles, phases, broken files, noise."""

import dataclasses
import json
import os
import re
import shutil
import threading
import time
import types

import jax
import numpy as np
import pytest
from PIL import Image
from tolerances import EQUAL, assert_equal
from toy import MIXED, load_recipe
from toy_images import params_of, toy_stream, write_folder

from jaxspeed.data.disk.sources import open_images
from jaxspeed.data.prepare.shards import write_shards
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.feeds import train_streams
from jaxspeed.feeds.evaluation import prepare_evaluation
from jaxspeed.feeds.input_wait import InputWait
from jaxspeed.feeds.stream import StreamFeed
from jaxspeed.records.predictions import read_predictions
from jaxspeed.records.rows import mean_pace
from jaxspeed.records.thumbnails import FILE as THUMBNAILS
from jaxspeed.records.thumbnails import read_thumbnails
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.checkpoint import Checkpoints
from jaxspeed.run.evaluation import evaluate, predictions_of
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.restore import load_config, open_run
from jaxspeed.run.session import train
from jaxspeed.run.setup import FOLLOWING, as_data_decide, open_data, plan_of
from jaxspeed.run.trainer import Trainer
from jaxspeed.steps.spec import make_train_spec

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
  """A folder of images and one for caches."""
  return write_folder(tmp_path_factory.mktemp("images")), tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(places, tmp_path_factory):
  """A finished run's folder and its result; its images are mixed with each other."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  return folder, train(toy_stream(*places, **MIXED), str(folder))


def test_a_run_leaves_images_for_its_report(finished):
  folder, _ = finished
  found = read_thumbnails(folder / THUMBNAILS)
  predictions = read_predictions(folder / "predictions.npz", 1000)
  assert set(found.eval_index.tolist()) <= set(predictions.index.tolist())
  assert found.eval_image.shape[1:] == (64, 64, 3) and found.eval_image.std() > 1
  assert len(found.train_image) and found.train_image.std() > 1
  assert len(found.filters) and (found.train_share > 0).any()


def test_a_run_of_two_phases(finished):
  folder, result = finished
  rows = read_metrics(folder)
  # 40 images are two batches of 16, and 8 are dropped.
  assert [(r["epoch"], r["step"], r["examples"]) for r in rows] == [(1, 2, 32), (2, 4, 64)]
  assert [r["image_size"] for r in rows] == [16, 24]
  # Of four classes there is no top-5.
  assert result["top5"] is None
  assert all("train_top1" in r and "eval_top1" in r for r in rows)
  assert not any(name.endswith("top5") for r in rows for name in r)
  assert result["config"]["data"]["train_images"] == 40
  # 13 images: accuracies are multiples of 1 / 13.
  assert round(result["top1"] * 13, 6) == round(result["top1"] * 13)
  assert json.loads((folder / "classes.json").read_text()) == [f"class_{i}" for i in range(4)]


def test_every_evaluation_image_counts_once_in_every_mode(finished):
  folder, result = finished
  config = load_config(folder)
  assert config.eval.mode == "rect"
  config.eval.mode = "rect,center,flip,five,rect_flip"
  rows = evaluate(folder, config=config)
  assert [row["mode"] for row in rows] == config.eval.mode.split(",")
  assert {row["images"] for row in rows} == {13}
  assert (rows[0]["top1"], rows[0]["top5"]) == (result["top1"], None)
  assert rows[0]["loss"] == pytest.approx(read_metrics(folder)[-1]["eval_loss"], rel=1e-5)
  # Each looks at other pixels.
  assert len({row["loss"] for row in rows}) == 5, rows


@pytest.mark.equivalence
@pytest.mark.usefixtures("float64")
def test_one_device_counts_as_eight(finished, places):
  folder, _ = finished
  config = load_config(folder)
  _, restored = open_run(folder, config, None)
  sets = open_data(config)
  config.precision = "float64"
  trained = jax.tree.map(
    lambda x: np.asarray(x, np.float64), jax.device_get(restored.tree.state.evaluated())
  )
  losses, columns = [], []
  for devices in (1, 8):
    mesh = mesh_lib.make_mesh(devices)
    plan = plan_of(config, sets, devices=devices)
    spec = make_train_spec(config, plan, mesh)
    variables = mesh_lib.replicate(trained, mesh)
    found, _ = prepare_evaluation(sets, spec, plan.phases[-1], variables)()
    assert int(found.sums.count) == 13
    losses.append(found.sums.means(4)["loss"])
    predictions = predictions_of(found, 4)
    columns.append(dataclasses.asdict(predictions))
    # Rectangles of several shapes, in batches that are not full, whose order is another.
    order = np.concatenate([part.index for part in found.images])
    assert (len(order) > 13) == (devices == 8) and len(found.images) > 1
    assert (np.diff(order[order >= 0]) < 0).any()
    np.testing.assert_array_equal(predictions.index, np.arange(13))
    np.testing.assert_array_equal(predictions.label, sets.sets[0].eval.label)
    assert int(found.sums.top1) == (predictions.label == predictions.predicted).sum()
  assert losses[0] == pytest.approx(losses[1], rel=EQUAL)
  assert_equal(*columns)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_goes_on_at_any_step(finished, places, tmp_path, stop, monkeypatch):
  whole, _ = finished
  fields = {"checkpoint.every_seconds": 0.0, "checkpoint.keep": 9}
  config = toy_stream(*places, **MIXED, **fields)
  folder = tmp_path / "killed"

  class Killed(Exception):
    pass

  save = Checkpoints.save

  def save_then_die(self, step, tree, clock, **named):
    save(self, step, tree, clock, **named)
    if step == stop:
      raise Killed

  monkeypatch.setattr(Checkpoints, "save", save_then_die)
  monkeypatch.setattr("jaxspeed.run.loss_watcher._STEPS_AHEAD", 0)  # so that each step is saved
  with pytest.raises(Killed):
    train(config, str(folder))
  monkeypatch.setattr(Checkpoints, "save", save)
  train(config, str(folder))
  (step_1, carry_1), (step_2, carry_2) = params_of(whole), params_of(folder)
  assert step_1 == step_2 == 4
  jax.tree.map(np.testing.assert_array_equal, carry_1.state, carry_2.state)
  names = ("epoch", "step", "train_loss", "eval_loss", "eval_top1")
  rows_1, rows_2 = (read_metrics(each) for each in (whole, folder))
  assert [[r[n] for n in names] for r in rows_1] == [[r[n] for n in names] for r in rows_2]


def test_the_short_last_batch_is_kept(places, tmp_path):
  config = toy_stream(*places, **{"data.last_batch": "keep"})
  train(config, str(tmp_path / "keep"))
  rows = read_metrics(tmp_path / "keep")
  assert [(r["step"], r["examples"]) for r in rows] == [(3, 40), (6, 80)]
  _, carry = params_of(tmp_path / "keep")
  assert int(carry.state.step) == 6


def test_resized_copies_are_read_where_they_are(places, tmp_path, capsys):
  images, cache = places
  fields = {"phases.copies": (20, 0)}
  result = train(toy_stream(images, cache, **fields), str(tmp_path / "without"))
  assert "no copies of 20 px" in capsys.readouterr().out
  copies = tmp_path / "copies"
  shutil.copytree(images, copies / "20")
  os.remove(copies / "20" / "train" / "class_0" / "000.jpg")
  again = train(
    toy_stream(images, cache, **fields, **{"data.copies": str(copies)}), str(tmp_path / "with")
  )
  assert "no copies" not in capsys.readouterr().out
  # The phases count their own images.
  assert again["config"]["data"]["train_images"] == 39
  assert result["config"]["data"]["train_images"] == 40
  shutil.rmtree(copies / "20" / "train" / "class_0")
  shutil.rmtree(copies / "20" / "val" / "class_0")
  with pytest.raises(UserError, match="different classes: make the copies again"):
    open_data(toy_stream(images, cache, **fields, **{"data.copies": str(copies)}))


def test_a_broken_image_is_replaced_and_named(places, tmp_path, capsys):
  images = shutil.copytree(places[0], tmp_path / "images")
  (images / "train" / "class_1" / "001.jpg").write_bytes(b"")
  truncated = images / "val" / "class_2" / "002.jpg"
  truncated.write_bytes(truncated.read_bytes()[:-500])
  (images / "val" / "class_3" / "003.jpg").write_bytes(b"")  # is in no batch
  config = toy_stream(images, tmp_path / "cache", **{"data.max_broken": 0.16})
  result = train(config, str(tmp_path / "skip"))
  printed = capsys.readouterr().out
  assert "could not be read" in printed
  assert "train/class_1/001.jpg (it is empty)" in printed
  assert "val/class_2/002.jpg (its data are damaged or cut off)" in printed
  assert "val/class_3/003.jpg (it is empty)" in printed
  counts = {"eval_images": 11, "eval_images_skipped": 2, "train_images_broken": 1}
  for row in (result, *read_metrics(tmp_path / "skip")):
    assert {name: row[name] for name in counts} == counts
  assert json.loads((tmp_path / "skip" / "result.json").read_text())["eval_images"] == 11
  predictions = read_predictions(tmp_path / "skip" / "predictions.npz", 1000)
  left = {f"val/class_{i % 4}/{i:03d}.jpg" for i in range(13) if i not in (2, 3)}
  assert set(predictions.names) == left and len(predictions.names) == 11
  assert [int(name[len("val/class_")]) for name in predictions.names] == predictions.label.tolist()
  assert sum(each["images"] for each in result["per_class"].values()) == 11
  told = "(2 of 13 evaluation images skipped, 1 training image replaced)"
  assert [line.endswith(told) for line in printed.splitlines()].count(True) == 2
  assert "11 of 13 test images" in printed
  assert (tmp_path / "skip" / "broken_images.tsv").read_text().splitlines() == [
    "split\tname\treason",
    "eval\tval/class_2/002.jpg\tits data are damaged or cut off",
    "eval\tval/class_3/003.jpg\tit is empty",
    "train\ttrain/class_1/001.jpg\tit is empty",
  ]
  (row,) = evaluate(tmp_path / "skip")
  assert (row["images"], row["images_skipped"]) == (11, 2)
  with pytest.raises(UserError, match="^2 of 13 evaluation images .*allows 1: "):
    evaluate(tmp_path / "skip", config=toy_stream(images, tmp_path / "cache"))
  with pytest.raises(UserError, match="class_1/001.jpg .* cannot be decoded"):
    train(
      toy_stream(images, tmp_path / "cache", **{"data.on_error": "raise"}), str(tmp_path / "raise")
    )


def test_more_vanished_images_than_max_broken_end_the_run(places, tmp_path):
  images, run = shutil.copytree(places[0], tmp_path / "images"), tmp_path / "run"
  config = toy_stream(images, tmp_path / "cache")
  open_data(config)  # the headers are known
  for number in (2, 6):
    (images / "val" / "class_2" / f"00{number}.jpg").unlink()
    (images / "val" / "class_2" / f"00{number}.jpg").symlink_to("nowhere")
  gone = "it cannot be read: No such file or directory"
  with pytest.raises(UserError) as error:
    train(config, str(run))
  assert str(error.value) == (
    f"2 of 13 evaluation images could not be read, and config.data.max_broken=0.01 allows 1: "
    f"val/class_2/002.jpg ({gone}), val/class_2/006.jpg ({gone}); repair them, or continue without "
    f"them with --config.data.max_broken=0.1539 ({run / 'broken_images.tsv'} lists all)."
  )
  assert (run / "broken_images.tsv").read_text().count(gone) == 2
  config.data.max_broken = 0.1539
  result = train(config, str(run))
  assert (result["eval_images"], result["eval_images_skipped"]) == (11, 2)
  assert (run / "broken_images.tsv").read_text().count(gone) == 2
  with pytest.raises(UserError, match="^2 of 13 evaluation images .*allows 0: "):
    config.data.max_broken = 0.0
    evaluate(run, config=config)


def test_too_many_headers_that_cannot_be_read_are_told_before_anything_is_compiled(
  places, tmp_path
):
  images = shutil.copytree(places[0], tmp_path / "images")
  for number in (1, 5, 9):
    (images / "train" / "class_1" / f"00{number}.jpg").write_bytes(b"<html>" * (number == 5))
  config = toy_stream(images, tmp_path / "cache")
  sentence = "^3 of 40 training images in .* allows 1: train/class_1/001.jpg .it is empty.*=0.075 "
  with pytest.raises(UserError, match=sentence):
    train(config, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
  config.data.max_broken = 0.075
  assert open_data(config).counts[0] == {0: 40}


def test_noise_needs_no_disk(places, tmp_path):
  config = toy_stream(places[0], places[1], **{"data.path": "", "data.synthetic": True})
  result = train(config, str(tmp_path / "noise"))
  rows = read_metrics(tmp_path / "noise")
  assert [r["step"] for r in rows] == [2, 4]
  assert round(result["top1"] * 13, 6) == round(result["top1"] * 13)
  (row,) = evaluate(tmp_path / "noise")
  assert row["images"] == 13


class SlowNoise(train_streams.TrainStream):
  """Half a second a batch, far more than a step takes."""

  def __next__(self):
    time.sleep(0.5)
    return super().__next__()


@pytest.mark.parametrize("slow", [False, True])
def test_waiting_for_input_is_measured_and_told_once_a_phase(
  places, tmp_path, capsys, monkeypatch, slow
):
  if slow:
    monkeypatch.setattr(train_streams, "TrainStream", SlowNoise)
  fields = {"data.path": "", "data.synthetic": True, "epochs": 3.0, "phases.first_epoch": (0, 2)}
  train(toy_stream(*places, **fields), str(tmp_path / "noise"))
  printed = capsys.readouterr().out.splitlines()
  rows = read_metrics(tmp_path / "noise")
  assert all(0 <= row["data_wait"] <= 1 for row in rows)
  if slow:
    assert all(row["data_wait"] > 0.1 for row in rows), rows
    assert all(row["step_seconds"] >= 0.5 for row in rows), rows
  hints = [line for line in printed if "python -m jaxspeed.prepare resize" in line]
  # Without the pause at most a stutter of the machine, told of once a phase as well.
  assert len(hints) == 2 if slow else len(hints) <= 2
  assert all(line.startswith("the devices waited for input ") for line in hints)
  phases = [line for line in printed if line.startswith("phase ")]
  assert [line.partition(" epoch")[0] for line in phases] == [
    "phase 1: 16 px, batch 16: 2",
    "phase 2: 24 px, batch 16: 1",
  ]
  pace = mean_pace(rows[:2], examples=0)
  assert f"waited for input {pace['data_wait']:.1%} of the time" in phases[0]
  assert f"{rows[2]['images_per_second_per_device']:,.0f} per device" in phases[1]
  # A phase's line stands below the row of its last epoch.
  assert printed.index(phases[0]) < [line.split()[:1] for line in printed].index(["3"])


class Clock:
  """Seconds that pass when the test says so; threads wait for a second of it."""

  def __init__(self):
    self.now, self._passed = 0.0, threading.Condition()

  def sleep(self, seconds):
    with self._passed:
      self.now += seconds
      self._passed.notify_all()

  def wait_for(self, second):
    with self._passed:
      assert self._passed.wait_for(lambda: self.now >= second, timeout=60)


@pytest.mark.parametrize(
  ("batch_seconds", "step_seconds", "idle"),
  # Of a batch every 180 ms, steps of 30 leave the devices idle for 150.
  [(180.0, 30.0, 150.0), (180.0, 9.0, 171.0), (30.0, 30.0, 0.0), (10.0, 30.0, 0.0)],
)
def test_waiting_is_measured_from_the_end_of_the_step(batch_seconds, step_seconds, idle):
  clock = Clock()

  class Loss:
    def __init__(self, end):
      self.end = end

    def is_ready(self):
      return clock.now >= self.end

  def end_of(loss):
    clock.wait_for(loss.end)
    return loss.end

  wait = InputWait(end_of, lambda: clock.now)
  wait.begin()
  wait.take(lambda: clock.sleep(batch_seconds))
  assert wait.take_seconds() == batch_seconds  # nothing was under way
  end = clock.now
  for _ in range(5):
    end = max(end, clock.now) + step_seconds
    wait.dispatched(Loss(end))
    wait.take(lambda: clock.sleep(batch_seconds))
  assert wait.take_seconds() == 5 * idle
  assert wait.take_seconds() == 0.0
  clock.sleep(1e9)
  wait.close()


def test_what_passes_before_a_batch_is_asked_for_is_no_wait_for_it():
  clock = Clock()
  wait = InputWait(lambda _: 1.0, lambda: clock.now)
  wait.dispatched(types.SimpleNamespace(is_ready=lambda: True))
  clock.sleep(5.0)
  wait.take(lambda: clock.sleep(2.0))
  assert wait.take_seconds() == 2.0
  wait.close()


def test_a_step_that_fails_leaves_the_error_to_the_loop():
  wait = InputWait()

  def fail():
    raise RuntimeError("a device is gone")

  wait.dispatched(types.SimpleNamespace(is_ready=lambda: True, block_until_ready=fail))
  assert wait.take(lambda: "batch") == "batch"
  assert wait.take_seconds() == 0.0
  wait.close()


def test_too_little_memory_is_told_with_the_way_out(places, tmp_path, monkeypatch):
  def exhausted(*_):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")

  monkeypatch.setattr(StreamFeed, "train", exhausted)
  with pytest.raises(UserError, match="allocating 9 bytes..: set --config.accumulate to 2 or more"):
    train(toy_stream(*places), str(tmp_path / "small"))


def test_a_share_of_the_training_images_is_held_out(places, tmp_path):
  config = toy_stream(*places, tune_on="validation")
  sets = open_data(config)
  held_out = sets.sets[0]
  assert (len(held_out.train), len(held_out.eval)) == (36, 4)
  names = {held_out.train.name(i) for i in range(36)} | {held_out.eval.name(i) for i in range(4)}
  assert len(names) == 40 and all(name.startswith("train") for name in names)


def test_images_smaller_than_the_crop_are_named(places):
  config = toy_stream(*places, **{"phases.image_size": (16, 42)})
  (note,) = open_data(config).notes
  # Short sides are 40 to 44 pixels by the image's number.
  assert note.startswith("16 training images are smaller than 42 px and are enlarged: train/class_")
  assert "000.jpg (80 x 40)" in note and note.endswith("and 11 more")


def test_most_images_smaller_than_every_crop_have_a_size_of_their_own(places):
  sizes = {"phases.image_size": (64, 96), "data.image_size": 96}
  *_, advice = open_data(toy_stream(*places, **sizes)).notes
  # Short sides are 40 to 44 pixels.
  assert advice.startswith(
    "most training images are smaller than every crop: '--config.phases.first_epoch=()' "
    "--config.data.image_size=42 trains at one size"
  )
  one = {"phases.first_epoch": (), "phases.image_size": (), "phases.min_scale": ()}
  one |= {"phases.eval_mode": (), "data.image_size": 96}
  *_, advice = open_data(toy_stream(*places, **one)).notes
  assert "every crop: --config.data.image_size=42 trains" in advice
  assert open_data(toy_stream(*places, **one | {"data.image_size": 40})).notes == ()


def test_the_classes_on_the_disk_decide(places, tmp_path):
  config = toy_stream(*places, **{"data.classes": 1000, "target_metric": "top5"})
  data = open_data(config, follow=FOLLOWING)
  decided, top5 = data.notes
  assert decided == "the data set decides: data.classes=4 in place of the recipe's 1000"
  assert top5.startswith(
    "there is no top-5 accuracy with 4 classes, so the target cannot be reached"
  )
  assert as_data_decide(config, data).data.classes == 4
  with pytest.raises(UserError, match="has 4 classes, but config.data.classes is 1000: set"):
    open_data(config)
  config.data.path = str(write_folder(tmp_path / "one", train=4, held_out=1, classes=1))
  with pytest.raises(UserError, match="one has one class, class_0: at least two are needed"):
    open_data(config, follow=FOLLOWING)


def test_shards_train_as_their_folder_does(places, tmp_path):
  images, cache = places
  write_shards(open_images(name="", path=str(images), cache=str(cache)), tmp_path, name="toy")
  fields = {"data.path": str(tmp_path), "data.name": "toy", "phases.eval_mode": ("rect", "rect")}
  result = train(toy_stream(images, cache, **fields), str(tmp_path / "run"))
  assert result["config"]["data"]["train_images"] == 40
  names = json.loads((tmp_path / "run" / "classes.json").read_text())
  assert names == [f"class_{i}" for i in range(4)]
  (row,) = evaluate(tmp_path / "run")
  assert row["images"] == 13


def test_predictions_of_a_streamed_run(finished, places):
  folder, _ = finished
  (row,) = predict(run_predictor(folder), [str(places[0] / "val" / "class_3" / "003.jpg")], top=4)
  assert {name for name, _ in row} == {f"class_{i}" for i in range(4)}
  assert sum(p for _, p in row) == pytest.approx(1.0, abs=1e-5)


def test_a_folder_without_splits_and_with_hard_names(places, tmp_path, capsys):
  """Two classes that a list by lines would shift, photos that are to be turned, and WebP."""
  images, cache = places
  exif = Image.Exif()
  exif[0x0112] = 6
  names = ("a\nb", "c\x1b[2J")
  for i in range(40):
    folder = tmp_path / "photos" / names[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(i).randint(0, 100, (40, 60, 3)) + 150 * (i % 2)
    kind = ("JPEG", "WEBP", "TIFF", "BMP")[i // 2 % 4]
    picture = Image.fromarray(pixels.astype(np.uint8))
    path = folder / f"{i}.{kind.lower()}"
    picture.save(path, kind, **({} if kind == "BMP" else {"exif": exif}))
  (folder / "x.heic").write_bytes(b"")
  fields = {"data.path": str(tmp_path / "photos")}
  result = train(toy_stream(images, cache, **fields), str(tmp_path / "run"))
  data = result["config"]["data"]
  assert (data["train_images"], data["eval_images"], data["classes"]) == (36, 4, 2)
  assert result["evaluated_on"] == "held-out"
  printed = capsys.readouterr().out
  assert (
    "photos: class folders; 4 of 40 images, 10 % of each class, are held out for evaluation"
    in printed
  )
  assert "the data set decides: data.classes=2 in place of the recipe's 4\n" in printed
  assert "evaluation of 4 held-out images" in printed
  assert "an epoch leaves out 4 of 36 training images (11%), different ones each time" in printed
  assert "1 file in the class folders is left out" in printed and ".heic (1)" in printed
  assert "\x1b" not in printed and "could not be read" not in printed
  shown = [str(tmp_path / "photos" / names[i % 2] / f"{i}.jpeg") for i in (0, 1)]
  rows = predict(run_predictor(tmp_path / "run"), shown)
  # Which of them is likelier depends on so short a training, and so on the processor.
  assert [{name for name, _ in row} for row in rows] == [set(names)] * 2
  assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list(names)


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"data.classes": 5}, "has 4 classes, but config.data.classes is 5"),
    ({"phases.image_size": (16,)}, "has 1 values, but config.phases.first_epoch=.0.0, 1.0. has 2"),
    ({"phases.first_epoch": (1, 0)}, "epochs must start at 0, ascend"),
    (
      {"phases.batch_size": (16, 0)},
      "config.phases.batch_size=.16, 0.: .*each a whole number from 1",
    ),
    ({"phases.batch_size": (16, 12)}, "config.phases.batch_size=12 does not divide over 8 devices"),
    ({"eval.mode": "six"}, "choose one of center, flip, five, rect, rect_flip"),
    ({"phases.eval_mode": ("six", "rect")}, "choose one of center, flip, five, rect, rect_flip"),
    ({"data.mean": ()}, r"config.data.mean=\(\) with .*: it is not computed for a stream"),
    ({"data.path": "nowhere"}, "nowhere does not exist"),
    ({"model.whiten": True}, "whiten=True with .*: a stream has no first images"),
    ({"warmup": "on"}, "config.warmup='on' with .*: a stream has none"),
    ({"data.feed": "resident", "data.name": "digits"}, "choose one of center, flip, six"),
  ],
)
def test_what_no_stream_can_be_is_refused(places, tmp_path, fields, words):
  config = toy_stream(*places)
  config.model.whiten = False
  config.update_from_flattened_dict(fields)
  with pytest.raises(UserError, match=words):
    train(config, str(tmp_path / "refused"), given=tuple(fields))


def test_only_a_stream_has_phases(places, tmp_path):
  config = load_recipe("quickstart.py")
  config.phases.image_size = (8,)
  with pytest.raises(UserError, match="config.phases.image_size=.8,.: only a stream has phases"):
    train(config, str(tmp_path / "refused"))


@pytest.fixture
def compiled_here():
  """Names of what the main thread compiles from now on."""
  compiled = []

  def listen(event, duration, **_):
    if event.endswith("backend_compile_duration"):
      if threading.current_thread() is threading.main_thread():
        compiled.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield compiled
  jax.monitoring.unregister_event_duration_listener(listen)


def three_sizes(images, cache, **fields):
  return toy_stream(
    images,
    cache,
    epochs=4.0,
    **{
      "phases.first_epoch": (0, 1, 2),
      "phases.image_size": (16, 24, 32),
      "phases.min_scale": (0.5, 0.5, 0.5),
      "phases.eval_mode": ("center", "rect", "rect"),
      "checkpoint.every_seconds": 0.0,
      **fields,
    },
  )


def test_nothing_compiles_inside_the_clock(places, tmp_path, compiled_here, capsys, monkeypatch):
  train_epoch, in_clock = Trainer._train_epoch, []

  def counted(self, step):
    compiled_here.clear()
    done = train_epoch(self, step)
    in_clock.append(len(compiled_here))
    if step == 4 and len(in_clock) == 3:
      raise KeyboardInterrupt
    return done

  monkeypatch.setattr(Trainer, "_train_epoch", counted)
  config = three_sizes(*places)
  with pytest.raises(KeyboardInterrupt):
    train(config, str(tmp_path / "three"))
  assert in_clock == [0, 0, 0]
  printed = capsys.readouterr().out
  for phase in (1, 2, 3):
    assert re.search(rf"the \d programs of phase {phase} were ready [\d.]+ s after", printed)
  # Killed in the third epoch: its last checkpoint lies inside the phase.
  train(config, str(tmp_path / "three"))
  assert in_clock[3:] and not any(in_clock)
  rows = read_metrics(tmp_path / "three")
  assert [row["image_size"] for row in rows] == [16, 24, 32, 32]
