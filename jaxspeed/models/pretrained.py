"""Published weights for the models of a config: ResNets of torchvision and timm, ViTs of timm."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import jax
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.files import expanded
from jaxspeed.models.exchange import Layout, check_file, load_weights, save_weights
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.models.vit_weights import VIT

# By `config.model.name`.
LAYOUTS: dict[str, Layout] = {"resnet": RESNET, "vit": VIT}


def load_resnet(
  path: str | os.PathLike,
  variables: Mapping[str, Any],
  *,
  head: Literal["keep", "new"] = "keep",
) -> dict[str, Any]:
  """`load_weights` of torchvision's or timm's ResNet."""
  return load_weights(path, variables, RESNET, head=head)


def save_resnet(path: str | os.PathLike, variables: Mapping[str, Any]) -> None:
  """Save variables of a ResNet as a .safetensors file that torchvision and timm can load.

  The logits of a model with `blurpool` agree only if the torch model blurs at the same places.

  Raises:
    UserError: the file cannot be written.
  """
  save_weights(path, variables, RESNET)


def check_pretrained(config: ConfigDict) -> None:
  """Check that a model of the config's name can have pretrained weights, and that the file opens.

  Raises:
    UserError: the model is neither a ResNet nor a ViT; the file is missing, damaged or a pickle.
  """
  if config.model.name not in LAYOUTS:
    raise UserError(
      f"config.pretrained.path={config.pretrained.path}: only a ResNet or a ViT has weights to "
      f"load; set config.model.name to {' or '.join(LAYOUTS)}."
    )
  check_file(expanded(config.pretrained.path, "config.pretrained.path"))


def load_pretrained(config: ConfigDict, variables: dict[str, Any]) -> dict[str, Any]:
  """Return `variables` with the weights of `config.pretrained.path`, if that is set.

  Raises:
    UserError: as `check_pretrained` and `load_weights`.
  """
  if not config.pretrained.path:
    return variables
  check_pretrained(config)
  path = expanded(config.pretrained.path, "config.pretrained.path")
  layout, template = LAYOUTS[config.model.name], jax.device_get(variables)
  return load_weights(path, template, layout, head=config.pretrained.head)
