"""Weights of ResNets and vision transformers in .safetensors files, and what is refused."""

import pathlib

import jax
import ml_dtypes
import numpy as np
import pytest
from exported import shapes_of

from jaxspeed.errors import UserError
from jaxspeed.models.exchange import load_weights, save_weights
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.models.vit import ViT
from jaxspeed.models.vit_weights import VIT

safetensors_numpy = pytest.importorskip("safetensors.numpy")

SMALL = ResNet(18, classes=5, width=4)


def random_variables(model, seed=0):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: np.abs(rng.standard_normal(leaf.shape).astype(np.float32)), shapes_of(model, 32)
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


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64])
def test_other_floats_become_those_of_the_net(dtype, saved):
  expected = random_variables(SMALL)

  def cast(tensors):
    tensors.update({name: x.astype(dtype) for name, x in tensors.items()})

  rewrite(saved, cast)
  loaded = load_weights(saved, shapes_of(SMALL, 32), RESNET)
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


def without(name):
  return lambda tensors: tensors.pop(name)


def holding(**tensors):
  return lambda t: t.update({name.replace("__", "."): value for name, value in tensors.items()})


def filled(name, value):
  return lambda tensors: tensors[name].fill(value)


def zeros(*shape, dtype=np.float32):
  return np.zeros(shape, dtype)


@pytest.mark.parametrize(
  "change, sentence",
  [
    (
      without("layer3.1.bn2.running_var"),
      "lacks layer3.1.bn2.running_var; it must hold torchvision's or timm's ResNet,",
    ),
    (
      holding(**{f"conv1.{i}.weight": zeros(3) for i in range(5)}),
      r"has unknown tensors: conv1.0.weight, conv1.1.weight, conv1.2.weight and 2 more; it ",
    ),
    (
      holding(bn1__weight=zeros(8)),
      r"bn1.weight has shape \[8\], but the model's has \[4\]: name the weights of a model of the ",
    ),
    (
      holding(fc__weight=zeros(9, 32)),
      "has 9 classes, but the model has 5: choose the data set of these weights, or --config",
    ),
    (
      holding(conv1__weight=zeros(4, 3, 7, 7, dtype=np.int8)),
      "conv1.weight is stored as I8, but only F64, F32, F16, BF16 are read",
    ),
    (filled("bn1.weight", np.nan), "bn1.weight has numbers that are not finite .*: name other"),
    (
      filled("layer1.0.bn1.running_var", -0.5),
      "bn1.running_var has negative variances: name other",
    ),
  ],
)
def test_a_file_that_does_not_fit_is_refused(change, sentence, saved):
  rewrite(saved, change)
  with pytest.raises(UserError, match=sentence) as raised:
    load_weights(saved, shapes_of(SMALL, 32), RESNET)
  assert str(saved) in str(raised.value)


VITS = dict(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24)


@pytest.mark.parametrize(
  "model, sentence",
  [
    (ResNet(34, classes=5, width=4), "of depth 18, .* set config.model.depth=18 or name"),
    (ResNet(50, classes=5, width=4), "of depth 18, .* set config.model.depth=18 or name"),
    (ResNet(18, classes=5, width=8), "width 4, but .* has width 8: set config.model.width=4 or"),
    (ViT(**VITS | {"depth": 3}), "depth 2, but the config's has depth 3: set config.model.depth=2"),
    (ViT(**VITS | {"classes": 7}), "has 5 classes, but the model has 7"),
    (ViT(**VITS | {"width": 32}), "width 16, but .* width 32: set config.model.width=16 or name"),
    (
      ViT(**VITS, pool="token", posemb="learned"),
      "lacks cls_token, pos_embed; it must hold timm's",
    ),
  ],
)
def test_weights_of_another_model_are_refused(model, sentence, tmp_path):
  theirs, layout = (SMALL, RESNET) if isinstance(model, ResNet) else (ViT(**VITS), VIT)
  save_weights(tmp_path / "net.safetensors", random_variables(theirs), layout)
  with pytest.raises(UserError, match=sentence):
    load_weights(tmp_path / "net.safetensors", shapes_of(model, 32), layout)


PICKLE = r"is a pickle.*safetensors.torch.save_file\(torch.load\('.*', weights_only=True\), '"


@pytest.mark.parametrize(
  "name, content, sentence",
  [
    # By its name a pickle is refused unread, and told how to convert.
    *((f"net{suffix}", None, PICKLE) for suffix in (".pth", ".pt", ".bin", ".PTH", ".tar")),
    # A renamed one is known by its first bytes.
    *(
      ("net.safetensors", begin + b"abcd" + bytes(50), r"is a pickle.*'net_converted.safetensors'")
      for begin in (b"PK\x03\x04", b"\x80\x02", b"\x80\x05")
    ),
    ("net.safetensors", None, "does not exist: name the weights"),
    ("net.safetensors", b"GIF89a no such file", "cannot be read as .safetensors"),
    ("", None, "is a folder"),
  ],
)
def test_a_file_that_is_something_else_is_refused(name, content, sentence, tmp_path):
  if content:
    (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=sentence):
    load_weights(tmp_path / name, shapes_of(SMALL, 32), RESNET)


def test_a_file_that_is_cut_off_or_cannot_be_written_is_told(saved, tmp_path):
  saved.write_bytes(saved.read_bytes()[:-10])
  with pytest.raises(UserError, match="cannot be read as .safetensors"):
    load_weights(saved, shapes_of(SMALL, 32), RESNET)
  with pytest.raises(UserError, match="no_folder/net.safetensors cannot be written"):
    save_weights(tmp_path / "no_folder" / "net.safetensors", random_variables(SMALL), RESNET)
