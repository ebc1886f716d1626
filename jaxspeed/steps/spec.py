"""The constants that the programs of a run are built from."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Float, Int, PyTree
from ml_collections import ConfigDict

from jaxspeed.config import registry
from jaxspeed.config.registry import AnyModel
from jaxspeed.data.batch import class_weights
from jaxspeed.devices import allreduce, options, precision
from jaxspeed.errors import UserError
from jaxspeed.models.make import for_device, make_model, shapes_of
from jaxspeed.models.own import check_contract, prepared
from jaxspeed.optim.groups import labels_of
from jaxspeed.optim.layers import frozen_parts, with_frozen
from jaxspeed.optim.make import make_optimizer
from jaxspeed.optim.own import own_optimizer
from jaxspeed.optim.whole import with_clipping_and_layer_decay
from jaxspeed.planning.plan import Plan

_BOOLEANS = {"true": True, "false": False}


@dataclasses.dataclass(frozen=True, eq=False)
class TrainSpec:
  """The constants that the programs of a run are built from."""

  config: ConfigDict
  plan: Plan
  mesh: Mesh
  model: AnyModel
  optimizer: optax.GradientTransformationExtraArgs
  labels: PyTree  # of the parameters (`optim.groups`)
  layer_order: tuple[int, ...]  # order of gradients in the all-reduce; () on one device
  frozen: tuple[str, ...] = ()  # parts of the model that never change (config.pretrained.freeze)
  proxy: "TrainSpec | None" = None  # spec of the model that selects hard examples
  class_weights: Float[np.ndarray, "classes"] | None = None  # factors on the loss; None: all are 1
  saves_logits: bool = False  # whether an evaluation returns each image's logits
  # Functions that make the user's own loss and augmentation, if any; an evaluation makes neither.
  own_loss: Callable[[], Callable[..., Any]] | None = None
  own_augmentation: Callable[[], Callable[..., Any]] | None = None
  uses_index: bool = False  # whether training has a use for the numbers of its images

  @functools.cached_property
  def devices(self) -> int:
    return self.mesh.size

  @functools.cached_property
  def accumulation(self) -> np.dtype:
    """The dtype of parameters, statistics and sums."""
    return precision.accumulation(precision.DTYPES[self.config.precision])

  def compiler_options(self, platform: str) -> dict[str, Any]:
    """Return XLA's options for training on "cpu" or "gpu": the all-reduce's and the config's.

    XLA accepts all values as text, except for booleans.
    """
    pairs = (option.split("=", 1) for option in self.config.compiler_options)
    named = {name: _BOOLEANS.get(value.lower(), value) for name, value in pairs}
    exchange = allreduce.compiler_options(platform, self.devices)
    fusion = options.conv_fusion(platform) if getattr(self.model, "conv_fusion", False) else {}
    return exchange | fusion | self.common_options(platform) | named

  def common_options(self, platform: str) -> dict[str, Any]:
    """Return XLA's options for all programs of a run, those that do not train among them."""
    fixed = options.deterministic(platform) if self.config.deterministic else {}
    quick = options.quick(platform) if self.config.compile == "quick" else {}
    return fixed | options.libraries(platform) | quick


def _proxy_config(config: ConfigDict) -> ConfigDict:
  if config.model.name != "airbench":
    raise UserError(f"config.proxy.keep={config.proxy.keep}: only airbench models have a proxy.")
  proxy = config.copy_and_resolve_references()
  proxy.model.update(widths=config.proxy.widths, depth=2)
  proxy.proxy.keep = 0  # it has none itself
  proxy.average.kind = "none"
  proxy.whitening.bias_epochs = 0.0  # the bias stays at its initial 0
  return proxy


def make_train_spec(
  config: ConfigDict,
  plan: Plan,
  mesh: Mesh,
  *,
  model: AnyModel | None = None,
  optimizer: optax.GradientTransformation | None = None,
  class_counts: Int[np.ndarray, "classes"] | None = None,
) -> TrainSpec:
  """Make the spec of a complete config, with a second spec inside if it has a proxy.

  Args:
    config: the config.
    plan: its plan.
    mesh: the devices.
    model: a module in place of `config.model`.
    optimizer: a transformation without a learning rate, in place of `config.optimizer`.
    class_counts: the number of training images of each class; only training with
      `config.data.balance` "weights" needs it.

  Raises:
    UserError: the devices do not support the config's precision, or `make_model` rejects it, or
      `model` does not fit the data.
  """
  config = config.copy_and_resolve_references()
  config.precision = precision.resolve(config.precision, mesh.devices.flat[0])
  config.conv_fusion = options.resolve_conv_fusion(config.conv_fusion, mesh.devices.flat[0])
  proxy, size = None, plan.phases[0].image_size
  if config.proxy.keep:
    own: dict[str, Any] = dict(optimizer=optimizer, class_counts=class_counts)
    proxy = make_train_spec(_proxy_config(config), plan, mesh, **own)
  if model is not None:
    model = prepared(model, config)
  else:
    model = make_model(config)
    if not type(model).__module__.startswith("jaxspeed."):
      check_contract(model, config, f"config.model.name={config.model.name!r}")
  model = for_device(model, mesh.devices.flat[0])
  params, frozen = shapes_of(model, size)["params"], tuple[str, ...]()
  labels = labels_of(model, params, classes=config.data.classes, image_size=size)
  if config.pretrained.path and config.pretrained.freeze:
    frozen = frozen_parts(model, labels, params, config.pretrained.freeze)
    labels = with_frozen(labels, frozen)
  if optimizer is None:
    chosen = make_optimizer(config, labels, own=registry.OPTIMIZERS)
  else:
    chosen = own_optimizer(optimizer, config, labels)
  weights = None
  if config.data.balance == "weights" and class_counts is not None:
    weights = class_weights(class_counts)
  losses, augmentations = registry.LOSSES, registry.AUGMENTATIONS
  makes = losses.get(config.loss), augmentations.get(config.augment.own)
  own_loss, own_augmentation = (
    make and functools.cache(functools.partial(make, config)) for make in makes
  )
  return TrainSpec(
    config=config,
    plan=plan,
    mesh=mesh,
    model=model,
    optimizer=with_clipping_and_layer_decay(chosen, config, labels, model),
    labels=labels,
    layer_order=allreduce.layer_order(model.init, size, frozen) if mesh.size > 1 else (),
    frozen=frozen,
    proxy=proxy,
    class_weights=weights,
    own_loss=own_loss,
    own_augmentation=own_augmentation,
    uses_index=any(makes),
  )
