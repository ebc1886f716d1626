"""The names and layouts of torchvision's and timm's ResNets.

Both libraries use the same names: conv1, bn1, layer1.0.conv1 ..., downsample.0, downsample.1, fc.
Their kernels are OIHW, ours OHWI; their linear layers are [out, in].
"""

import numpy as np

from jaxspeed.models.exchange import Layout, Place, Shapes
from jaxspeed.models.resnet import STAGES, is_bottleneck

_LEAVES = {
  "kernel": "weight",
  "scale": "weight",
  "bias": "bias",
  "mean": "running_mean",
  "var": "running_var",
}


def _torch_name(place: Place) -> str:
  """Map ("params", "stage1", "block2", "conv3", "kernel") to "layer1.1.conv3.weight"."""
  _, *modules, leaf = place
  if modules[0] == "stem":
    prefix = {"conv": "conv1", "norm": "bn1"}[modules[1]]
  elif modules[0] in ("head", "whiten"):
    prefix = {"head": "fc", "whiten": "whiten"}[modules[0]]  # torchvision has no whitening
  else:
    stage, block, layer = modules
    layer = {"shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}.get(layer, layer)
    number = int(block.removeprefix("block")) - 1
    prefix = f"{stage.replace('stage', 'layer')}.{number}.{layer.replace('norm', 'bn')}"
  return f"{prefix}.{_LEAVES[leaf]}"


def _to_torch(_: Place, x: np.ndarray) -> np.ndarray:
  return x.transpose(0, 3, 1, 2) if x.ndim == 4 else x.T


def _sizes(shapes: Shapes) -> dict[str, int]:
  stages = [
    {name.split(".")[1] for name in shapes if name.startswith(f"layer{i}.")} for i in range(1, 5)
  ]
  bottleneck, stem = "layer1.0.conv3.weight" in shapes, shapes.get("conv1.weight", ())
  for depth, blocks in STAGES.items():
    found = blocks == tuple(map(len, stages)) and is_bottleneck(depth) == bottleneck
    if found and len(stem) == 4:
      return {"depth": depth, "width": stem[0], "whiten": "whiten.weight" in shapes}
  return {}


RESNET = Layout(_torch_name, _to_torch, "fc.", "torchvision's or timm's ResNet", _sizes)
