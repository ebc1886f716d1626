"""ONNX files of the shipped models, for onnxruntime and others (opset 17, onnx.ai).

The file goes from images [n, h, w, 3] to probabilities [n, classes], for any n. Its metadata are
`Network.metadata`, each value as JSON.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxspeed.errors import UserError
from jaxspeed.export.formats.network import Network, as_text, write
from jaxspeed.export.graphs.airbench import add_airbench
from jaxspeed.export.graphs.nodes import Graph, Weights
from jaxspeed.export.graphs.resnet import add_resnet
from jaxspeed.export.graphs.resnet9 import add_resnet9
from jaxspeed.export.graphs.vit import add_vit
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.models.vit import ViT

# The first opset with LayerNormalization; IR version 8 is that of onnx 1.12 and onnxruntime 1.12.
OPSET, IR_VERSION = 17, 8
# A protobuf message is smaller than this.
_MOST_BYTES = 2**31

GRAPHS: dict[type, Callable[..., str]] = {
  Airbench: add_airbench,
  ResNet: add_resnet,
  ResNet9: add_resnet9,
  ViT: add_vit,
}


def write_onnx(path: pathlib.Path, network: Network, *, fold: bool = False) -> None:
  """Writes a network as ONNX.

  Args:
    path: the file.
    network: the network.
    fold: whether batch norms are folded into the convolutions before them, where that is exact.

  Raises:
    UserError: the model is none of the package, or was edited; the package onnx is missing; or the
      file cannot be written or would be larger than 2 GiB.
  """
  if type(network.model) not in GRAPHS:
    names = ", ".join(sorted(each.__name__ for each in GRAPHS))
    raise UserError(
      f"{type(network.model).__name__} has no ONNX form: only {names} have one; write a model of "
      "your own with the format stablehlo."
    )
  try:
    import onnx
  except ImportError:
    raise UserError(
      "ONNX files need the package onnx, which is not installed: pip install 'jaxspeed[export]'."
    ) from None
  graph = graph_of(network, fold=fold)
  size = sum(each.nbytes for each in graph.constants.values())
  # A mebibyte for the nodes.
  if size + 2**20 >= _MOST_BYTES:
    raise UserError(
      f"the weights have {size / 2**30:.1f} GiB, and an ONNX file has less than 2: use the format "
      "stablehlo."
    )
  write(path, _model_of(onnx, graph, network).SerializeToString())


def graph_of(network: Network, *, fold: bool = False) -> Graph:
  """The graph of a network, from `images` to `probabilities`.

  Raises:
    UserError: it would leave out parameters of an edited model.
  """
  graph = Graph(fold=fold)
  factor, offset = network.factor_and_offset
  x = "images"
  if network.input_dtype != "float32":
    x = graph.add("Cast", x, to=1)  # TensorProto.FLOAT
  x = graph.add("Mul", x, graph.constant("normalize.factor", factor))
  x = graph.add("Add", x, graph.constant("normalize.offset", offset))
  x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
  weights, add = Weights.of(network.variables), GRAPHS[type(network.model)]
  logits = add(graph, network.model, weights, x, network.image_size)
  if weights.unread:
    name, unread = type(network.model).__name__, ", ".join(sorted(weights.unread)[:3])
    raise UserError(
      f"the ONNX graph of {name} leaves out {unread}, so the model was edited: edit "
      f"{add.__name__} in jaxspeed/export/graphs too, or use the format stablehlo."
    )
  graph.add("Softmax", logits, output="probabilities", axis=-1)
  return graph


def _model_of(onnx: Any, graph: Graph, network: Network) -> Any:
  """The protobuf message of a graph, made by the package onnx."""
  helper, size = onnx.helper, network.image_size
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(network.input_dtype))
  made = helper.make_graph(
    [
      helper.make_node(node.operator, node.inputs, [node.output], node.output, **node.attributes)
      for node in graph.nodes
    ],
    "jaxspeed",
    [helper.make_tensor_value_info("images", kind, ["n", size, size, 3])],
    [
      helper.make_tensor_value_info(
        "probabilities", onnx.TensorProto.FLOAT, ["n", len(network.class_names)]
      )
    ],
    [onnx.numpy_helper.from_array(value, name) for name, value in graph.constants.items()],
  )
  model = helper.make_model(
    made,
    producer_name="jaxspeed",
    producer_version=network.facts["jaxspeed"],
    ir_version=IR_VERSION,
    opset_imports=[helper.make_opsetid("", OPSET)],
  )
  helper.set_model_props(model, as_text(network.metadata))
  onnx.checker.check_model(model)
  return model
