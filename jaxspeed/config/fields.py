"""What recipes start from: the shared fields with their defaults.

A recipe is a Python file whose `get_config(variant)` starts from `base()` and sets what differs:

  from jaxspeed.config import fields

  def get_config(variant=""):
    config = fields.base()
    config.epochs = 24.0
    return config

A config holds primitives only. Everything derived (steps, learning rates, shapes) is computed by
`planning/` after the overrides, so that `--config.epochs=10` rescales the whole schedule.
"""

import difflib
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES, fields_of
from jaxspeed.config.run_fields import Config
from jaxspeed.config.schema import Declared, declared, shown
from jaxspeed.errors import UserError

# By dotted name; nobody sets `given`, which `jaxspeed.fit` fills.
SHARED = {each.name: each for each in declared(Config) if not each.name.startswith("given.")}


def known(model: str | None = None) -> dict[str, Declared]:
  """The shared fields, and those of a family of models, by dotted name; None: of all families."""
  found, of = dict(SHARED), Config.model_fields["model"].metadata
  for module in [each for name, each in FAMILIES.items() if model in (None, name)]:
    for field in declared(fields_of(module), "model.", of):
      found.setdefault(field.name, field)
  return found


def no_field(name: str, model: str | None = None) -> str:
  """A sentence that a config has no field of this name, with those that may be meant.

  Args:
    name: a dotted name, or its last part.
    model: as in `known`.
  """
  fields = known(model)
  if any(field.startswith(f"{name}.") for field in fields):
    return f"config.{name} is a group of fields: set config.{name}.FIELD."
  near = nearest(name, fields.values())
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  return f"the config has no field {shown(name)[1:-1]}{meant}"


def nearest(name: str, fields: Iterable[Declared]) -> list[str]:
  """At most three fields, those whose own or other names are most like a name, by at least 0.75."""
  name = name.lower().replace("-", "_")
  alike = {
    field.name: max(
      difflib.SequenceMatcher(None, one, other).ratio()
      for one in (name, name.rpartition(".")[2])
      for other in (field.name, field.name.rpartition(".")[2], *field.also)
    )
    for field in fields
  }
  return [each for each in alike if alike[each] == max(alike.values()) >= 0.75][:3]


class Fields(ConfigDict):
  """A config, or a group of its fields, that recipes and Python change: mistakes are sentences."""

  def __init__(self, values: Mapping[str, Any] | None = None, **options: Any) -> None:
    groups = {name: Fields(v) if isinstance(v, dict) else v for name, v in (values or {}).items()}
    super().__init__(groups, **options)

  def __setitem__(self, key: str, value: Any) -> None:
    if self.is_locked and key not in self:  # ConfigDict would print all fields that there are
      raise UserError(no_field(key))
    super().__setitem__(key, value)


def base() -> ConfigDict:
  """Every shared field with its default; a recipe sets `name`, `model` and what differs.

  The config is locked: a recipe that assigns to an unknown field gets an error on that line.
  """
  return Fields({"model": {}} | Config.model_construct().model_dump()).lock()


def imagenet() -> ConfigDict:
  """The base of ImageNet's recipes: data, ResNet-50, SGD without decay of norms, 93 % top-5.

  The bias of the last layer decays like its weights, as in the original recipes.
  """
  config = base()
  config.loss_scale = 1024.0
  config.target = 0.93
  config.target_metric = "top5"
  config.data.update(
    feed="stream",
    name="imagenet2012",
    classes=1000,
    image_size=224,
    train_images=1_281_167,
    eval_images=50_000,
    mean=(123.675, 116.28, 103.53),  # 0.485, 0.456, 0.406 of the range
    std=(58.395, 57.12, 57.375),  # 0.229, 0.224, 0.225
    last_batch="keep",
  )
  config.augment.flip = "random"
  config.model = dict(name="resnet", zero_init=True)
  config.optimizer.update(
    nesterov=False, weight_decay=1e-4, bias_decay_factor=0.0, scale_decay_factor=0.0
  )
  config.eval.batch_size = 256
  return config


def variant_of(variant: str | None, variants: Collection[str], file: str) -> str:
  """The variant after the colon of `--config=FILE:VARIANT`, or a UserError that lists them."""
  if variant in variants:
    return str(variant)
  name = os.path.basename(file).removesuffix(".py")
  raise UserError(
    f"there is no variant {variant!r}: write {name}:VARIANT with one of {', '.join(variants)}."
  )
