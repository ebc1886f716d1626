"""Published weights: evaluated as a recipe evaluates, fine-tuned, and written for others."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from toy_images import params_of, toy_stream, write_folder

from jaxspeed.config import stored
from jaxspeed.errors import UserError
from jaxspeed.models.pretrained import load_resnet
from jaxspeed.run.restore import evaluate_pretrained, export
from jaxspeed.run.session import train

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run of a small ResNet: its config, folder, result, and exported weights."""
  before = jax.config.jax_compilation_cache_dir
  folder = tmp_path_factory.mktemp("weights")
  config = small_resnet(write_folder(folder / "images"), folder / "cache")
  result = train(config, str(folder / "run"))
  export(folder / "run", folder / "net.safetensors")
  yield config, folder, result
  jax.config.update("jax_compilation_cache_dir", before)


def small_resnet(images, cache, **fields):
  config = toy_stream(images, cache)
  config.model = dict(
    name="resnet",
    depth=18,
    width=4,
    zero_init=False,
    blurpool=False,
    ghost_splits=1,
    norm_momentum=0.9,
  )
  config.update(epochs=1.0)
  config.phases.update(
    first_epoch=(), image_size=(), min_scale=(), batch_size=(), copies=(), eval_mode=()
  )
  config.data.image_size = 32
  config.update_from_flattened_dict(fields)
  return config


def test_exported_weights_are_those_of_the_run(trained):
  config, folder, result = trained
  _, carry = params_of(folder / "run")
  evaluated = jax.device_get(carry.state.evaluated())
  loaded = load_resnet(folder / "net.safetensors", evaluated)
  jax.tree.map(np.testing.assert_array_equal, loaded, evaluated)


def test_weights_are_evaluated_without_a_run(trained):
  config, folder, result = trained
  weighed = config.copy_and_resolve_references()
  weighed.pretrained.path = str(folder / "net.safetensors")
  weighed.eval.mode = "center,flip"
  rows = evaluate_pretrained(weighed)
  assert [row["mode"] for row in rows] == ["center", "flip"]
  assert rows[0]["top1"] == result["top1"] and rows[0]["images"] == 13


def test_the_command_evaluates_weights(trained, tmp_path):
  config, folder, result = trained
  recipe = tmp_path / "recipe.py"
  stored.save(config, tmp_path / "config.json")
  recipe.write_text(
    "import pathlib\nfrom jaxspeed.config import stored\n"
    "def get_config():\n"
    "  return stored.load(pathlib.Path(__file__).with_name('config.json'))\n"
  )
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "jaxspeed.evaluate",
      f"--config={recipe}",
      f"--config.pretrained.path={folder / 'net.safetensors'}",
    ],
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout)["top1"] == result["top1"]


def test_a_fine_tune_begins_with_the_weights(trained, tmp_path):
  config, folder, _ = trained
  fields = {"pretrained.path": str(folder / "net.safetensors"), "schedule.peak": 1e-12}
  tuned = config.copy_and_resolve_references()
  tuned.update_from_flattened_dict(fields)
  train(tuned, str(tmp_path / "tuned"))
  (_, before), (_, after) = params_of(folder / "run"), params_of(tmp_path / "tuned")
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9),
    jax.device_get(before.state.params),
    jax.device_get(after.state.params),
  )


def test_another_head_for_other_classes(trained, tmp_path):
  config, folder, _ = trained
  images = write_folder(tmp_path / "images", classes=3)
  tuned = config.copy_and_resolve_references()
  tuned.pretrained.path = str(folder / "net.safetensors")
  tuned.data.update(path=str(images), classes=3)
  with pytest.raises(UserError, match="set config.pretrained.head='new'"):
    train(tuned, str(tmp_path / "kept"))
  tuned.pretrained.head = "new"
  result = train(tuned, str(tmp_path / "new"))
  assert 0 <= result["top1"] <= 1


@pytest.mark.parametrize(
  "fields, words",
  [
    ({"pretrained.path": ""}, "weights come from --config.pretrained.path=FILE.safetensors"),
    ({"pretrained.path": "none.safetensors"}, "none.safetensors is not there"),
    ({"pretrained.path": "net.pth"}, "net.pth is a pickle"),
    ({"pretrained.head": "new"}, "set --config.pretrained.head=keep"),
  ],
)
def test_what_no_weights_can_be_is_refused(trained, fields, words):
  config, folder, _ = trained
  other = config.copy_and_resolve_references()
  other.pretrained.path = str(folder / "net.safetensors")
  other.update_from_flattened_dict(fields)
  with pytest.raises(UserError, match=words):
    evaluate_pretrained(other)
