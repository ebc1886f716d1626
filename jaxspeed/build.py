"""Names of a config to objects, with plain ifs."""

import dataclasses

import flax.linen as nn
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed import optim, precision
from jaxspeed.errors import UserError
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.plan import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """Everything that the programs of a run are made from; what they do not change."""

  config: ConfigDict
  plan: Plan
  mesh: Mesh
  model: nn.Module
  optimizer: optax.GradientTransformationExtraArgs

  @property
  def devices(self) -> int:
    return self.mesh.size


_CHOICES = {
  "pool_position": ("after_activation", "before_activation", "before_norm"),
  "activation": ("relu", "celu"),
}


def make_model(config: ConfigDict) -> nn.Module:
  """The net of `config.model`, computing in `config.precision` (resolved, not "auto").

  Raises:
    UserError: an unknown name, or a field that the net refuses.
  """
  fields = config.model.to_dict()
  name = fields.pop("name")
  dtype = precision.DTYPES[config.precision]
  for field in ("width", "ghost_splits", "celu_alpha"):
    if field in fields and not fields[field] > 0:
      raise UserError(f"config.model.{field}={fields[field]}: it must be greater than 0.")
  for field, choices in _CHOICES.items():
    if field in fields and fields[field] not in choices:
      raise UserError(
        f"config.model.{field}={fields[field]!r}: choose one of {', '.join(choices)}."
      )
  if name == "resnet9":
    return ResNet9(classes=config.data.classes, dtype=dtype, **fields)
  raise UserError(f"config.model.name={name!r}: choose one of resnet9.")


def make_job(config: ConfigDict, plan: Plan, mesh: Mesh) -> Job:
  """A job of a resolved config."""
  return Job(
    config=config,
    plan=plan,
    mesh=mesh,
    model=make_model(config),
    optimizer=optim.make_optimizer(config.optimizer),
  )
