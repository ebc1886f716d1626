"""docs/serving.md: its programs run in a process without jaxspeed, and say the same."""

import importlib.util
import json
import re
import runpy

import numpy as np
from commands import ROOT, environment, python
from exported import NAMES, network, photographs, spread
from PIL import Image

from jaxspeed.models.resnet import ResNet
from jaxspeed.run.export import write_network

PAGE = ROOT / "docs" / "serving.md"
BLOCK = re.compile(r"^## (\w+)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", re.M | re.S)
# torchvision is in none of our environments: its names are those of tests/torch_resnet.py.
RUNNER = """
import importlib.util, json, sys, types
sys.modules["jaxspeed"] = None
sys.path.insert(0, {tests!r})
if importlib.util.find_spec("torchvision") is None and importlib.util.find_spec("torch"):
  import torch_resnet
  build = lambda num_classes: torch_resnet.TorchResNet(18, num_classes)
  sys.modules["torchvision"] = types.SimpleNamespace(models=types.SimpleNamespace(resnet18=build))
for block in json.loads(sys.argv[1]):
  exec(block, {{}})
"""
NEEDS = {"onnxruntime": "onnxruntime", "JAX": "jax", "torchvision": "torch"}


def test_the_programs_of_the_page_say_the_same(tmp_path):
  blocks = dict(BLOCK.findall(PAGE.read_text()))
  assert set(NEEDS) == set(blocks)
  there = [name for name, needs in NEEDS.items() if importlib.util.find_spec(needs)]
  formats = ["stablehlo", "safetensors", "onnx"]
  if not importlib.util.find_spec("onnx"):
    formats.remove("onnx")
    there = [name for name in there if name != "onnxruntime"]
  photo = photographs(80, count=1)[0]
  Image.fromarray(photo).save(tmp_path / "cat.png")
  (tmp_path / "cat.png").rename(tmp_path / "cat.jpg")  # lossless: all see the same pixels
  made = network(ResNet(depth=18, classes=10), 64)
  made.facts["resize"] = 72
  prepare = re.search(r"^```python\n# prepare.py\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
  (tmp_path / "prepare.py").write_text(prepare[1])
  image = runpy.run_path(str(tmp_path / "prepare.py"))["prepare"](tmp_path / "cat.jpg", 64, 72)
  assert image.shape == (64, 64, 3) and image.dtype == np.uint8
  made, (expected,) = spread(made, image[None])
  for name in formats:
    write_network(tmp_path / f"model.{name}", made, file_format=name)
  runner = RUNNER.format(tests=str(ROOT / "tests"))
  words = json.dumps([blocks[name] for name in there])
  done = python("-c", runner, words, cwd=tmp_path, env=environment(PYTHONUTF8="1"))
  lines = done.stdout.splitlines()
  assert len(lines) == len(there)
  for line in lines:
    name, _, probability = line.rpartition(" ")
    assert name == NAMES[expected.argmax()]
    assert abs(float(probability) - expected.max()) < 1e-5
