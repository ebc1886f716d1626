"""The ONNX nodes of `models.vit.ViT`."""

import numpy as np

from jaxspeed.export.graphs import nodes
from jaxspeed.export.graphs.nodes import Graph, Weights
from jaxspeed.models.vit import ViT, sincos2d


def _shape(graph: Graph, *sides: int) -> str:
  """A constant shape for Reshape, in which 0 keeps a side."""
  return graph.constant("shape", sides, np.int64)


def _layer_norm(graph: Graph, x: str, weights: Weights, model: ViT) -> str:
  scale, bias = (graph.weight(weights, name) for name in ("scale", "bias"))
  return graph.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=model.norm_epsilon)


def _attention(graph: Graph, x: str, weights: Weights, model: ViT, tokens: int) -> str:
  """Multi-head self-attention, [n, tokens, width] to the same."""
  size = model.width // model.heads
  qkv = nodes.dense(graph, x, weights["qkv"])
  qkv = graph.add("Reshape", qkv, _shape(graph, 0, tokens, 3, model.heads, size))
  # [3, n, heads, tokens, size]
  qkv = graph.add("Transpose", qkv, perm=[2, 0, 3, 1, 4])
  q, k, v = (
    graph.add("Gather", qkv, graph.constant("index", index, np.int64), axis=0) for index in range(3)
  )
  product = graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2]))
  share = graph.add("Softmax", graph.scaled(product, size**-0.5), axis=-1)
  y = graph.add("Transpose", graph.add("MatMul", share, v), perm=[0, 2, 1, 3])
  y = graph.add("Reshape", y, _shape(graph, 0, tokens, model.width))
  return nodes.dense(graph, y, weights["out"])


def _block(graph: Graph, x: str, weights: Weights, model: ViT, tokens: int) -> str:
  y = _layer_norm(graph, x, weights["norm1"], model)
  x = graph.add("Add", x, _attention(graph, y, weights["attention"], model, tokens))
  y = nodes.dense(graph, _layer_norm(graph, x, weights["norm2"], model), weights["mlp1"])
  y = nodes.gelu(graph, y, approximate=model.gelu == "tanh")
  return graph.add("Add", x, nodes.dense(graph, y, weights["mlp2"]))


def _class_token(graph: Graph, x: str, token: np.ndarray) -> str:
  """The tokens [n, tokens, width] with the class token before them, in any batch."""
  first, zero = (graph.constant("axis", [value], np.int64) for value in (1, 0))
  images = graph.add("Slice", graph.add("Shape", x), zero, first)
  shape = graph.add("Concat", images, _shape(graph, *token.shape[1:]), axis=0)
  repeated = graph.add("Expand", graph.constant("class_token", token), shape)
  return graph.add("Concat", repeated, x, axis=1)


def add_vit(graph: Graph, model: ViT, weights: Weights, x: str, image_size: int) -> str:
  """Adds the nodes from normalised images [n, 3, h, w] to logits; returns the logits' name."""
  side, width, patch = model.patch_size, model.width, weights["patch"]
  patches = image_size // side
  # The rows of the patches' kernel are in the order [h, w, i].
  kernel = patch.array("kernel").reshape(side, side, 3, width)
  x = nodes.convolve(
    graph,
    x,
    kernel.transpose(3, 0, 1, 2),
    "patch",
    strides=side,
    padding=0,
    bias=patch.array("bias"),
  )
  tokens = patches * patches
  x = graph.add("Reshape", x, _shape(graph, 0, width, tokens))
  x = graph.add("Transpose", x, perm=[0, 2, 1])
  if model.posemb == "sincos2d":
    x = graph.add("Add", x, graph.constant("positions", sincos2d(patches, patches, width)))
  if model.pool == "token":
    x, tokens = _class_token(graph, x, weights.array("class_token")), tokens + 1
  if model.posemb == "learned":
    x = graph.add("Add", x, graph.weight(weights, "positions"))
  for number in range(1, model.depth + 1):
    x = _block(graph, x, weights[f"block{number}"], model, tokens)
  x = _layer_norm(graph, x, weights["norm"], model)
  if model.pool == "token":
    x = graph.add("Gather", x, graph.constant("index", 0, np.int64), axis=1)
  else:
    x = graph.add("ReduceMean", x, axes=[1], keepdims=0)
  if model.rep_size:
    x = graph.add("Tanh", nodes.dense(graph, x, weights["pre_logits"]))
  return nodes.dense(graph, x, weights["head"])
