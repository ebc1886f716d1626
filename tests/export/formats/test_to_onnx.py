"""ONNX files in onnxruntime, against the models in JAX, on photographs."""

import dataclasses
import json

import flax.linen as nn
import numpy as np
import pytest
from exported import NAMES, network, photographs, spread

from jaxspeed.errors import UserError
from jaxspeed.export.formats.to_onnx import write_onnx
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.resnet import STAGES, ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.models.vit import ViT

WHY = "{} is not installed: pip install '.[export]'"
onnx = pytest.importorskip("onnx", reason=WHY.format("onnx"))
onnxruntime = pytest.importorskip("onnxruntime", reason=WHY.format("onnxruntime"))

RESNET, BENCH = dict(width=16, classes=10), dict(widths=(8, 16, 16))
FIRST, LATER = (dict(width=4, pool_position=f"before_{x}") for x in ("norm", "activation"))
VIT = dict(classes=10, patch_size=8, width=24, depth=2, heads=3, mlp=40)
# Each with an odd side where pools and patches leave pixels over, and the number of its norms that
# cannot be folded: those whose negative factors a pool before them would see.
CASES = {
  "resnet18-unfused": (ResNet(depth=18, ghost_splits=2, **RESNET), 33, 0),
  "resnet50-blurred": (ResNet(depth=50, blurpool=True, **RESNET), 41, 0),
  "resnet18-whitened": (ResNet(depth=18, whiten=True, **RESNET), 33, 0),
  "resnet9": (ResNet9(width=4), 33, 0),
  "resnet9-whitened": (ResNet9(activation="celu", celu_alpha=0.3, whiten=True, **FIRST), 32, 3),
  "resnet9-frozen": (ResNet9(train_norm_scale=False, **LATER), 32, 0),
  "airbench94": (Airbench(**BENCH), 33, 0),
  "airbench96": (Airbench(depth=3, activation="silu", whiten_bias="none", **BENCH), 32, 0),
  "vit": (ViT(**VIT), 36, 0),
  "vit-token": (ViT(pool="token", posemb="learned", gelu="erf", rep_size=20, **VIT), 32, 0),
}


def session_of(path):
  return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES)
def test_probabilities_are_those_of_the_model(case, tmp_path, monkeypatch):
  for depth in (18, 50):  # fewer equal blocks to compile
    monkeypatch.setitem(STAGES, depth, (1, 2, 1, 1))
  model, side, unfolded = CASES[case]
  dtype = ("uint8", "float32")[list(CASES).index(case) % 2]
  images = photographs(side)
  if dtype == "float32":
    images = images.astype(np.float32) / 255
  made, expected = spread(network(model, side, input_dtype=dtype), images)
  norms = []
  for fold in (False, True):
    write_onnx(tmp_path / "net.onnx", made, fold=fold)
    session = session_of(tmp_path / "net.onnx")
    for part in (slice(0, 1), slice(None)):  # any number of images
      (found,) = session.run(None, {"images": images[part]})
      np.testing.assert_allclose(found, expected[part], rtol=0, atol=1e-5)
    operators = [node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node]
    norms.append(operators.count("BatchNormalization"))
  has_norms = not isinstance(model, ViT)
  assert norms[1] == unfolded and (norms[0] > 5) == has_norms


def test_the_metadata_say_how_to_prepare_images(tmp_path):
  model = ViT(**VIT | {"depth": 1})
  write_onnx(tmp_path / "net.onnx", network(model, 32))
  session = session_of(tmp_path / "net.onnx")
  about = session.get_modelmeta().custom_metadata_map
  found = {key: json.loads(value) for key, value in about.items()}
  assert found["class_names"] == list(NAMES)
  assert (found["image_size"], found["resize"], found["mean"]) == (32, 32, [120.0, 115.0, 105.0])
  assert (found["input_dtype"], found["input_range"]) == ("uint8", [0, 255])
  (taken,), (given,) = session.get_inputs(), session.get_outputs()
  assert (taken.name, taken.type, taken.shape) == ("images", "tensor(uint8)", ["n", 32, 32, 3])
  assert (given.name, given.type, given.shape) == ("probabilities", "tensor(float)", ["n", 10])
  saved = onnx.load(tmp_path / "net.onnx")
  assert (saved.ir_version, saved.opset_import[0].version) == (8, 17)


def test_models_of_ones_own_are_sent_to_stablehlo(tmp_path):
  class Mine(ViT):
    pass

  made = network(ViT(**VIT), 32)
  for model in (nn.Dense(3), Mine(**VIT)):
    with pytest.raises(UserError, match=f"^{type(model).__name__} has no ONNX .* stablehlo"):
      write_onnx(tmp_path / "net.onnx", dataclasses.replace(made, model=model))


def test_a_parameter_that_an_edit_added_is_not_left_out(tmp_path):
  made = network(ResNet9(width=4), 32)
  made.variables["params"]["layer1"]["excite"] = {"kernel": np.ones((4, 4), np.float32)}
  with pytest.raises(UserError, match="ResNet9 leaves out layer1.excite.kernel, .* stablehlo"):
    write_onnx(tmp_path / "net.onnx", made)
  assert not (tmp_path / "net.onnx").exists()
