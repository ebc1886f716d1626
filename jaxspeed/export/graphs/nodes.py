"""An ONNX graph under construction, and the nodes of our layers.

Maps are [n, c, h, w] as in ONNX; our kernels are [o, h, w, i]. Operators are those of opset 17.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict


@dataclasses.dataclass(frozen=True)
class Node:
  """One operation: the names of its inputs and of its output, and its attributes."""

  operator: str
  inputs: tuple[str, ...]
  output: str
  attributes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Weights:
  """The variables of a module of a model: `weights["conv1"]` has those of its module conv1.

  Attributes:
    arrays: the variables of the whole model, as stem.conv.kernel.
    unread: the parameters of the whole model that nothing has read yet.
    name: the module's name; '': the model's own.
  """

  arrays: Mapping[str, np.ndarray]
  unread: set[str]
  name: str = ""

  @classmethod
  def of(cls, variables: Mapping[str, Any]) -> "Weights":
    """The variables of a whole model."""
    flat = {kind: flatten_dict(tree, sep=".") for kind, tree in variables.items()}
    return cls({**flat.get("batch_stats", {}), **flat["params"]}, set(flat["params"]))

  def __getitem__(self, module: str) -> "Weights":
    return dataclasses.replace(self, name=f"{self.name}.{module}".strip("."))

  def __contains__(self, name: str) -> bool:
    return self[name].name in self.arrays

  def array(self, name: str) -> np.ndarray:
    """A variable of the module itself."""
    self.unread.discard(self[name].name)
    return np.asarray(self.arrays[self[name].name])


class Graph:
  """The nodes of a graph, in the order of their computation, and its constants by name.

  Args:
    fold: whether batch norms are folded into the convolutions before them.
  """

  def __init__(self, *, fold: bool = False) -> None:
    self.nodes: list[Node] = []
    self.constants: dict[str, np.ndarray] = {}
    self.fold = fold

  def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
    """Adds a node and returns the name of its output."""
    output = output or f"{operator}_{len(self.nodes)}"
    self.nodes.append(Node(operator, inputs, output, attributes))
    return output

  def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
    """Adds a constant and returns its name, which no other one has."""
    array = np.asarray(values, dtype)
    if name in self.constants:
      name = f"{name}_{len(self.constants)}"
    self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
    return name

  def weight(self, weights: Weights, name: str) -> str:
    """Adds a variable of a module as a constant."""
    return self.constant(weights[name].name, weights.array(name))

  def scaled(self, x: str, factor: float) -> str:
    """x times a number; x itself for 1."""
    return x if factor == 1 else self.add("Mul", x, self.constant("factor", factor))


def dense(graph: Graph, x: str, weights: Weights) -> str:
  """A linear layer on the last axis, with its bias if it has one."""
  y = graph.add("MatMul", x, graph.weight(weights, "kernel"))
  return graph.add("Add", y, graph.weight(weights, "bias")) if "bias" in weights else y


def convolve(
  graph: Graph,
  x: str,
  kernel: np.ndarray,
  name: str,
  *,
  strides: int = 1,
  padding: int | None = None,
  bias: np.ndarray | None = None,
  groups: int = 1,
) -> str:
  """A convolution with an OHWI kernel; padding None is kernel_size // 2."""
  side = kernel.shape[1]
  padding = side // 2 if padding is None else padding
  inputs = [x, graph.constant(f"{name}.kernel", kernel.transpose(0, 3, 1, 2))]
  if bias is not None:
    inputs.append(graph.constant(f"{name}.bias", bias))
  return graph.add(
    "Conv",
    *inputs,
    kernel_shape=[side, side],
    strides=[strides, strides],
    pads=[padding] * 4,
    group=groups,
  )


def conv_norm(
  graph: Graph,
  x: str,
  conv: Weights,
  norm: Weights,
  *,
  epsilon: float,
  strides: int = 1,
  pool: int = 0,
) -> str:
  """A convolution, a max pool of `pool` pixels (0: none) and a batch norm, folded if `graph.fold`.

  A pool commutes with the norm only where no factor of the norm is negative; else it is not folded.
  """
  kernel = conv.array("kernel")
  mean, var, bias = (norm.array(name).astype(np.float64) for name in ("mean", "var", "bias"))
  scale = norm.array("scale").astype(np.float64) if "scale" in norm else np.ones_like(bias)
  factor = scale / np.sqrt(var + epsilon)
  if graph.fold and (not pool or (factor >= 0).all()):
    folded, offset = kernel * factor[:, None, None, None], bias - mean * factor
    y = convolve(graph, x, folded, conv.name, strides=strides, bias=offset)
    return max_pool(graph, y, pool) if pool else y
  y = convolve(graph, x, kernel, conv.name, strides=strides)
  if pool:
    y = max_pool(graph, y, pool)
  named = {"scale": scale, "bias": bias, "mean": mean, "var": var}
  constants = [graph.constant(f"{norm.name}.{name}", each) for name, each in named.items()]
  return graph.add("BatchNormalization", y, *constants, epsilon=epsilon)


def max_pool(graph: Graph, x: str, window: int) -> str:
  """A max pool without overlap; rows and columns beyond a multiple of `window` are ignored."""
  return graph.add("MaxPool", x, kernel_shape=[window] * 2, strides=[window] * 2)


def max_pool_3x3(graph: Graph, x: str) -> str:
  """A 3x3 max pool of stride 2 with a border of -inf, 1 pixel wide."""
  return graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)


def blur_pool(graph: Graph, x: str, channels: int, strides: int) -> str:
  """Each channel blurred with [1 2 1] x [1 2 1] / 16 and a border of zeros."""
  line = np.array([1, 2, 1]) / 4
  kernel = np.broadcast_to(np.outer(line, line)[None, :, :, None], (channels, 3, 3, 1))
  return convolve(graph, x, kernel, "blur", strides=strides, groups=channels)


def global_pool(graph: Graph, x: str, operator: str) -> str:
  """GlobalMaxPool or GlobalAveragePool: [n, c, h, w] to [n, c]."""
  return graph.add("Flatten", graph.add(operator, x), axis=1)


def gelu(graph: Graph, x: str, *, approximate: bool = False) -> str:
  """x times the standard normal CDF of x, exact by erf, or approximated by a tanh."""
  if approximate:
    cubed = graph.add("Mul", graph.add("Mul", x, x), x)
    inner = graph.add("Add", x, graph.scaled(cubed, 0.044715))
    wave = graph.add("Tanh", graph.scaled(inner, (2 / np.pi) ** 0.5))
  else:
    wave = graph.add("Erf", graph.scaled(x, 0.5**0.5))
  cdf = graph.scaled(graph.add("Add", wave, graph.constant("one", 1.0)), 0.5)
  return graph.add("Mul", x, cdf)


def silu(graph: Graph, x: str) -> str:
  """x times its logistic sigmoid."""
  return graph.add("Mul", x, graph.add("Sigmoid", x))
