"""What the plan command prints, and how it counts the data at its path."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest
from in_process import command, mistake
from made_plans import config_with
from toy_images import write_folder

from jaxspeed.planning.make import make_plan
from jaxspeed.planning.text import csv_lines, describe


def test_describe_lists_phases_and_rates():
  sizes = dict(epochs=2.5, batch_size=10, data__train_images=105, data__eval_images=30)
  config = config_with(name="some", **sizes, schedule__peak=0.5, schedule__final=0.1)
  # Ten steps an epoch, 25 in all; the peak after 0.2 * 25 = 5 of them.
  assert describe(config, make_plan(config)).splitlines() == [
    "some: 25 steps, 250 images",
    "epochs 1-3: 10 steps an epoch, batch 10, 32 x 32 pixels",
    "optimizer: sgd; learning rate: linear, every step in --csv",
    "learning rate at step 1: 0.1",
    "learning rate at step 5: 0.5",
    "learning rate at step 25: 0.05",
    "evaluation: 30 images, mode center",
  ]
  config.epochs = 1.0
  assert "\nepoch 1: 10 steps an epoch, " in describe(config, make_plan(config))


def planned(*arguments):
  """What the plan command prints."""
  done = command("plan", *arguments)
  assert (done.returncode, done.stderr) == (0, "")
  return done.stdout


def test_the_steps_are_printed_with_the_images_that_count():
  # 20 images: 3 steps of 8, 8 and 4 of them, then 2 steps of 16 and 4; the rate falls from 1.
  config = config_with(epochs=3.0, data__train_images=20, data__feed="stream")
  config.data.last_batch = "keep"
  config.phases.update(first_epoch=(0, 2), image_size=(16, 32), batch_size=(8, 16))
  config.phases.min_scale = (0.08, 0.5)
  config.schedule.segments = ((0, 2, 1.0, 0.25), (2, 3, 0.1, 0.1))
  config.optimizer.momentum_segments = ((0, 3, 0.5, 0.5),)
  assert list(csv_lines(config, make_plan(config))) == [
    "epoch,step_in_epoch,image_size,global_batch,learning_rate,momentum,min_scale",
    "0,1,16,8,0.875,0.5,0.08",
    "0,2,16,8,0.75,0.5,0.08",
    "0,3,16,4,0.625,0.5,0.08",
    "1,1,16,8,0.5,0.5,0.08",
    "1,2,16,8,0.375,0.5,0.08",
    "1,3,16,4,0.25,0.5,0.08",
    "2,1,32,16,0.1,0.5,0.5",
    "2,2,32,4,0.1,0.5,0.5",
  ]


@pytest.mark.parametrize("name, field", [("sgd", "momentum"), ("adamw", "b1")])
def test_printed_numbers_have_all_their_digits(name, field):
  sizes = dict(epochs=2.5, data__train_images=105, batch_size=10)
  config = config_with(optimizer__name=name, **{f"optimizer__{field}": 0.1}, **sizes)
  plan = make_plan(config)
  columns = [line.split(",") for line in csv_lines(config, plan)][1:]
  assert [float(column[4]) for column in columns] == plan.table["learning_rate"].tolist()
  assert {(column[3], column[5]) for column in columns} == {("10", "0.1")}


# A recipe with flags, and lines that are printed: weights of 4 bytes, 53,120 running statistics and
# 4 sums; lr 11.5 and wd 0.0153 of legacy/airbench94.py, biases with 64 times the rate; 9.0 and
# 0.012 of airbench96_faster.py; lr 0.24, bias_lr 0.053, head_lr 0.67, wd 2e-6 * 2000 of
# airbench94_muon.py. The rates end one step before their last value. With LARS the head is one of
# the kernels, and the other groups do not decay.
TOLD = """
imagenet_lars:4096 --config.allreduce.group_mb=1000 --devices=16
  gradients: 102.2 MB a step in 1 all-reduce, and 0.21 MB of statistics in one
imagenet18:1 --parameters
  | head/kernel | (2048, 1000) |
  Total: 25,557,032
cifar10_airbench:94 --groups
  kernel 1,967,616 1.5 -> 0.1088 0.00133 0.85 11.5 -> 0.8341 0.0153
  bias 1,152 96 -> 6.963 2.079e-05 0.85 736 -> 53.39 0.0153
  whiten_bias 24 1.5 -> 0 0.00133 0.85 11.5 -> 0 0.0153
  frozen 288 not trained
cifar10_airbench:96_faster --groups
  0.587 -> 0.0003019 0.002667 0.85 9 -> 0.00463 0.012
cifar10_airbench:94_muon --groups
  kernel 1,967,616 0.24 -> 0.0012 0 0.6 0.24 -> 0.0012 0
  head 2,560 1340 -> 6.7 2.985e-06 0.85 0.67 -> 0.00335 0.004
  whiten_bias 24 106 -> 0 3.774e-05 0.85 0.053 -> 0 0.004
