"""Weights as .safetensors, for torchvision and timm; see `models.exchange`.

The file holds weights alone: normalisation and softmax are the caller's. Its metadata are
`Network.metadata_of_weights`, each value as JSON.
"""

import pathlib

from jaxspeed.errors import UserError
from jaxspeed.export.formats.network import Network, as_text
from jaxspeed.models.exchange import Layout, save_weights
from jaxspeed.models.pretrained import LAYOUTS
from jaxspeed.models.resnet import ResNet
from jaxspeed.models.vit import ViT

_LAYOUTS: dict[type, Layout] = {ResNet: LAYOUTS["resnet"], ViT: LAYOUTS["vit"]}


def write_safetensors(path: pathlib.Path, network: Network) -> None:
  """Writes the weights of a network under the names of torchvision or timm.

  Raises:
    UserError: the model is neither a ResNet nor a ViT, or the file cannot be written.
  """
  if (layout := _LAYOUTS.get(type(network.model))) is None:
    raise UserError(
      "as .safetensors only a ResNet or a ViT is written, and the run's is another model, "
      f"{type(network.model).__name__}: use the format stablehlo, or onnx for models of "
      "the package."
    )
  save_weights(path, network.variables, layout, metadata=as_text(network.metadata_of_weights))
