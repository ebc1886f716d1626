"""Weights in .safetensors files, and what is refused; vision transformers beside PyTorch's; half
precision.
"""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from commands import ROOT
from exported import random_variables, shapes_of
from tolerances import assert_equal

from jaxspeed.errors import UserError
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.exchange import load_weights, save_weights, sizes_in
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.models.vit import ViT
from jaxspeed.models.vit_weights import VIT

safetensors_numpy = pytest.importorskip("safetensors.numpy")

SMALL = ResNet(18, classes=5, width=4)
VITS = dict(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24)


@pytest.fixture
def saved(tmp_path) -> pathlib.Path:
  save_weights(tmp_path / "net.safetensors", random_variables(SMALL, 32), RESNET)
  return tmp_path / "net.safetensors"


def rewrite(path, change):
  tensors = safetensors_numpy.load_file(path)
  change(tensors)
  safetensors_numpy.save_file(tensors, path)


def assert_same(actual, expected):
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64])
def test_other_floats_become_those_of_the_net(dtype, saved):
  expected = random_variables(SMALL, 32)

  def cast(tensors):
    tensors.update({name: x.astype(dtype) for name, x in tensors.items()})

  rewrite(saved, cast)
  loaded = load_weights(saved, shapes_of(SMALL, 32), RESNET)
  assert_same(loaded, jax.tree.map(lambda x: x.astype(dtype).astype(np.float32), expected))
  assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("fc", ["kept", "absent"])
def test_a_new_head_is_the_initial_one(fc, saved):
  if fc == "absent":  # as timm's nets without classes
    rewrite(saved, lambda tensors: [tensors.pop(name) for name in ("fc.weight", "fc.bias")])
  model = ResNet(18, classes=7, width=4)
  initial, theirs = random_variables(model, 32, seed=1), random_variables(SMALL, 32)
  loaded = load_weights(saved, initial, RESNET, head="new")
  assert_same(loaded["params"].pop("head"), initial["params"]["head"])
  theirs["params"].pop("head")
  assert_same(loaded, theirs)


def without(name):
  return lambda tensors: tensors.pop(name)


def holding(shape, *names, dtype=np.float32):
  return lambda tensors: tensors.update(dict.fromkeys(names, np.zeros(shape, dtype)))


def filled(name, value):
  return lambda tensors: tensors[name].fill(value)


@pytest.mark.parametrize(
  "change, sentence",
  [
    (without("layer3.1.bn2.running_var"), "lacks layer3.1.bn2.running_var; it must hold torchv"),
    (holding(3, *"abcde"), "has unknown tensors: a, b, c and 2 more; it "),
    (holding(8, "bn1.weight"), r"bn1.weight has shape \[8\], but the model's has \[4\]: name the"),
    (holding((9, 32), "fc.weight"), "has 9 classes, but the model has 5: choose the data set of"),
    (
      holding((4, 3, 7, 7), "conv1.weight", dtype=np.int8),
      "conv1.weight is stored as I8, but only F64, F32",
    ),
    (filled("bn1.weight", np.nan), "bn1.weight has numbers that are not finite .*: name other"),
    (filled("layer1.0.bn1.running_var", -0.5), "bn1.running_var has negative variances: name"),
  ],
)
def test_a_file_that_does_not_fit_is_refused(change, sentence, saved):
  rewrite(saved, change)
  with pytest.raises(UserError, match=sentence) as raised:
    load_weights(saved, shapes_of(SMALL, 32), RESNET)
  assert str(saved) in str(raised.value)


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
  save_weights(tmp_path / "net.safetensors", random_variables(theirs, 32), layout)
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
    save_weights(tmp_path / "no_folder" / "net.safetensors", random_variables(SMALL, 32), RESNET)


# Vision transformers, in float64


TIMM = dict(pool="token", posemb="learned", gelu="erf")


@pytest.mark.equivalence
@pytest.mark.parametrize("fields", [{}, {"rep_size": 7}, TIMM], ids=["plain", "rep", "timm"])
def test_logits_and_files_are_those_of_torch(fields, tmp_path):
  torch = pytest.importorskip("torch")
  import safetensors.torch
  from torch_nets import vit_logits

  model = ViT(**VITS, **fields, dtype=jnp.float64)
  variables = jax.tree.map(np.float64, random_variables(model, 12, 20))
  # Two pixels more than whole patches, which are left out.
  images = np.random.default_rng(1).standard_normal((3, 14, 21, 3))
  logits = jax.jit(functools.partial(model.apply, train=False))(variables, images)
  save_weights(tmp_path / "ours.safetensors", variables, VIT)
  state = safetensors.torch.load_file(tmp_path / "ours.safetensors")
  expected = vit_logits(state, torch.tensor(images.transpose(0, 3, 1, 2).copy()), heads=4).numpy()
  assert np.abs(expected).max() > 0.1
  assert_equal(logits, expected)
  template = shapes_of(model, 12, 20, dtype=jnp.float64)
  jax.tree.map(
    np.testing.assert_array_equal,
    load_weights(tmp_path / "ours.safetensors", template, VIT),
    variables,
  )


