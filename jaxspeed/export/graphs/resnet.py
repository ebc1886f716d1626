"""The ONNX nodes of `models.resnet.ResNet`."""

import functools

import numpy as np

from jaxspeed.export.graphs import nodes
from jaxspeed.export.graphs.nodes import Graph, Weights
from jaxspeed.models.layers.norm import BatchNorm
from jaxspeed.models.resnet import STAGES, ResNet, is_bottleneck

_conv_norm = functools.partial(nodes.conv_norm, epsilon=BatchNorm.epsilon)


def _convolve(
  graph: Graph, x: str, weights: Weights, number: int | str, *, strides: int, blurpool: bool
) -> str:
  """A convolution of a block and its norm, by number or "shortcut"; if strided, blurred before."""
  names = ("shortcut_conv", "shortcut_norm")
  if number != "shortcut":
    names = (f"conv{number}", f"norm{number}")
  conv, norm = (weights[name] for name in names)
  _, side, _, channels = conv.array("kernel").shape
  if blurpool and strides > 1 and channels >= 16:
    # As in the model: a 1x1 convolution reads only the pixels that its stride leaves.
    blur_strides = strides if side == 1 else 1
    x, strides = nodes.blur_pool(graph, x, channels, blur_strides), strides // blur_strides
  return _conv_norm(graph, x, conv, norm, strides=strides)


def _block(graph: Graph, x: str, weights: Weights, *, model: ResNet, strides: int) -> str:
  sizes = (1, 3, 1) if is_bottleneck(model.depth) else (3, 3)
  strided, y = sizes.index(3) + 1, x
  convolve = functools.partial(_convolve, graph, weights=weights, blurpool=model.blurpool)
  if "kernel" in weights["shortcut_conv"]:
    x = convolve(x, number="shortcut", strides=strides)
  for number in range(1, len(sizes) + 1):
    y = convolve(y, number=number, strides=strides if number == strided else 1)
    if number < len(sizes):
      y = graph.add("Relu", y)
  return graph.add("Relu", graph.add("Add", y, x))


def add_resnet(graph: Graph, model: ResNet, weights: Weights, x: str, _: int) -> str:
  """Adds the nodes from normalised images [n, 3, h, w] to logits; returns the logits' name."""
  stem = weights["stem"]
  if model.whiten:
    kernel = weights["whiten"].array("kernel")
    both = np.concatenate([kernel, -kernel])
    x = graph.add("Relu", nodes.convolve(graph, x, both, "whiten", strides=2))
  strides = 1 if model.whiten else 2
  x = graph.add("Relu", _conv_norm(graph, x, stem["conv"], stem["norm"], strides=strides))
  x = nodes.max_pool_3x3(graph, x)
  for stage, blocks in enumerate(STAGES[model.depth], 1):
    for block in range(1, blocks + 1):
      part = weights[f"stage{stage}"][f"block{block}"]
      x = _block(graph, x, part, model=model, strides=2 if stage > 1 and block == 1 else 1)
  return nodes.dense(graph, nodes.global_pool(graph, x, "GlobalAveragePool"), weights["head"])
