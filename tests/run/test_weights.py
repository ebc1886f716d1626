"""Published weights: evaluated as a recipe evaluates, fine-tuned, and written for others."""

import json
import pathlib
import re
import shutil
import sys

import jax
import numpy as np
import pytest
from in_process import command, mistake
from toy_images import params_of, toy_stream, write_folder

import jaxspeed
from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.export.formats.to_stablehlo import metadata_file
from jaxspeed.models.exchange import load_weights
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.run.evaluation import evaluate_pretrained
from jaxspeed.run.planned import planned
from jaxspeed.run.predict import predict, pretrained_predictor, read_image, run_predictor
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")
safetensors_numpy = pytest.importorskip("safetensors.numpy")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run of a small ResNet: its config, folder, result, and exported weights."""
  folder = tmp_path_factory.mktemp("weights")
  config = small_resnet(write_folder(folder / "images"), folder / "cache")
  result = train(config, str(folder / "run"))
  jaxspeed.load(folder / "run").export(folder / "net.safetensors", format="safetensors")
  return config, folder, result


def small_resnet(images, cache, **fields):
  config = toy_stream(images, cache)
  config.model = dict(name="resnet", depth=18, width=4, zero_init=False, blurpool=False)
  config.model.update(ghost_splits=1, norm_momentum=0.9)
  config.update(epochs=1.0)
  config.phases.update(dict.fromkeys(config.phases, ()))
  config.data.image_size = 32
  config.update_from_flattened_dict(fields)
  return config


@pytest.fixture
def weighed(trained):
  """A recipe that begins with the weights of the run."""
  config, folder, _ = trained
  config = config.copy_and_resolve_references()
  config.pretrained.path = str(folder / "net.safetensors")
  return config


def nameless(weighed, folder):
  """The path of the same weights without names of classes, as torchvision publishes them."""
  tensors = safetensors_numpy.load_file(weighed.pretrained.path)
  safetensors_numpy.save_file(tensors, folder / "published.safetensors")
  return str(folder / "published.safetensors")


def test_weights_are_evaluated_without_a_run(trained, weighed, tmp_path):
  config, _, result = trained
  config = config.copy_and_resolve_references()
  config.data.classes = 1000  # the recipe's, which the folder overrules
  stored.save(config, tmp_path / "config.json")
  (tmp_path / "recipe.py").write_text(
    "import pathlib\nfrom jaxspeed.config import stored\n"
    "def get_config():\n"
    "  return stored.load(pathlib.Path(__file__).with_name('config.json'))\n"
  )
  flags = f"--config.pretrained.path={weighed.pretrained.path}", "--config.eval.mode=center,flip"
  done = command("evaluate", "--json", f"--config={tmp_path / 'recipe.py'}", *flags)
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  assert [row["mode"] for row in rows] == ["center", "flip"], done
  assert rows[0]["top1"] == result["top1"] and rows[0]["images"] == 13


def test_predictions_with_weights_are_those_of_their_run(trained, weighed, tmp_path):
  _, folder, _ = trained
  images = [str(folder / "images" / "val" / f"class_{i}" / f"00{i}.jpg") for i in range(4)]
  expected = predict(run_predictor(folder / "run"), images)
  found = predict(pretrained_predictor(weighed), images)
  for one, other in zip(found, expected, strict=True):
    assert [name for name, _ in one] == [name for name, _ in other]
    np.testing.assert_allclose([p for _, p in one], [p for _, p in other], rtol=1e-5)
  # Without the data set, the file's own names are used; those of torchvision have none.
  names, path = [name for name, _ in expected[0]], weighed.pretrained.path
  weighed.data.update(path="", classes=1000)
  (named,) = predict(pretrained_predictor(weighed), images[:1])
  assert [name for name, _ in named] == names
  with pytest.raises(UserError, match="has 4 classes, but .* 5: .*--config.data.classes=4 to pred"):
    weighed.data.classes = 5
    predict(pretrained_predictor(weighed, ["data.classes"]), images)
  weighed.pretrained.path, weighed.data.classes = nameless(weighed, tmp_path), 4
  (numbered,) = predict(pretrained_predictor(weighed), images[:1])
  assert [f"class_{name}" for name, _ in numbered] == names
  weighed.pretrained.path = path
  weighed.data.path = str(write_folder(tmp_path / "three", classes=3))
  with pytest.raises(UserError, match="has 3 classes, and config.data.classes is 4"):
    predict(pretrained_predictor(weighed, ["data.classes"]), images)
  with pytest.raises(UserError, match="has 4 classes, but the model has 3: choose the data set"):
    predict(pretrained_predictor(weighed), images)


def test_weights_are_not_given_the_names_of_other_classes(weighed, tmp_path, capsys):
  images = write_folder(tmp_path / "images")
  path, data = weighed.pretrained.path, str(images)
  weighed.data.path = data

  def rename(old, new):
    for split in ("train", "val"):
      (images / split / old).rename(images / split / new)

  def names(folder):
    image = str(images / "val" / folder / "003.jpg")
    return {name for name, _ in predict(pretrained_predictor(weighed), [image])[0]}

  rename("class_3", "moth")
  words = f"{path} was trained with the class class_3, and {data} has the class moth in its place: "
  for use in (lambda: evaluate_pretrained(weighed), lambda: names("moth")):
    with pytest.raises(UserError, match=re.escape(words)):
      use()
  # Numbers cannot be compared with names.
  for number, name in enumerate(("class_0", "class_1", "class_2", "moth")):
    rename(name, str(number))
  assert names("3") == set("0123")
  assert f"{path} and {data} are taken in the same order" in capsys.readouterr().err


def test_a_run_that_ended_early_is_told_with_its_step(trained, tmp_path):
  _, folder, _ = trained
  image = str(folder / "images" / "val" / "class_0" / "000.jpg")
  run = shutil.copytree(folder / "run", tmp_path / "run")
  (run / "result.json").unlink()
  config = json.loads((run / "config.json").read_text())
  (run / "config.json").write_text(json.dumps(config | {"epochs": 3.0}))
  note = f"note: the run in {run} is at step 2 of 6"
  out = f"--out={tmp_path / 'net.safetensors'}"
  for name, *more in (["evaluate"], ["predict", image], ["export", "--format=safetensors", out]):
    told = command(name, str(run), *more)
    assert told.returncode == 0 and told.stderr.count(note) == 1, told
  for flag in ("--step=2", "--step=best", "--quiet"):
    assert "is at step" not in command("predict", str(run), image, flag).stderr
  assert "is at step" not in command("predict", str(folder / "run"), image).stderr
  # A finished run whose last checkpoint is damaged.
  whole = shutil.copytree(folder / "run", tmp_path / "whole")
  shutil.copytree(whole / "checkpoints" / "2", whole / "checkpoints" / "3")
  assert "is at step 2 of" in command("predict", str(whole), image).stderr


def test_an_exported_program_gives_the_probabilities_of_its_run(trained, tmp_path):
  _, folder, _ = trained
  path, workdir = tmp_path / "net.stablehlo", str(folder / "run")
  path.write_text("an older file")
  done = command("export", workdir, "--format=stablehlo", f"--out={path}", "--step=2")
  assert done.returncode == 0, done.stderr
  told = json.loads(done.stdout)
  assert (told["evaluated_weights"], told["step"], told["file"]) == ("average", 2, str(path))
  assert told["class_names"] == [f"class_{i}" for i in range(4)]
  assert json.loads(metadata_file(path).read_text()).items() < told.items()
  run = jaxspeed.load(workdir, step=2)
  files = [str(folder / "images" / "val" / f"class_{i}" / f"00{i}.jpg") for i in range(4)]
  images = np.stack([read_image(file, told["image_size"], told["resize"]) for file in files])
  program = jax.export.deserialize(bytearray(path.read_bytes()))
  np.testing.assert_allclose(program.call(images), run.predict(files), rtol=0, atol=1e-5)
  # From Python too; it returns the metadata.
  weights = run.export(tmp_path / "net.safetensors", format="safetensors")
  assert (weights["step"], weights["output"], "input_range" in weights) == (2, "logits", False)
  loaded = load_weights(tmp_path / "net.safetensors", jax.device_get(run.variables), RESNET)
  jax.tree.map(np.testing.assert_array_equal, loaded, jax.device_get(run.variables))
  for wrong in (dict(format="pth"), dict(format="onnx", input="int8")):
    with pytest.raises(UserError, match=r"^(format=.pth.|input=.int8.): "):
      run.export(tmp_path / "wrong", **wrong)
  with pytest.raises(UserError, match="^fold=True has no effect beside format='stablehlo'"):
    run.export(tmp_path / "wrong", format="stablehlo", fold=True)
  assert not (tmp_path / "wrong").exists()


def test_a_package_that_an_export_lacks_is_named(trained, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnx", None)
  run, out = str(trained[1] / "run"), f"--out={tmp_path / 'net'}"
  sentence = mistake("export", run, "--format=safetensors", "--out=/dev/null")
  assert "/dev/null cannot be written" in sentence
  sentence = mistake("export", run, "--format=onnx", out)
  assert sentence.startswith("ONNX files need the package onnx, which is not installed: pip ")
  assert not [*tmp_path.iterdir()]


def test_another_head_for_other_classes(weighed, tmp_path):
  images, tuned = write_folder(tmp_path / "images", classes=3), weighed
  tuned.data.update(path=str(images), classes=3)
  with pytest.raises(UserError, match="set config.pretrained.head='new'"):
    train(tuned, str(tmp_path / "kept"))
  tuned.pretrained.update(head="new", freeze="backbone")
  tuned.optimizer.update(name="adamw", clip_norm=1.0, layer_decay=0.8, head_rate_factor=10.0)
  result = train(tuned, str(tmp_path / "new"))
  assert 0 <= result["top1"] <= 1
  state = jax.device_get(params_of(tmp_path / "new")[1].state)
  loaded = load_weights(
    pathlib.Path(tuned.pretrained.path), state.eval_variables(), RESNET, head="new"
  )
  loaded["params"].pop("head")
  for variables in (state.variables(), state.eval_variables()):
    variables = {**variables, "params": {**variables["params"]}}
    assert variables["params"].pop("head")["kernel"].any()
    jax.tree.map(np.testing.assert_array_equal, variables, loaded)


def test_weights_that_do_not_fit_are_refused_before_anything_is_compiled(
  weighed, tmp_path, monkeypatch
):
  monkeypatch.setattr("jaxspeed.run.session._ready_feed", None)
  planned(weighed, devices=1)
  weighed.model.depth = 34
  given, workdir = {"given": ["model.depth"]}, str(tmp_path / "run")
  with pytest.raises(UserError, match="holds a model of depth 18, but .* depth 34"):
    train(weighed, workdir, **given)
  with pytest.raises(UserError, match="holds a model of depth 18, but .* depth 34"):
    planned(weighed, devices=1, **given)
  (tmp_path / "text.safetensors").write_bytes(b"{}")
  for name, words in (
    ("text", "cannot be read as .safetensors"),
    ("none", "name the weights with --config.pretrained.path=FILE.*= "),
  ):
    weighed.pretrained.path = str(tmp_path / f"{name}.safetensors")
    with pytest.raises(UserError, match=words):
      train(weighed, workdir)
  assert "none.safetensors does not exist" in planned(weighed, devices=1).lines[-1]
  assert not (tmp_path / "run").exists()