imagenet_lars:4096 --groups
  kernel 25,502,912 10 -> 0.0001001 0.0002 0.9
  scale 26,560 10 -> 0.0001001 0 0.9
imagenet_vit --config.optimizer.layer_decay=0.75 --groups
  each layer before has 0.75 times it
"""


@pytest.mark.parametrize("case", re.split(r"\n(?=\S)", TOLD.strip()))
def test_figures_are_printed_in_the_units_of_the_original(case):
  arguments, *rows = case.splitlines()
  lines = [" ".join(line.split()) for line in planned(*arguments.split()).splitlines()]
  for row in rows:
    assert any(row.strip() in line for line in lines), (row, lines)


# The images that are there


def write_arrays(folder: pathlib.Path, images: int, side: int) -> pathlib.Path:
  folder.mkdir()
  np.save(folder / "images.npy", np.zeros((images, side, side, 3), np.uint8))
  np.save(folder / "labels.npy", np.arange(images) % 3)
  return folder


def test_a_plan_counts_the_arrays_at_its_path(tmp_path):
  path = f"--config.data.path={write_arrays(tmp_path / 'mine', images=700, side=24)}"
  flags = ["cifar10", path, "--config.batch_size=100"]
  text = planned(*flags)
  # A tenth of each class is held out: 631 images, six batches of 100 an epoch, 46 in 7.65 epochs.
  assert text.startswith("cifar10: 46 steps, 4600 images\n") and "\nevaluation: 69 images" in text
  assert re.search(r"\ndata: mine.*, 631 images to train on\n", text)
  # As in a training, what the command line does not say is the arrays' to decide.
  assert "6 steps an epoch, batch 100, 24 x 24 pixels" in text
  assert "\nthe arrays decide: data.image_size=24 in place of the recipe's 32, " in text
  flags.append("--config.data.classes=3")
  assert len(planned(*flags, "--csv").splitlines()) == 1 + 46
  tuned = planned(*flags, "--config.tune_on=validation")
  assert "\nevaluation: 63 images" in tuned and "568 images to train on" in tuned
  # It refuses what a training would.
  for given, words in (
    ("--config.data.image_size=32", "set --config.data.image_size=24"),
    ("--config.batch_size=650", "larger than the training set of 631 images"),
  ):
    assert words in mistake("plan", *flags, given)


def test_a_plan_counts_the_folders_at_its_path(tmp_path):
  data = write_folder(tmp_path / "images", train=40, held_out=13, classes=4)
  flags = ["imagenette", f"--config.data.path={data}", f"--config.data.cache={tmp_path / 'cache'}"]
  text = planned(*flags, "--config.batch_size=8")
  assert "5 steps an epoch, batch 8" in text and "evaluation: 13 images" in text
  assert "splits train and val, 40 images to train on" in text and "leaves out" not in text
  assert "\nthe data set decides: data.classes=4 in place of the recipe's 10\n" in text
  left_out = "\nan epoch leaves out 8 of 40 training images (20%), different ones each time"
  assert left_out in planned(*flags, "--config.batch_size=32")
  (data / "photos.csv").write_text("file,label\na.jpg,cat\n")
  listed = f"--config.data.path={data / 'photos.csv'}"
  assert "a.jpg cannot be read (No such file or directory)" in mistake("plan", "imagenette", listed)
  words = "photos.csv holds no data set, and this recipe trains from memory"
  assert words in mistake("plan", "cifar10", listed)
  given = mistake("plan", *flags, "--config.data.classes=5")
  assert "has 4 classes, but config.data.classes is 5" in given
  best = planned(*flags, "--config.batch_size=8", "--config.checkpoint.keep_best=top5")
  assert "no top-5 accuracy with 4 classes, so that nothing follows it: --config.tar" in best


def test_what_needs_tensorflow_says_so_before_anything_is_opened_or_compiled(tmp_path, monkeypatch):
  data = write_folder(tmp_path / "images", train=4, held_out=4)
  sentence = "reading images from disk needs TensorFlow: pip install 'jaxspeed[images]'"
  path, cache = f"--config.data.path={data}", f"--config.data.cache={tmp_path}/cache"
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  for given in ([], [path, cache, "--config.batch_size=4"]):
    assert f"training: {sentence}\n" in planned("imagenette", *given)
  monkeypatch.setattr("jaxspeed.run.setup.open_data", None)
  refused = mistake("train", "imagenette", path, f"--workdir={tmp_path / 'run'}")
  assert refused == f"{sentence}." and not (tmp_path / "run").exists()
  # Without a path a plan opens nothing.
  assert "data:" not in planned("imagenette", "--config.data.synthetic=True")


def test_a_plan_knows_the_sets_that_need_no_path():
  flags = ["quickstart", "--config.data.name=cifar100"]
  assert mistake("plan", *flags, "--config.data.classes=10") == (
    "config.data.classes=10, but cifar100 has 100: set --config.data.classes=100, or the path of a "
    "data set of your own."
  )
  text = planned(*flags)
  assert "500 steps an epoch, batch 100" in text and "\nevaluation: 10000 images" in text
