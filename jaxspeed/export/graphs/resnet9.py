"""The ONNX nodes of `models.resnet9.ResNet9`."""

from jaxspeed.export.graphs import nodes
from jaxspeed.export.graphs.nodes import Graph, Weights
from jaxspeed.models.layers.norm import BatchNorm
from jaxspeed.models.resnet9 import ResNet9


def _activate(graph: Graph, x: str, model: ResNet9) -> str:
  if model.activation == "relu":
    return graph.add("Relu", x)
  return graph.add("Celu", x, alpha=float(model.celu_alpha))


def _conv_norm(
  graph: Graph, x: str, weights: Weights, model: ResNet9, *, pooled: bool = False
) -> str:
  """A convolution with norm and activation, and a 2x2 max pool where the model has it."""
  position = model.pool_position if pooled else ""
  pool = 2 if position == "before_norm" else 0
  conv, norm = weights["conv"], weights["norm"]
  x = nodes.conv_norm(graph, x, conv, norm, epsilon=BatchNorm.epsilon, pool=pool)
  if position == "before_activation":
    x = nodes.max_pool(graph, x, 2)
  x = _activate(graph, x, model)
  return nodes.max_pool(graph, x, 2) if position == "after_activation" else x


def add_resnet9(graph: Graph, model: ResNet9, weights: Weights, x: str, _: int) -> str:
  """Adds the nodes from normalised images [n, 3, h, w] to logits; returns the logits' name."""
  if model.whiten:
    x = nodes.convolve(graph, x, weights["whiten"].array("kernel"), "whiten", padding=1)
  x = _conv_norm(graph, x, weights["prep"], model)
  for number in (1, 2, 3):
    name = f"layer{number}"
    x = _conv_norm(graph, x, weights[name], model, pooled=True)
    if number != 2:
      y = _conv_norm(graph, x, weights[f"{name}_residual1"], model)
      x = graph.add("Add", x, _conv_norm(graph, y, weights[f"{name}_residual2"], model))
  x = nodes.dense(graph, nodes.global_pool(graph, x, "GlobalMaxPool"), weights["head"])
  return graph.scaled(x, model.head_scale)
