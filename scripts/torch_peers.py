"""The nets of `bench_cpu.py` in PyTorch, on our parameters: trees of tensors, kernels OHWI.

A kernel seen as OIHW is then in PyTorch's channels-last order, the fastest on CPUs.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional


def convolve(x: Tensor, part: Any, stride: int = 1) -> Tensor:
  kernel = part["kernel"].permute(0, 3, 1, 2)
  return functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)


def norm(x: Tensor, part: Any, stats: Any, momentum: float = 0.1, epsilon: float = 1e-5) -> Tensor:
  moving = stats["mean"], stats["var"]
  return functional.batch_norm(x, *moving, part.get("scale"), part["bias"], True, momentum, epsilon)


def resnet9(params: Any, stats: Any, x: Tensor) -> Tensor:
  """The first rung of cifar10-fast's ladder: pools after the activations."""

  def block(x, name):
    x = norm(convolve(x, params[name]["conv"]), params[name]["norm"], stats[name]["norm"])
    return functional.relu(x)

  def residual(x, name):
    return x + block(block(x, f"{name}_residual1"), f"{name}_residual2")

  x = residual(functional.max_pool2d(block(block(x, "prep"), "layer1"), 2), "layer1")
  x = functional.max_pool2d(block(x, "layer2"), 2)
  x = residual(functional.max_pool2d(block(x, "layer3"), 2), "layer3")
  return functional.max_pool2d(x, 4).flatten(1) @ params["head"]["kernel"] * 0.125


def airbench(params: Any, stats: Any, x: Tensor) -> Tensor:
  """The net of airbench's 94_muon; its whitening has no gradient."""
  whiten = params["whiten"]
  kernel = whiten["kernel"].detach().permute(0, 3, 1, 2)
  x = functional.gelu(functional.conv2d(x, kernel, whiten["bias"]))
  for name in ("group1", "group2", "group3"):
    part, moving = params[name], stats[name]
    x = functional.max_pool2d(convolve(x, part["conv1"]), 2)
    x = functional.gelu(norm(x, part["norm1"], moving["norm1"], 0.4, 1e-12))
    x = functional.gelu(
      norm(convolve(x, part["conv2"]), part["norm2"], moving["norm2"], 0.4, 1e-12)
    )
  return functional.max_pool2d(x, 3).flatten(1) @ params["head"]["kernel"] / 9


def resnet18(params: Any, stats: Any, x: Tensor) -> Tensor:
  """torchvision's ResNet-18."""
  stem = params["stem"]
  x = functional.conv2d(x, stem["conv"]["kernel"].permute(0, 3, 1, 2), stride=2, padding=3)
  x = functional.relu(norm(x, stem["norm"], stats["stem"]["norm"]))
  x = functional.max_pool2d(x, 3, 2, 1)
  for stage in ("stage1", "stage2", "stage3", "stage4"):
    for name in ("block1", "block2"):
      part, moving = params[stage][name], stats[stage][name]
      stride = 2 if name == "block1" and stage != "stage1" else 1
      y = functional.relu(norm(convolve(x, part["conv1"], stride), part["norm1"], moving["norm1"]))
      y = norm(convolve(y, part["conv2"]), part["norm2"], moving["norm2"])
      if "shortcut_conv" in part:
        x = convolve(x, part["shortcut_conv"], stride)
        x = norm(x, part["shortcut_norm"], moving["shortcut_norm"])
      x = functional.relu(x + y)
  return x.mean((2, 3)) @ params["head"]["kernel"] + params["head"]["bias"]