def test_the_stored_comparison_with_timm_was_of_this_model():
  stored = json.loads((ROOT / "results" / "vit_timm.json").read_text())
  parameters = sum(x.size for x in jax.tree.leaves(shapes_of(ViT(**TIMM), 224)))
  assert (parameters, TIMM) == (stored["parameters"]["timm"], stored["fields"])
  assert stored["largest_difference"] <= 1e-4 < stored["largest_logit"]


def test_the_baseline_begins_with_equal_classes_and_has_no_statistics():
  model = ViT(**VITS)
  images = np.random.default_rng(0).standard_normal((2, 12, 12, 3)).astype(np.float32)
  variables = jax.jit(functools.partial(model.init, train=False))(jax.random.key(0), images)
  assert set(variables) == {"params"}
  logits = jax.jit(functools.partial(model.apply, train=True))(variables, images)
  np.testing.assert_array_equal(logits, np.zeros((2, 5)))


def test_the_labels_are_by_kind():
  groups = ViT(**VITS, **TIMM).param_groups(shapes_of(ViT(**VITS, **TIMM), 12)["params"])
  assert groups["class_token"] == groups["positions"] == "embedding"
  assert groups["head"] == {"kernel": "head", "bias": "head_bias"}
  assert groups["block1"]["attention"]["qkv"] == {"kernel": "kernel", "bias": "bias"}
  assert groups["norm"] == {"scale": "scale", "bias": "bias"}


@pytest.mark.parametrize(
  "fields, side, sentence",
  [
    ({"width": 18}, 12, "config.model.width=18: it must be a multiple of config.model.heads=4"),
    ({"patch_size": 16}, 12, "config.model.patch_size=16: images of 12 x 12 pixels have no whole"),
    ({"posemb": "learned"}, 16, "the positions are those of 9 tokens, and .* have 16"),
  ],
)
def test_fields_that_do_not_fit_are_one_sentence(fields, side, sentence):
  model = ViT(**VITS | fields)
  with pytest.raises(UserError, match=sentence):
    variables = shapes_of(model, 12)
    images = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
    jax.eval_shape(functools.partial(model.apply, train=False), variables, images)


def test_a_file_decides_sizes_but_not_the_heads_of_a_model_of_its_width(tmp_path):
  path = tmp_path / "a.safetensors"
  variables = random_variables(ViT(**VITS), 12)
  save_weights(path, variables, VIT)
  sizes = {name: VITS[name] for name in ("depth", "width", "mlp", "patch_size", "heads")}
  assert sizes_in(path, VIT, sizes | {"depth": 9, "mlp": 9}) == sizes
  # Of another width they are timm's, one for each 64 channels, or what an export says.
  assert sizes_in(path, VIT, sizes | {"width": 192, "heads": 3}) == sizes | {"heads": 1}
  metadata = {"model": json.dumps(sizes | {"heads": 2})}
  save_weights(path, variables, VIT, metadata=metadata)
  assert sizes_in(path, VIT, sizes)["heads"] == 2


# Half precision: what is computed in it, and what stays in float32


NETS = {
  "airbench": Airbench(widths=(8, 8, 8)),
  "resnet9": ResNet9(width=8, classes=7, activation="celu", ghost_splits=2, whiten=True),
  "resnet": ResNet(18, classes=10, width=16),
  "vit": ViT(classes=5, patch_size=4, width=16, depth=2, heads=4, mlp=24),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NETS)
def test_parameters_statistics_and_logits_are_float32_beside_half_activations(name, dtype):
  side, model = 20, NETS[name]
  images = np.random.default_rng(0).standard_normal((16, side, side, 3)).astype(np.float32)
  variables = random_variables(model, side)
  half = model.clone(dtype=jax.numpy.dtype(dtype))
  assert {p.dtype for p in jax.tree.leaves(shapes_of(half, side))} == {np.dtype(np.float32)}
  exact, rounded = (
    jax.jit(functools.partial(each.apply, train=True, mutable=["batch_stats"]))(variables, images)
    for each in (model, half)
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {np.dtype(np.float32)}
  difference = np.abs(rounded[0] - exact[0]).max() / np.abs(exact[0]).max()
  assert 1e-5 < difference < 0.1  # 8 or 11 bits of mantissa
