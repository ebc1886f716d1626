"""The optimizer of a config; each parameter group has its own learning rate and weight decay."""

import optax
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.optim.groups import labels_of, labels_of_lars
from jaxspeed.optim.lars import lars
from jaxspeed.optim.muon import muon
from jaxspeed.optim.sgd import hold_at_zero, sgd


def make_optimizer(config: ConfigDict) -> optax.GradientTransformationExtraArgs:
  """Make the optimizer of a complete, resolved config.

  `config.optimizer.name` is one of:
    "sgd": SGD for all parameters.
    "muon": Muon for the filters, SGD for the rest.
    "lars": LARS for filters and head; momentum without decay for biases and scales; one learning
      rate for all.
  With SGD and Muon, three groups have their own learning rates and decays: the biases, the head
  with its bias, and the whitening bias. Scales use the filters' learning rate; with Muon they
  belong to the biases.

  `update` needs the extra argument `learning_rate`. It also needs `momentum` with
  `config.optimizer.momentum_segments`, `renormalize` (0 or 1) with Muon, and `whiten_bias_rate`
  with `config.whitening.bias_epochs`: a learning rate, not a factor; 0 freezes the bias.

  Raises:
    UserError: the optimizer's name is unknown.
  """
  fields = config.optimizer
  momentum = None if fields.momentum_segments else fields.momentum
  labels = labels_of

  def make_sgd(rate: float, decay: float, rate_name: str = "learning_rate"):
    return sgd(
      momentum=momentum,
      nesterov=fields.nesterov,
      weight_decay=fields.weight_decay * decay,
      rate_factor=rate,
      rate_in_momentum=fields.rate_in_momentum,
      rate_name=rate_name,
    )

  head = make_sgd(fields.head_rate, fields.head_decay)
  transforms = {
    "bias": make_sgd(fields.bias_rate, fields.bias_decay),
    "head": head,
    "head_bias": head,
    "whiten_bias": optax.set_to_zero(),
    "frozen": optax.set_to_zero(),
  }
  if config.whitening.bias_epochs:
    transforms["whiten_bias"] = optax.chain(
      make_sgd(1.0, config.whitening.bias_decay, "whiten_bias_rate"),
      hold_at_zero("whiten_bias_rate"),
    )
  if fields.name == "sgd":
    transforms["filter"] = make_sgd(1.0, 1.0)
    transforms["scale"] = make_sgd(1.0, fields.scale_decay)
  elif fields.name == "muon":
    transforms["scale"] = transforms["bias"]
    transforms["filter"] = muon(
      momentum=fields.muon_momentum,
      nesterov=fields.nesterov,
      decay=fields.muon_decay,
      coefficients=tuple(fields.muon_coefficients),
      epsilon=fields.muon_epsilon,
      dtype=precision.DTYPES[config.precision],
    )
  elif fields.name == "lars":
    plain = sgd(
      momentum=momentum, nesterov=fields.nesterov, weight_decay=0.0, rate_in_momentum=True
    )
    transforms |= {kind: plain for kind in ("scale", "bias", "head_bias")}
    rates = [rate for segment in config.schedule.segments for rate in segment[2:]]
    peak = max(rates, default=config.schedule.peak)
    transforms["filter"] = lars(
      momentum=momentum,
      nesterov=fields.nesterov,
      weight_decay=fields.weight_decay,
      ratio_decay=fields.weight_decay * (peak if fields.decay_follows_rate else 1.0),
      eta=fields.lars_eta,
      epsilon=fields.lars_epsilon,
      clip=fields.lars_clip,
    )
    labels = labels_of_lars
  else:
    raise UserError(f"config.optimizer.name={fields.name!r}: choose one of sgd, muon, lars.")
  return optax.partition(transforms, labels)
