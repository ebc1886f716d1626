"""Weights of torchvision's and timm's ResNets in .safetensors files."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxspeed.errors import UserError
from jaxspeed.models.exchange import load_weights, save_weights
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet_weights import RESNET

safetensors_numpy = pytest.importorskip("safetensors.numpy")

SMALL = ResNet(18, classes=5, width=4)


@functools.cache
def shapes_of(model):
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  return jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)


def random_variables(model, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: np.abs(rng.standard_normal(leaf.shape).astype(np.float32)), shapes_of(model)
  )


@pytest.fixture
def saved(tmp_path) -> pathlib.Path:
  save_weights(tmp_path / "net.safetensors", random_variables(SMALL), RESNET)
  return tmp_path / "net.safetensors"


def rewrite(path, change):
  tensors = safetensors_numpy.load_file(path)
  change(tensors)
  safetensors_numpy.save_file(tensors, path)


def assert_equal(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_what_is_saved_is_loaded(tmp_path):
  model = ResNet(101, classes=3, width=4)
  variables = random_variables(model)
  save_weights(tmp_path / "net.safetensors", jax.tree.map(jnp.asarray, variables), RESNET)
  assert_equal(load_weights(tmp_path / "net.safetensors", shapes_of(model), RESNET), variables)
  assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64])
def test_other_floats_become_those_of_the_net(dtype, saved):
  expected = random_variables(SMALL)

  def cast(tensors):
    tensors.update({name: x.astype(dtype) for name, x in tensors.items()})

  rewrite(saved, cast)
  loaded = load_weights(saved, shapes_of(SMALL), RESNET)
  assert_equal(loaded, jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), expected))
  assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("fc", ["kept", "absent"])
def test_a_new_head_is_the_initial_one(fc, saved):
  if fc == "absent":  # as timm's nets without classes
    rewrite(saved, lambda tensors: [tensors.pop(name) for name in ("fc.weight", "fc.bias")])
  model = ResNet(18, classes=7, width=4)
  initial, theirs = random_variables(model, seed=1), random_variables(SMALL)
  loaded = load_weights(saved, initial, RESNET, head="new")
  assert_equal(loaded["params"].pop("head"), initial["params"]["head"])
  theirs["params"].pop("head")
  assert_equal(loaded, theirs)


def test_counters_of_batches_are_passed_over(saved):
  rewrite(saved, lambda tensors: tensors.update({"bn1.num_batches_tracked": np.array(3)}))
  assert_equal(load_weights(saved, shapes_of(SMALL), RESNET), random_variables(SMALL))


@pytest.mark.parametrize(
  "change, sentence",
  [
    (
      lambda t: t.pop("layer3.1.bn2.running_var"),
      "lacks layer3.1.bn2.running_var; it must hold torchvision's or timm's ResNet,",
    ),
    (
      lambda t: t.update({f"conv1.{i}.weight": np.zeros(3, np.float32) for i in range(5)}),
      r"has unknown tensors: conv1.0.weight, conv1.1.weight, conv1.2.weight and 2 more; it ",
    ),
    (
      lambda t: t.update({"bn1.weight": np.zeros(8, np.float32)}),
      r"bn1.weight has shape \[8\], but the model's has \[4\]: name the weights of a model of the ",
    ),
    (
      lambda t: t.update({"fc.weight": np.zeros((9, 32), np.float32)}),
      "has 9 classes, but the model has 5: choose the data set of these weights, or --config",
    ),
    (
      lambda t: t.update({"conv1.weight": np.zeros((4, 3, 7, 7), np.int8)}),
      "conv1.weight is stored as I8, but only F64, F32, F16, BF16 are read",
    ),
    (
      lambda t: t["bn1.weight"].fill(np.nan),
      "bn1.weight has numbers that are not finite .*: name other weights",
    ),
    (
      lambda t: t["layer1.0.bn1.running_var"].fill(-0.5),
      "layer1.0.bn1.running_var has negative variances: name other weights",
    ),
  ],
  ids=["missing", "unknown", "shape", "classes", "integers", "nan", "negative"],
)
def test_a_file_that_does_not_fit_is_refused(change, sentence, saved):
  rewrite(saved, change)
  with pytest.raises(UserError, match=sentence) as raised:
    load_weights(saved, shapes_of(SMALL), RESNET)
  assert str(saved) in str(raised.value)


@pytest.mark.parametrize(
  "model, sentence",
  [
    (ResNet(34, classes=5, width=4), "of depth 18, .* set config.model.depth=18 or name"),
    (ResNet(50, classes=5, width=4), "of depth 18, .* set config.model.depth=18 or name"),
    (ResNet(18, classes=5, width=8), "width 4, but .* has width 8: set config.model.width=4 or"),
  ],
)
def test_another_depth_or_width_is_named(model, sentence, saved):
  with pytest.raises(UserError, match=sentence):
    load_weights(saved, shapes_of(model), RESNET)


@pytest.mark.parametrize("name", ["net.pth", "net.pt", "pytorch_model.bin", "NET.PTH", "net.tar"])
def test_a_pickle_is_refused_unread_and_told_how_to_convert(name, tmp_path):
  sentence = r"is a pickle.*safetensors.torch.save_file\(torch.load\('.*', weights_only=True\), '"
  with pytest.raises(UserError, match=sentence):
    load_weights(tmp_path / name, shapes_of(SMALL), RESNET)


@pytest.mark.parametrize(
  "content, sentence",
  [  # a renamed pickle is known by its first bytes
    *(
      (begin + b"abcd" + bytes(50), r"is a pickle.*save_file\(.*'net_converted.safetensors'")
      for begin in (b"PK\x03\x04", b"\x80\x02", b"\x80\x05")
    ),
    (None, "does not exist: name the weights"),
    (b"GIF89a no such file", "cannot be read as .safetensors"),
  ],
)
def test_a_file_that_is_missing_or_something_else_is_told(content, sentence, tmp_path):
  path = tmp_path / "net.safetensors"
  if content:
    path.write_bytes(content)
  with pytest.raises(UserError, match=sentence):
    load_weights(path, shapes_of(SMALL), RESNET)


def test_a_file_that_is_cut_off_or_a_folder_is_told(saved, tmp_path):
  saved.write_bytes(saved.read_bytes()[:-10])
  for path, sentence in ((saved, "cannot be read as .safetensors"), (tmp_path, "is a folder")):
    with pytest.raises(UserError, match=sentence):
      load_weights(path, shapes_of(SMALL), RESNET)


def test_a_place_that_cannot_be_written_is_told(tmp_path):
  with pytest.raises(UserError, match="no_folder/net.safetensors cannot be written"):
    save_weights(tmp_path / "no_folder" / "net.safetensors", random_variables(SMALL), RESNET)
