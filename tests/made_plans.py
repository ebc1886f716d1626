"""Configs and plans with given fields."""

import jaxspeed.models.make  # noqa: F401  the families of models
from jaxspeed.config import checks
from jaxspeed.config import fields as fields_lib
from jaxspeed.planning.make import make_plan


def config_with(**fields):
  """The base config with dotted fields set, written with two underscores for a dot."""
  config = fields_lib.base()
  config.update_from_flattened_dict({n.replace("__", "."): v for n, v in fields.items()})
  return config


def plan_with(*, devices=1, **fields):
  return make_plan(checked(config_with(**fields)), devices=devices)


def checked(config):
  """A config as `checks.checked` has it, of a ResNet-9 where it names no model."""
  values = config.to_dict()
  return checks.checked(values | {"model": values["model"] or {"name": "resnet9"}})
