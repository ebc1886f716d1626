"""Published weights for the models of a config: ResNets of torchvision and timm, ViTs of timm."""

import functools
import os
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.files import expanded
from jaxspeed.models.exchange import (
  Layout,
  check_file,
  check_weights,
  class_names_in,
  load_weights,
  save_weights,
)
from jaxspeed.models.make import make_model
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
    UserError: the model is neither a ResNet nor a ViT; the file is missing, damaged, a folder or a
      pickle.
  """
  if config.model.name not in LAYOUTS:
    raise UserError(
      f"config.pretrained.path={config.pretrained.path}: only a ResNet or a ViT has weights to "
      f"load; set config.model.name to {' or '.join(LAYOUTS)}."
    )
  path = expanded(config.pretrained.path, "config.pretrained.path")
  if not path.exists() and path.suffix == ".safetensors":
    raise UserError(
      f"{path} does not exist: name the weights with --config.pretrained.path=FILE.safetensors, a "
      "run's folder or the hub's, as hf://timm/resnet50.a1_in1k, or train from random ones with "
      "--config.pretrained.path= (nothing behind it)."
    )
  if path.is_dir():
    raise UserError(f"{path} is a folder, and no run's: name a .safetensors file of weights.")
  check_file(path)


def pretrained_class_names(config: ConfigDict) -> tuple[str, ...]:
  """The class names in the file of a config that `check_pretrained` takes; () without them."""
  return class_names_in(expanded(config.pretrained.path, "config.pretrained.path"))


def check_fit(config: ConfigDict, *, with_head: bool = True) -> None:
  """Check that the weights fit the model and are finite, before anything is compiled.

  Args:
    config: a config with the fields that its data decide.
    with_head: whether the number of classes is known, so that the last layer must fit too.

  Raises:
    UserError: as `check_pretrained` and `load_weights`.
  """
  check_pretrained(config)
  config = config.copy_and_resolve_references()
  config.precision = "float32"  # whatever this machine has
  side = (config.phases.image_size or (config.data.image_size,))[0]
  images = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
  init = functools.partial(make_model(config).init, train=False)
  shapes = jax.eval_shape(init, jax.random.key(0), images)
  path = expanded(config.pretrained.path, "config.pretrained.path")
  head: Literal["keep", "new"] = config.pretrained.head if with_head else "new"
  check_weights(path, shapes, LAYOUTS[config.model.name], head=head)


def load_pretrained(config: ConfigDict, variables: dict[str, Any]) -> dict[str, Any]:
  """Return `variables` with the weights of `config.pretrained.path`.

  Raises:
    UserError: as `check_pretrained` and `load_weights`.
  """
  check_pretrained(config)
  path = expanded(config.pretrained.path, "config.pretrained.path")
  layout, template = LAYOUTS[config.model.name], jax.device_get(variables)
  return load_weights(path, template, layout, head=config.pretrained.head)
