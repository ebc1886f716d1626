"""The optimizer of a config; each parameter group has its own learning rate and weight decay."""

from collections.abc import Callable, Mapping
from typing import Any

import optax
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.optim.adamw import adamw
from jaxspeed.optim.groups import LABELS, Labels, for_lars
from jaxspeed.optim.lars import lars
from jaxspeed.optim.muon import muon
from jaxspeed.optim.own import check_transformation
from jaxspeed.optim.sgd import hold_at_zero, scale_by_rate, sgd

_Transforms = dict[str, optax.GradientTransformation]


def make_optimizer(
  config: ConfigDict, labels: Labels, *, own: Mapping[str, Callable[..., Any]] | None = None
) -> optax.GradientTransformationExtraArgs:
  """Make the optimizer of a complete, resolved config.

  `config.optimizer.name` is one of:
    "sgd": SGD for all parameters.
    "muon": Muon for the kernels, SGD for the rest.
    "lars": LARS for kernels and head; momentum without decay for the others; one learning rate for
      all.
    "adamw": AdamW for all parameters; the head's bias is decayed as the biases are, as with timm.
    another: an optimizer of the user's own, one of `own`.
  With SGD, Muon and AdamW, three groups have their own learning rates and decays: the biases, the
  head with its bias, and the whitening bias. Scales use the kernels' learning rate; with Muon they
  belong to the biases. Embeddings are trained as scales. What is frozen never changes.

  `update` needs the extra argument `learning_rate`. It also needs `momentum` with
  `config.optimizer.momentum_segments`, `renormalize` (0 or 1) with Muon, and `whiten_bias_rate`
  with `config.whitening.bias_epochs`: a learning rate, not a factor; 0 freezes the bias.

  Args:
    config: the config.
    labels: labels the parameters (`groups.labels_of`).
    own: the user's own optimizers (`config.registry.OPTIMIZERS`).

  Raises:
    UserError: the optimizer's name is unknown, or an optimizer of the user's own is none.
  """
  name = config.optimizer.name
  transforms = _others(config)
  if name in ("sgd", "adamw"):
    transforms |= _body(config)
  elif name == "muon":
    transforms |= _muon(config, transforms["bias"])
  elif name == "lars":
    transforms |= _lars(config)
    labels = for_lars(labels)
  elif own and name in own:
    transforms |= _body(config) | _own(config, own[name])
  else:
    raise UserError(f"config.optimizer.name={name!r}: choose one of sgd, muon, lars, adamw.")
  return optax.partition(transforms, labels)


def _momentum(config: ConfigDict) -> float | None:
  """The momentum of SGD and LARS; None if the step passes it."""
  return None if config.optimizer.momentum_segments else config.optimizer.momentum


def _group(
  config: ConfigDict, rate: float, decay: float, rate_name: str = "learning_rate"
) -> optax.GradientTransformationExtraArgs:
  """AdamW or SGD with factors on the learning rate and the weight decay."""
  fields = config.optimizer
  shared: dict[str, Any] = dict(
    weight_decay=fields.weight_decay * decay, rate_factor=rate, rate_name=rate_name
  )
  if fields.name == "adamw":
    return adamw(b1=fields.b1, b2=fields.b2, epsilon=fields.epsilon, **shared)
  return sgd(
    momentum=_momentum(config),
    nesterov=fields.nesterov,
    rate_in_momentum=fields.rate_in_momentum,
    **shared,
  )


def _others(config: ConfigDict) -> _Transforms:
  """The transformations of all parameters but kernels, scales and embeddings."""
  fields = config.optimizer
  # The original SGD recipes decay the head's bias with its kernel.
  head_bias_decay = fields.bias_decay_factor if fields.name == "adamw" else fields.head_decay_factor
  transforms = {
    "bias": _group(config, fields.bias_rate_factor, fields.bias_decay_factor),
    "head": _group(config, fields.head_rate_factor, fields.head_decay_factor),
    "head_bias": _group(config, fields.head_rate_factor, head_bias_decay),
    "whiten_bias": optax.set_to_zero(),
    "frozen": optax.set_to_zero(),
  }
  if config.whitening.bias_epochs:
    transforms["whiten_bias"] = optax.chain(
      _group(config, 1.0, config.whitening.bias_decay_factor, "whiten_bias_rate"),
      hold_at_zero("whiten_bias_rate"),
    )
  return transforms


def _body(config: ConfigDict) -> _Transforms:
  """The transformations of kernels, scales and embeddings."""
  scale = _group(config, 1.0, config.optimizer.scale_decay_factor)
  return {"kernel": _group(config, 1.0, 1.0), "scale": scale, "embedding": scale}


def _muon(config: ConfigDict, bias: optax.GradientTransformation) -> _Transforms:
  fields = config.optimizer
  kernels = muon(
    momentum=fields.muon_momentum,
    nesterov=fields.nesterov,
    decay=fields.muon_decay,
    coefficients=tuple(fields.muon_coefficients),
    epsilon=fields.muon_epsilon,
    dtype=precision.DTYPES[config.precision],
  )
  return {"scale": bias, "embedding": bias, "kernel": kernels}


def _lars(config: ConfigDict) -> _Transforms:
  fields, momentum = config.optimizer, _momentum(config)
  plain = sgd(momentum=momentum, nesterov=fields.nesterov, weight_decay=0.0, rate_in_momentum=True)
  rates = [rate for segment in config.schedule.segments for rate in segment[2:]]
  peak = max(rates, default=config.schedule.peak)
  kernels = lars(
    momentum=momentum,
    nesterov=fields.nesterov,
    weight_decay=fields.weight_decay,
    ratio_decay=fields.weight_decay * (peak if fields.decay_follows_rate else 1.0),
    eta=fields.lars_eta,
    epsilon=fields.lars_epsilon,
    clip=fields.lars_clip,
  )
  return dict.fromkeys(("scale", "embedding", "bias", "head_bias"), plain) | {"kernel": kernels}


def _own(config: ConfigDict, make: Callable[..., Any]) -> _Transforms:
  """The transformations of an optimizer of the user's own, each with the plan's learning rate."""
  name, made = config.optimizer.name, make(config.optimizer)
  if not isinstance(made, Mapping):
    # What is frozen, and the whitening bias with its own learning rate, stay as they are.
    made = {label: made for label in LABELS if label not in ("whiten_bias", "frozen")}
  for label, transform in made.items():
    if label not in LABELS:
      raise UserError(
        f"the optimizer {name!r} returns a dict with {label!r}: its keys are labels of parameters "
        f"({', '.join(LABELS)})."
      )
    check_transformation(transform, f"the optimizer {name!r} for {label!r}")
  return {label: optax.chain(transform, scale_by_rate()) for label, transform in made.items()}
