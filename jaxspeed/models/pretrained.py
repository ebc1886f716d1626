"""Published weights for the models of a config: ResNets of torchvision and timm, ViTs of timm."""

from typing import Any, Literal

import jax
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.models.exchange import Layout, load_weights
from jaxspeed.models.make import shapes_in
from jaxspeed.models.resnet_weights import RESNET
from jaxspeed.models.vit_weights import VIT

# By `config.model.name`.
LAYOUTS: dict[str, Layout] = {"resnet": RESNET, "vit": VIT}


def layout_of(config: ConfigDict) -> Layout:
  """The layout of weights for the model of a config with a path of weights.

  Raises:
    UserError: the model is neither a ResNet nor a ViT.
  """
  if config.model.name not in LAYOUTS:
    raise UserError(
      f"config.pretrained.path={config.pretrained.path}: only a ResNet or a ViT has weights to "
      f"load; set config.model.name to {' or '.join(LAYOUTS)}."
    )
  return LAYOUTS[config.model.name]


def check_fit(config: ConfigDict, *, with_head: bool = True) -> None:
  """Check that the weights fit the model and are finite, before anything is compiled.

  Args:
    config: a config with the fields that its data decide, and a local file of weights.
    with_head: whether the number of classes is known, so that the last layer must fit too.

  Raises:
    UserError: as `load_pretrained`.
  """
  head: Literal["keep", "new"] = config.pretrained.head if with_head else "new"
  load_weights(config.pretrained.path, shapes_in(config), layout_of(config), head=head)


def load_pretrained(config: ConfigDict, variables: dict[str, Any]) -> dict[str, Any]:
  """Return `variables` with the weights of `config.pretrained.path`, a local file.

  Raises:
    UserError: as `layout_of` and `load_weights`.
  """
  layout, template = layout_of(config), jax.device_get(variables)
  return load_weights(config.pretrained.path, template, layout, head=config.pretrained.head)
