"""The optimizer of a config; each parameter group has its own learning rate and weight decay."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax
from jaxtyping import PyTree
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.optim.adamw import adamw
from jaxspeed.optim.groups import LABELS, for_lars
from jaxspeed.optim.lars import lars
from jaxspeed.optim.muon import muon
from jaxspeed.optim.own import check_transformation, own_optimizer
from jaxspeed.optim.sgd import hold_at_zero, scale_by_rate, sgd

_Transforms = dict[str, optax.GradientTransformation]


class Group(NamedTuple):
  """How the parameters of a label are trained.

  Attributes:
    rule: "sgd", "adamw", "muon", "lars", "momentum": SGD with the learning rate in the momentum,
      or an optimizer of the user's own; "": not at all.
    rate_factor: the factor on the learning rate.
    weight_decay: that of the rule; None: an optimizer of the user's own has its own.
    rate_name: the column of the plan's table with the learning rate.
  """

  rule: str
  rate_factor: float = 1.0
  weight_decay: float | None = 0.0
  rate_name: str = "learning_rate"


def groups_of(config: ConfigDict, own: Any = None) -> dict[str, Group]:
  """The groups of a config by label; `own` is what an optimizer of the user's own returns, if any.

  With SGD, Muon and AdamW, three groups have their own learning rates and decays: the biases, the
  head with its bias, and the whitening bias. Scales use the kernels' learning rate; with Muon they
  belong to the biases. Embeddings are trained as scales. With LARS one learning rate serves all,
  and only kernels, which the head belongs to (`for_lars`), decay. What is frozen never changes.
  """
  fields, whitening = config.optimizer, config.whitening
  rule, decay = "adamw" if fields.name == "adamw" else "sgd", fields.weight_decay
  # The original SGD recipes decay the head's bias with its kernel, timm's AdamW with the biases.
  head_bias_decay = fields.bias_decay_factor if rule == "adamw" else fields.head_decay_factor
  groups = {
    "kernel": Group(rule, 1.0, decay),
    "scale": Group(rule, 1.0, decay * fields.scale_decay_factor),
    "bias": Group(rule, fields.bias_rate_factor, decay * fields.bias_decay_factor),
    "head": Group(rule, fields.head_rate_factor, decay * fields.head_decay_factor),
    "head_bias": Group(rule, fields.head_rate_factor, decay * head_bias_decay),
    "whiten_bias": Group(""),
    "frozen": Group(""),
  }
  if whitening.bias_epochs:
    whiten_decay = decay * whitening.bias_decay_factor
    groups["whiten_bias"] = Group(rule, 1.0, whiten_decay, "whiten_bias_rate")
  if fields.name == "muon":
    groups |= {"kernel": Group("muon", 1.0, fields.muon_decay), "scale": groups["bias"]}
  if fields.name == "lars":
    groups |= dict.fromkeys(("scale", "bias", "head_bias"), Group("momentum"))
    groups["kernel"] = Group("lars", 1.0, decay)
  groups["embedding"] = groups["scale"]
  if isinstance(own, Mapping):
    return groups | {label: Group(fields.name, 1.0, None) for label in own}
  if own is not None:
    for label, group in groups.items():
      groups[label] = Group(fields.name, 1.0, None, group.rate_name) if group.rule else group
  return groups


def make_optimizer(
  config: ConfigDict, labels: PyTree, *, own: Mapping[str, Callable[..., Any]] | None = None
) -> optax.GradientTransformationExtraArgs:
  """Make the optimizer of a complete, resolved config: SGD, Muon, LARS, AdamW or one of `own`.

  `update` needs the extra argument `learning_rate`. It also needs `momentum` with
  `config.optimizer.momentum_segments`, `renormalize` (0 or 1) with Muon, and `whiten_bias_rate`
  with `config.whitening.bias_epochs`: a learning rate, not a factor; 0 freezes the bias.

  Args:
    config: the config.
    labels: the labels of the parameters (`groups.labels_of`).
    own: the user's own optimizers (`config.registry.OPTIMIZERS`).

  Raises:
    UserError: an optimizer of the user's own is none.
  """
  name = config.optimizer.name
  transforms = {label: _transform(config, group) for label, group in groups_of(config).items()}
  if own and name in own:
    made, what = own[name](config.optimizer), f"the optimizer {name!r}"
    if not isinstance(made, Mapping):
      return own_optimizer(made, config, labels, what)
    transforms |= _own_transforms(made, labels, what)
  if name == "lars":
    labels = for_lars(labels)
  return optax.partition(transforms, labels)


def _transform(config: ConfigDict, group: Group) -> optax.GradientTransformation:
  """The transformation of a group that no optimizer of the user's own trains."""
  fields = config.optimizer
  # None: the step passes it.
  momentum = None if fields.momentum_segments else fields.momentum
  shared: dict[str, Any] = dict(
    weight_decay=group.weight_decay, rate_factor=group.rate_factor, rate_name=group.rate_name
  )
  if not group.rule:
    return optax.set_to_zero()
  if group.rule == "muon":
    return _muon(config)
  if group.rule == "lars":
    return _lars(config, momentum)
  if group.rule == "adamw":
    transform = adamw(b1=fields.b1, b2=fields.b2, epsilon=fields.epsilon, **shared)
  else:
    inside = fields.rate_in_momentum or group.rule == "momentum"
    transform = sgd(momentum=momentum, nesterov=fields.nesterov, rate_in_momentum=inside, **shared)
  if group.rate_name == "learning_rate":
    return transform
  return optax.chain(transform, hold_at_zero(group.rate_name))


def _muon(config: ConfigDict) -> optax.GradientTransformation:
  fields = config.optimizer
  return muon(
    momentum=fields.muon_momentum,
    nesterov=fields.nesterov,
    decay=fields.muon_decay,
    coefficients=tuple(fields.muon_coefficients),
    epsilon=fields.muon_epsilon,
    dtype=precision.DTYPES[config.precision],
  )


def _lars(config: ConfigDict, momentum: float | None) -> optax.GradientTransformation:
  fields = config.optimizer
  rates = [rate for segment in config.schedule.segments for rate in segment[2:]]
  peak = max(rates, default=config.schedule.peak)
  return lars(
    momentum=momentum,
    nesterov=fields.nesterov,
    weight_decay=fields.weight_decay,
    ratio_decay=fields.weight_decay * (peak if fields.decay_follows_rate else 1.0),
    eta=fields.lars_eta,
    epsilon=fields.lars_epsilon,
  )


def _own_transforms(made: Mapping[str, Any], labels: PyTree, what: str) -> _Transforms:
  """The transformations of an optimizer of the user's own, each with the plan's learning rate."""
  for label, transform in made.items():
    if label not in LABELS:
      raise UserError(
        f"{what} returns a dict with {label!r}: its keys are labels of parameters "
        f"({', '.join(LABELS)})."
      )
    check_transformation(transform, f"{what} for {label!r}", labels)
  return {label: optax.chain(transform, scale_by_rate()) for label, transform in made.items()}
