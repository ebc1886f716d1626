"""The names and layouts of torchvision's and timm's ResNets.

Both libraries use the same names: conv1, bn1, layer1.0.conv1 ..., downsample.0, downsample.1, fc.
Their kernels are OIHW, ours OHWI; their linear layers are [out, in].
"""

from collections.abc import Iterable, Mapping

import numpy as np

from jaxspeed.models.exchange import Layout, Place
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
  elif modules[0] == "head":
    prefix = "fc"
  else:
    stage, block, layer = modules
    layer = {"shortcut_conv": "downsample.0", "shortcut_norm": "downsample.1"}.get(layer, layer)
    number = int(block.removeprefix("block")) - 1
    prefix = f"{stage.replace('stage', 'layer')}.{number}.{layer.replace('norm', 'bn')}"
  return f"{prefix}.{_LEAVES[leaf]}"


def _to_torch(_: Place, x: np.ndarray) -> np.ndarray:
  return x.transpose(0, 3, 1, 2) if x.ndim == 4 else x.T


def _from_torch(_: Place, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x.T


def _depth_of(names: Iterable[str]) -> int | None:
  """Return the depth of the ResNet with these tensor names; None if no ResNet has them."""
  names = set(names)
  bottleneck = "layer1.0.conv3.weight" in names
  for depth, stages in STAGES.items():
    blocks = {f"layer{s}.{b}.conv1.weight" for s, n in enumerate(stages, 1) for b in range(n)}
    found = {name for name in names if name.startswith("layer") and name.endswith(".conv1.weight")}
    if bottleneck == is_bottleneck(depth) and found == blocks:
      return depth
  return None


def _mismatch(stored: Iterable[str], wanted: Iterable[str]) -> str | None:
  theirs, ours = _depth_of(stored), _depth_of(wanted)
  if theirs in (None, ours):
    return None
  return (
    f"holds a ResNet-{theirs}, but the model is a ResNet-{ours}: set config.model.depth={theirs} "
    "or name another file."
  )


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
  depth, stem = _depth_of(shapes), shapes.get("conv1.weight", ())
  return {"depth": depth, "width": stem[0]} if depth and len(stem) == 4 else {}


RESNET = Layout(
  _torch_name,
  _to_torch,
  _from_torch,
  head="fc.",
  width="conv1.weight",
  what=lambda names: f"torchvision's or timm's ResNet-{_depth_of(names)}",
  sizes=_sizes,
  mismatch=_mismatch,
)
