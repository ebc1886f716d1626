"""Names of a config to objects, with plain ifs."""

import dataclasses
import pathlib
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from jaxspeed.devices import allreduce, precision
from jaxspeed.errors import UserError
from jaxspeed.models.airbench import Airbench
from jaxspeed.models.pretrained import load_resnet
from jaxspeed.models.resnet import STAGES, ResNet
from jaxspeed.models.resnet9 import ResNet9
from jaxspeed.optim import sgd as optim
from jaxspeed.planning.plan import Plan

_BOOLEANS = {"true": True, "false": False}


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """Everything that the programs of a run are made from; what they do not change."""

  config: ConfigDict
  plan: Plan
  mesh: Mesh
  model: nn.Module
  optimizer: optax.GradientTransformationExtraArgs
  layer_order: tuple[int, ...]  # of the parameters, where gradients cross devices
  proxy: "Job | None" = None  # of the net that chooses the images

  @property
  def devices(self) -> int:
    return self.mesh.size

  def compiler_options(self, platform: str) -> dict[str, Any]:
    """Options of XLA for a training program on "cpu" or "gpu": the exchange's and the config's.

    XLA takes booleans as such, and all other values also as text.
    """
    pairs = (option.split("=", 1) for option in self.config.compiler_options)
    named = {name: _BOOLEANS.get(value.lower(), value) for name, value in pairs}
    return allreduce.compiler_options(platform, self.devices) | named


_CHOICES: dict[str, dict[str, tuple]] = {
  "resnet": {"depth": tuple(STAGES)},
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


def load_pretrained(config: ConfigDict, variables: dict[str, Any]) -> dict[str, Any]:
  """`variables` with the weights of `config.pretrained.path`, where it names a file.

  Raises:
    UserError: the net is no ResNet, or as `load_resnet`.
  """
  if not config.pretrained.path:
    return variables
  if config.model.name != "resnet":
    raise UserError(
      f"config.pretrained.path={config.pretrained.path}: only a ResNet has weights to load, set "
      f"config.model.name='resnet'."
    )
  path = pathlib.Path(config.pretrained.path).expanduser()
  return load_resnet(path, jax.device_get(variables), head=config.pretrained.head)


def _proxy_config(config: ConfigDict) -> ConfigDict:
  if config.model.name != "airbench":
    raise UserError(f"config.proxy.keep={config.proxy.keep}: only airbench's nets have a proxy.")
  proxy = config.copy_and_resolve_references()
  proxy.model.update(widths=config.proxy.widths, depth=2)
  proxy.average.kind = "none"
  return proxy


def make_job(config: ConfigDict, plan: Plan, mesh: Mesh) -> Job:
  """A job of a resolved config, with another one inside for its proxy."""
  proxy = _job_of(_proxy_config(config), plan, mesh) if config.proxy.keep else None
  return dataclasses.replace(_job_of(config, plan, mesh), proxy=proxy)


def _job_of(config: ConfigDict, plan: Plan, mesh: Mesh) -> Job:
  model = make_model(config)
  return Job(
    config=config,
    plan=plan,
    mesh=mesh,
    model=model,
    optimizer=optim.make_optimizer(config),
    layer_order=allreduce.layer_order(model, plan.phases[0].image_size) if mesh.size > 1 else (),
  )
