"""Rules of the fields in `training_fields.py`, and of the precision."""

from ml_collections import ConfigDict

from jaxspeed.config import families
from jaxspeed.config.rule import Rule, model_of, only

_NO_SEGMENTS = "set --config.schedule.segments='()' for a learning rate that rises and falls once"


def _whitens(config: ConfigDict) -> bool:
  model = model_of(config)
  family = families.FAMILIES.get(str(model["name"]))
  return bool(model.get("whiten", hasattr(family and family.module, "init_from_images")))


def _whitens_with_bias(config: ConfigDict) -> bool:
  model = model_of(config)
  return _whitens(config) and model.get("whiten_bias", "none") != "none"


def _has_scales(config: ConfigDict) -> bool:
  model = model_of(config)
  return model["name"] != "airbench" and bool(model.get("train_norm_scale", True))


def _rates(segments: tuple) -> set[float]:
  return {rate for segment in segments for rate in segment[2:]}


def _has_momentum(config: ConfigDict) -> bool:
  return bool(config.optimizer.momentum or config.optimizer.momentum_segments)


RULES = (
  # Precision.
  Rule(
    "loss_scale",
    "precision",
    lambda c: c.precision in ("auto", "float16"),
    "only float16 has a loss scale",
  ),
  # Optimizer.
  only("optimizer.lars_* optimizer.decay_follows_rate", "optimizer.name", "lars"),
  only("optimizer.muon_*", "optimizer.name", "muon"),
  only("optimizer.b1 optimizer.b2 optimizer.epsilon", "optimizer.name", "adamw"),
  Rule(
    "optimizer.momentum optimizer.momentum_segments optimizer.nesterov optimizer.rate_in_momentum",
    "optimizer.name",
    lambda c: c.optimizer.name != "adamw",
    "adamw has --config.optimizer.b1 and b2 in place of a momentum",
  ),
  Rule(
    "optimizer.bias_rate optimizer.head_rate optimizer.head_decay",
    "optimizer.name",
    lambda c: c.optimizer.name != "lars",
    "with lars all parameters have one learning rate, and the last layer is treated as the others",
  ),
  Rule(
    "optimizer.bias_decay",
    "optimizer.name",
    lambda c: c.optimizer.name != "lars" or c.optimizer.bias_decay == 0,
    "with lars biases do not decay",
  ),
  Rule(
    "optimizer.scale_decay",
    "optimizer.name",
    lambda c: c.optimizer.name not in ("muon", "lars" if c.optimizer.scale_decay else ""),
    "it applies to sgd and adamw: lars does not decay scales, muon decays them as biases",
  ),
  Rule(
    "optimizer.scale_decay",
    "model.name model.train_norm_scale",
    _has_scales,
    "this model's normalization layers have no trained scales",
  ),
  Rule(
    "optimizer.bias_decay optimizer.scale_decay optimizer.head_decay whitening.bias_decay "
    "optimizer.decay_follows_rate",
    "optimizer.weight_decay",
    lambda c: c.optimizer.weight_decay > 0,
    "it is a factor on the weight decay",
  ),
  Rule(
    "optimizer.momentum",
    "optimizer.momentum_segments",
    lambda c: not c.optimizer.momentum_segments,
    "set --config.optimizer.momentum_segments='()' for one momentum",
  ),
  Rule(
    "optimizer.nesterov",
    "optimizer.momentum",
    lambda c: _has_momentum(c) or c.optimizer.name == "muon" and c.optimizer.muon_momentum > 0,
    "there is no momentum",
  ),
  Rule(
    "optimizer.rate_in_momentum",
    "optimizer.momentum",
    _has_momentum,
    "there is no momentum",
  ),
  Rule(
    "optimizer.rate_in_momentum",
    "optimizer.name",
    lambda c: c.optimizer.name != "lars",
    "with lars the learning rate is always in the momentum",
  ),
  # Schedule and average.
  Rule(
    "schedule.name schedule.read schedule.start schedule.final schedule.warmup "
    "schedule.flat_epochs schedule.power schedule.step_size schedule.gamma",
    "schedule.segments",
    lambda c: not c.schedule.segments,
    _NO_SEGMENTS,
  ),
  Rule(
    "schedule.peak",
    "schedule.segments",
    # An override scales the segments before it comes here (`overrides.scale_segments`).
    lambda c: not c.schedule.segments or c.schedule.peak in _rates(c.schedule.segments),
    _NO_SEGMENTS,
  ),
  Rule(
    "schedule.final schedule.flat_epochs",
    "schedule.name",
    lambda c: c.schedule.name in ("linear", "cosine"),
    "it applies to linear and cosine only",
  ),
  only("schedule.power", "schedule.name", "linear"),
  Rule(
    "schedule.step_size schedule.gamma",
    "schedule.name",
    lambda c: c.schedule.name in ("step", "exponential"),
    "it applies to step and exponential only",
  ),
  Rule(
    "schedule.read",
    "schedule.name schedule.warmup",
    lambda c: c.schedule.name not in ("constant", "step") or c.schedule.warmup > 0,
    "the learning rate does not change within an epoch",
  ),
  Rule(
    "schedule.start",
    "schedule.warmup",
    lambda c: c.schedule.warmup > 0 or c.schedule.start == 1,
    "without a warm-up the learning rate starts at its peak",
  ),
  Rule(
    "average.decay average.every",
    "average.kind",
    lambda c: c.average.kind != "none",
    "set --config.average.kind to ema or lookahead",
  ),
  only("average.from_epoch", "average.kind", "lookahead"),
  only("average.reach", "average.kind", "ema"),
  # Whitening.
  Rule(
    "whitening.images whitening.epsilon whitening.centered",
    "model.name model.whiten",
    _whitens,
    "this model does not begin with a whitening layer",
  ),
  Rule(
    "whitening.bias_*",
    "model.name model.whiten_bias",
    _whitens_with_bias,
    "this model has no whitening layer with a bias",
  ),
  Rule(
    "whitening.bias_rate whitening.bias_decay whitening.bias_falls",
    "whitening.bias_epochs",
    lambda c: c.whitening.bias_epochs > 0,
    "say in how many epochs the bias is trained with --config.whitening.bias_epochs",
  ),
)
