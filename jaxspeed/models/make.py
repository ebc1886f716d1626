"""From the fields of `config.model` to a net, with plain ifs."""

import flax.linen as nn
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.resnet import STAGES, ResNet
from jaxspeed.models.resnet9 import ResNet9

_CHOICES: dict[str, dict[str, tuple]] = {
  "resnet": {"depth": tuple(STAGES), "head_init": ("normal", "uniform")},
  "resnet9": {
    "pool_position": ("after_activation", "before_activation", "before_norm"),
    "activation": ("relu", "celu"),
  },
  "airbench": {
    "depth": (2, 3),
    "activation": ("gelu", "silu"),
    "init_method": ("dirac", "dirac_added"),
    "whiten_bias": ("none", "zero", "uniform"),
  },
}


def make_model(config: ConfigDict) -> nn.Module:
  """The net of `config.model`, computing in `config.precision` (resolved, not "auto").

  Raises:
    UserError: an unknown name, or a field that the net refuses.
  """
  fields = config.model.to_dict()
  name = fields.pop("name")
  dtype = precision.DTYPES[config.precision]
  if name not in _CHOICES:
    raise UserError(f"config.model.name={name!r}: choose one of {', '.join(_CHOICES)}.")
  if config.data.feed == "stream" and fields.get("whiten"):
    raise UserError("config.model.whiten=True: a stream has no first images, set it to False.")
  for field in ("width", "ghost_splits", "celu_alpha"):
    if field in fields and not fields[field] > 0:
      raise UserError(f"config.model.{field}={fields[field]}: it must be greater than 0.")
  for field, choices in _CHOICES[name].items():
    if field in fields and fields[field] not in choices:
      listed = ", ".join(str(choice) for choice in choices)
      raise UserError(f"config.model.{field}={fields[field]!r}: choose one of {listed}.")
  if name == "airbench":
    widths = fields["widths"]
    if len(widths) != 3 or not all(isinstance(w, int) and w > 0 for w in widths):
      raise UserError(f"config.model.widths={widths}: give three whole numbers greater than 0.")
    return Airbench(classes=config.data.classes, dtype=dtype, **fields)
  net = {"resnet": ResNet, "resnet9": ResNet9}[name]
  return net(classes=config.data.classes, dtype=dtype, **fields)
