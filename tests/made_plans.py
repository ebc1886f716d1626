"""Configs and plans with given fields."""

from jaxspeed.config import fields as fields_lib
from jaxspeed.planning.make import make_plan


def config_with(**fields):
  """The base config with dotted fields set, written with two underscores for a dot."""
  config = fields_lib.base()
  config.update_from_flattened_dict({n.replace("__", "."): v for n, v in fields.items()})
  return config


def plan_with(*, devices=1, **fields):
  return make_plan(config_with(**fields), devices=devices)
