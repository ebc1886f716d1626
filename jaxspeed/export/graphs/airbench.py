"""The ONNX nodes of `models.airbench.Airbench`."""

import functools

from jaxspeed.export.graphs import nodes
from jaxspeed.export.graphs.nodes import Graph, Weights
from jaxspeed.models.airbench import NORM_EPSILON, Airbench

_conv_norm = functools.partial(nodes.conv_norm, epsilon=NORM_EPSILON)


def _group(graph: Graph, x: str, weights: Weights, model: Airbench) -> str:
  activate = functools.partial(nodes.gelu if model.activation == "gelu" else nodes.silu, graph)
  x = activate(_conv_norm(graph, x, weights["conv1"], weights["norm1"], pool=2))
  y = activate(_conv_norm(graph, x, weights["conv2"], weights["norm2"]))
  if model.depth == 2:
    return y
  y = _conv_norm(graph, y, weights["conv3"], weights["norm3"])
  return activate(graph.add("Add", y, x))


def add_airbench(graph: Graph, model: Airbench, weights: Weights, x: str, _: int) -> str:
  """Adds the nodes from normalised images [n, 3, h, w] to logits; returns the logits' name."""
  whiten = weights["whiten"]
  bias = whiten.array("bias") if "bias" in whiten else None
  x = nodes.convolve(graph, x, whiten.array("kernel"), "whiten", padding=0, bias=bias)
  x = nodes.gelu(graph, x)
  for number in (1, 2, 3):
    x = _group(graph, x, weights[f"group{number}"], model)
  x = nodes.dense(graph, nodes.global_pool(graph, x, "GlobalMaxPool"), weights["head"])
  return graph.scaled(x, model.head_scale)
