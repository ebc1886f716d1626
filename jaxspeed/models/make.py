"""The model of a config."""

import functools

import flax.linen as nn
import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree
from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES, AnyModel
from jaxspeed.devices import precision
from jaxspeed.errors import UserError

# Importing a module registers its model family.
from jaxspeed.models import airbench, resnet, resnet9, vit  # noqa: F401


def make_model(config: ConfigDict) -> nn.Module:
  """Make the model of `config.model`, which computes in `config.precision` (not "auto").

  Raises:
    UserError: the run was given its model by `jaxspeed.fit`.
  """
  if given := config.given.model:
    raise UserError(
      f"the run was trained with a model from Python, {given}: pass the same one, as in "
      "jaxspeed.load(WORKDIR, model=...)."
    )
  fields = config.model.to_dict()
  module = FAMILIES[fields.pop("name")]
  if hasattr(module, "conv_fusion"):
    fields["conv_fusion"] = config.conv_fusion == "on"
  return module(classes=config.data.classes, dtype=precision.DTYPES[config.precision], **fields)


def for_device(model: AnyModel, device: jax.Device) -> AnyModel:
  """The model with its layers in the form for a device, if its `layers` are "auto"."""
  form = "plain" if device.platform == "tpu" else "fused"
  if isinstance(model, nn.Module) and getattr(model, "layers", None) == "auto":
    return model.clone(layers=form)
  return model


def in_dtype(model: AnyModel, dtype: DTypeLike) -> AnyModel:
  """The model computing in a dtype, if it is a Flax module with an attribute `dtype`."""
  if isinstance(model, nn.Module) and hasattr(model, "dtype"):
    return model.clone(dtype=dtype)
  return model


def shapes_of(model: AnyModel, side: int) -> dict[str, PyTree]:
  """The shapes of a model's variables; nothing is computed.

  Args:
    model: the model.
    side: the side of its images in pixels.
  """
  images = jax.ShapeDtypeStruct((1, side, side, 3), np.float32)
  return jax.eval_shape(functools.partial(model.init, train=False), jax.random.key(0), images)


def shapes_in(config: ConfigDict) -> dict[str, PyTree]:
  """`shapes_of` the model of a config, in float32, whatever this machine has."""
  config = config.copy_and_resolve_references()
  config.precision = "float32"
  return shapes_of(make_model(config), (config.phases.image_size or (config.data.image_size,))[0])


def parameter_table(config: ConfigDict) -> str:
  """A table of each parameter's name, shape and size, as text."""
  from clu import parameter_overview

  return parameter_overview.get_parameter_overview(shapes_in(config)["params"], include_stats=False)
