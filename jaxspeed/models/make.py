"""From the fields of `config.model` to a model."""

import flax.linen as nn
from ml_collections import ConfigDict

from jaxspeed.config import checks
from jaxspeed.config.families import FAMILIES
from jaxspeed.devices import precision

# Importing a module registers its family.
from jaxspeed.models import airbench, resnet, resnet9  # noqa: F401


def make_model(config: ConfigDict) -> nn.Module:
  """The model of `config.model`, computing in `config.precision` (resolved, not "auto").

  Raises:
    UserError: an unknown name, or a field that the model does not have or refuses.
  """
  fields = config.model.to_dict()
  checks.check_model(fields)
  module = FAMILIES[fields.pop("name")].module
  return module(classes=config.data.classes, dtype=precision.DTYPES[config.precision], **fields)
