"""The optimizer of a config, each parameter with the learning rate and the decay of its group."""

import optax
from ml_collections import ConfigDict

from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.optim.groups import labels_of, labels_of_lars
from jaxspeed.optim.lars import lars
from jaxspeed.optim.muon import muon
from jaxspeed.optim.sgd import hold_at_zero, sgd


def make_optimizer(config: ConfigDict) -> optax.GradientTransformationExtraArgs:
  """The optimizer of a whole, resolved config.

  `config.optimizer.name` "sgd" is SGD for all, "muon" is Muon for the filters and SGD for the
  rest. Biases, the head with its bias and the bias of a whitening layer have rates and decays of
  their own; a scale has the rate of the filters, with Muon it goes with the biases. "lars" is LARS
  for filters and head, and momentum without decay for biases and scales, all at one rate.

  Its `update` takes the extra arguments `learning_rate`; with `config.optimizer.momentum_segments`
  `momentum`; with `config.whitening.bias_epochs` `whiten_bias_rate`, a rate and no factor, which
  freezes that bias at 0; and with Muon `renormalize`, 0 or 1.

  Raises:
    UserError: an unknown name.
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
