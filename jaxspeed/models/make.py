"""The model of a config."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.stored import given_in
from jaxspeed.devices import precision
from jaxspeed.errors import UserError

# Importing a module registers its model family.
from jaxspeed.models import airbench, resnet, resnet9, vit  # noqa: F401


def make_model(config: ConfigDict) -> nn.Module:
  """Make the model of `config.model`, which computes in `config.precision` (not "auto").

  Raises:
    UserError: the run was given its model by `jaxspeed.fit`.
  """
  if given := given_in(config).get("model"):
    raise UserError(
      f"the run was trained with a model from Python, {given}: pass the same one, as in "
      "jaxspeed.load(WORKDIR, model=...)."
    )
  fields = config.model.to_dict()
  module = FAMILIES[fields.pop("name")].module
  return module(classes=config.data.classes, dtype=precision.DTYPES[config.precision], **fields)


def parameter_table(config: ConfigDict) -> str:
  """A table of each parameter's name, shape and size, as text."""
  from clu import parameter_overview

  config = config.copy_and_resolve_references()
  config.precision = "float32"
  images = jnp.zeros((1, config.data.image_size, config.data.image_size, 3))
  init = functools.partial(make_model(config).init, train=False)
  shapes = jax.eval_shape(init, jax.random.key(0), images)
  return parameter_overview.get_parameter_overview(shapes["params"], include_stats=False)
