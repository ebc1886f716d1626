"""The images that a stream takes: what is noted, replaced and refused."""

import json
import os
import shutil

import numpy as np
import pytest
from toy_images import toy_stream, write_folder

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.feeds import stream
from jaxspeed.records.arrays import Predictions
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate
from jaxspeed.run.session import train
from jaxspeed.run.setup import FOLLOWING, as_data_decide, open_data, plan_of
from jaxspeed.steps.spec import make_train_spec

pytest.importorskip("tensorflow")


def test_too_many_headers_that_cannot_be_read_are_told_before_anything_is_compiled(
  places, tmp_path
):
  images = shutil.copytree(places[0], tmp_path / "images")
  for number in (1, 5, 9):
    (images / "train" / "class_1" / f"00{number}.jpg").write_bytes(b"<html>" * (number == 5))
  config = toy_stream(images, tmp_path / "cache")
  sentence = "^3 of 40 training images .* allows 1: train/class_1/001.jpg .it is empty.*=0.075: "
  with pytest.raises(UserError, match=sentence):
    train(config, str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()
  config.data.max_broken = 0.075
  assert open_data(config).counts[0] == {0: 40}


def test_the_classes_on_the_disk_decide(places, tmp_path):
  config = toy_stream(*places, **{"data.classes": 1000, "target_metric": "top5"})
  data = open_data(config, follow=FOLLOWING)
  decided, top5 = data.notes
  assert decided == "the data set decides: data.classes=4 in place of the recipe's 1000"
  assert top5.startswith("there is no top-5 accuracy with 4 classes, so that nothing follows it")
  assert as_data_decide(config, data).data.classes == 4
  with pytest.raises(UserError, match="has 4 classes, but config.data.classes is 1000: set"):
    open_data(config)
  config.data.path = str(write_folder(tmp_path / "one", train=4, held_out=1, classes=1))
  with pytest.raises(UserError, match="one has one class, class_0: at least two are needed"):
    open_data(config, follow=FOLLOWING)


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"phases.batch_size": (16, 12)}, "config.phases.batch_size=12 does not divide over 8 devices"),
    ({"phases.eval_mode": ("six", "rect")}, "choose one of center, flip, five, rect, rect_flip"),
    ({"data.path": "nowhere"}, "nowhere does not exist"),
    ({"data.feed": "resident", "data.name": "digits"}, "choose one of center, flip, six"),
  ],
)
def test_what_no_stream_can_be_is_refused(places, tmp_path, fields, words):
  config = toy_stream(*places)
  config.update_from_flattened_dict(fields)
  with pytest.raises(UserError, match=words):
    train(config, str(tmp_path / "refused"), given=tuple(fields))


def test_whitening_filters_are_those_of_the_first_images(places, monkeypatch):
  monkeypatch.setattr(stream, "_WHITENED", 24)
  config = toy_stream(*places, **{"model.whiten": True})
  sets = open_data(config)
  plan, mesh = plan_of(config, sets, devices=1), mesh_lib.make_mesh(1)
  feed = stream.StreamFeed(sets, make_train_spec(config, plan, mesh))
  try:
    kernel = np.asarray(feed.init(7).params["whiten"]["kernel"], np.float64).reshape(27, 27)
    images = feed.show_trained(7, 0, 24).image
  finally:
    feed.close()
  assert images.shape == (24, 16, 16, 3)
  images = (images - np.array(config.data.mean)) / np.array(config.data.std)
  shifted = [images[:, i : i + 14, j : j + 14] for i in range(3) for j in range(3)]
  filtered = np.concatenate(shifted, axis=-1).reshape(-1, 27) @ kernel.T
  covariance = filtered.T @ filtered / len(filtered)
  # White where eigenvalues exceed epsilon, up to float32's rounding of the largest over epsilon.
  diagonal, rounding = np.diag(covariance), 0.01
  assert np.abs(covariance - np.diag(diagonal)).max() < rounding
  assert 0.9 < diagonal[0] <= 1 + rounding and np.all(np.diff(diagonal) < rounding)


def test_resized_copies_are_read_where_they_are(places, tmp_path):
  images, copies = places[0], tmp_path / "copies"
  config = toy_stream(*places, **{"phases.copies": (20, 0)})
  assert any("no copies of 20 px" in note for note in open_data(config).notes)
  shutil.copytree(images, copies / "20")
  os.remove(copies / "20" / "train" / "class_0" / "000.jpg")
  config.data.copies = str(copies)
  data = open_data(config)
  # The phases count their own images.
  assert data.counts == ({20: 39, 0: 40}, 13)
  assert not any("no copies" in note for note in data.notes)
  for split in ("train", "val"):
    shutil.rmtree(copies / "20" / split / "class_0")
  with pytest.raises(UserError, match="different classes: make the copies again"):
    open_data(config)


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
  predictions = Predictions.read(tmp_path / "skip", 1000)
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
  with pytest.raises(UserError, match="^1 of 40 training images .*allows 0: train/class_1/001.jpg"):
    train(toy_stream(images, tmp_path / "cache", **{"data.max_broken": 0.0}), str(tmp_path / "0"))


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
    f"them with --config.data.max_broken=0.1539: then broken_images.tsv lists all."
  )
  assert (run / "broken_images.tsv").read_text().count(gone) == 2
  config.data.max_broken = 0.1539
  result = train(config, str(run))
  assert (result["eval_images"], result["eval_images_skipped"]) == (11, 2)
  assert (run / "broken_images.tsv").read_text().count(gone) == 2
  with pytest.raises(UserError, match="^2 of 13 evaluation images .*allows 0: "):
    config.data.max_broken = 0.0
    evaluate(run, config=config)
