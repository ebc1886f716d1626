"""Runs on images from disk: order, resume, rectangles, phases, noise."""

import contextlib
import dataclasses
import json
import types

import jax
import numpy as np
import pytest
from image_files import encode, write
from PIL import Image
from recipes import get_config
from tolerances import EQUAL, assert_equal
from toy import MIXED
from toy_images import killed_at, params_of, toy_stream

from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError
from jaxspeed.feeds import stream
from jaxspeed.feeds.evaluation import Evaluation
from jaxspeed.feeds.stream import StreamFeed
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.evaluation import evaluate, predictions_of
from jaxspeed.run.predict import predict, run_predictor
from jaxspeed.run.restore import load_config, open_run
from jaxspeed.run.session import train
from jaxspeed.run.setup import open_data, plan_of
from jaxspeed.steps.spec import make_train_spec

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.filterwarnings("error::jaxspeed.devices.compile.CompiledInsideClock")


@pytest.fixture(scope="module")
def finished(places, tmp_path_factory):
  """A finished run's folder and its result; its images are mixed with each other."""
  folder = tmp_path_factory.mktemp("runs") / "a"
  return folder, train(toy_stream(*places, **MIXED), str(folder))


def test_a_run_leaves_images_for_its_report(finished):
  folder, _ = finished
  found = Thumbnails.read(folder, 10)
  predictions = Predictions.read(folder, 1000)
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
  variables = open_run(folder, config, None).variables
  sets = open_data(config)
  config.precision = "float64"
  trained = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(variables))
  losses, columns = [], []
  for devices in (1, 8):
    mesh = mesh_lib.make_mesh(devices)
    plan = plan_of(config, sets, devices=devices)
    spec = make_train_spec(config, plan, mesh)
    variables = mesh_lib.replicate(trained, mesh)
    found, _ = StreamFeed.prepare_evaluation(sets, spec, plan.phases[-1], variables)()
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
def test_a_run_goes_on_at_any_step(finished, places, tmp_path, stop):
  whole, _ = finished
  fields = {"checkpoint.every_seconds": 0.0, "checkpoint.keep": 9}
  config = toy_stream(*places, **MIXED, **fields)
  folder = tmp_path / "killed"
  with killed_at(stop):
    train(config, str(folder))
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


def test_too_little_memory_is_told_with_the_way_out(places, tmp_path, monkeypatch):
  def exhausted(*_):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nmore")

  monkeypatch.setattr(StreamFeed, "train", exhausted)
  with pytest.raises(UserError, match="allocating 9 bytes..: set --config.accumulate to 2 or more"):
    train(toy_stream(*places), str(tmp_path / "small"))


def test_a_folder_without_splits_and_with_hard_names(places, tmp_path, capsys):
  """Two classes that a list by lines would shift, photos that are to be turned, and WebP."""
  images, cache = places
  exif = Image.Exif()
  exif[0x0112] = 6
  names = ("a\nb", "c\x1b[2J")
  files = {f"{names[0]}/x.heic": b""}
  for i in range(40):
    pixels = np.random.RandomState(i).randint(0, 100, (40, 60, 3)) + 150 * (i % 2)
    kind = ("JPEG", "WEBP", "TIFF", "BMP")[i // 2 % 4]
    options = {} if kind == "BMP" else {"exif": exif}
    files[f"{names[i % 2]}/{i}.{kind.lower()}"] = encode(pixels.astype(np.uint8), kind, **options)
  write(tmp_path / "photos", files)
  fields = {"data.path": str(tmp_path / "photos")}
  result = train(toy_stream(images, cache, **fields), str(tmp_path / "run"))
  data = result["config"]["data"]
  assert (data["train_images"], data["eval_images"], data["classes"]) == (36, 4, 2)
  assert result["evaluated_on"] == "held-out"
  printed = capsys.readouterr().out
  for words in (
    "photos: class folders; 4 of 40 images, 10 % of each class, are held out for evaluation",
    "the data set decides: data.classes=2 in place of the recipe's 4\n",
    "evaluation of 4 held-out images",
    "an epoch leaves out 4 of 36 training images (11%), different ones each time",
    "1 file in the class folders is left out",
  ):
    assert words in printed
  assert "\x1b" not in printed and "could not be read" not in printed
  shown = [str(tmp_path / "photos" / names[i % 2] / f"{i}.jpeg") for i in (0, 1)]
  rows = predict(run_predictor(tmp_path / "run"), shown)
  # Which of them is likelier depends on so short a training, and so on the processor.
  assert [{name for name, _ in row} for row in rows] == [set(names)] * 2
  assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list(names)


def test_the_stream_of_the_next_phase_opens_in_the_epoch_before_it(places, monkeypatch):
  opened = []

  class Noted(stream.TrainStream):
    def __init__(self, *arguments, image_size, **options):
      opened.append(image_size)
      super().__init__(*arguments, image_size=image_size, **options)

  monkeypatch.setattr(stream, "TrainStream", Noted)
  config = toy_stream(*places, **{"epochs": 3.0, "phases.first_epoch": (0, 2)})
  sets = open_data(config)
  spec = make_train_spec(config, plan_of(config, sets), mesh_lib.make_mesh(1))
  with contextlib.closing(stream.batches_from(sets, spec, 7, 0, {})) as batches:
    # Two steps an epoch; the stream opens behind the first of them.
    sizes = [(next(batches).image.shape[1], *opened) for _ in range(6)]
  assert sizes == [(16, 16)] * 2 + [(16, 16, 24)] * 2 + [(24, 16, 24)] * 2


def test_the_shapes_of_rectangles_do_not_depend_on_the_batch():
  rng = np.random.default_rng(0)
  sizes = {name: rng.integers(200, 700, 20_000).astype(np.int32) for name in ("width", "height")}
  split = types.SimpleNamespace(**sizes)
  phase = types.SimpleNamespace(eval_mode="rect", eval_size=128, eval_resize=145)
  config = get_config("imagenette")
  shapes = []
  for batch in (16, 64, 256):
    plan = types.SimpleNamespace(eval_batch_size=batch)
    spec = types.SimpleNamespace(config=config, plan=plan, devices=1)
    shapes.append(Evaluation(spec, split, phase).shapes)
  assert shapes[0] == shapes[1] == shapes[2] and len(shapes[0]) > 1
