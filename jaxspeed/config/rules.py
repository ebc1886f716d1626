"""The table of fields that have no effect beside the values of others, and why (`effects`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxspeed.config import families


class Rule(NamedTuple):
  """A condition under which some fields have an effect.

  Attributes:
    fields: the fields' names with wildcards, separated by spaces.
    beside: the deciding fields, in the same form.
    works: whether the fields have an effect in a config.
    instead: the reason or the remedy, as the end of a sentence.
  """

  fields: str
  beside: str
  works: Callable[[ConfigDict], bool]
  instead: str


def _only(fields: str, beside: str, value: str) -> Rule:
  """The rule that fields have an effect only with one value of another field."""
  group, _, name = beside.partition(".")
  return Rule(fields, beside, lambda c: c[group][name] == value, f"it applies to {value} only")


def _streams(config: ConfigDict) -> bool:
  return config.data.feed == "stream"


def _column(config: ConfigDict, name: str) -> tuple:
  """A field's values by phase; () if all phases use the value of the whole run."""
  return tuple(config.phases[name]) if config.phases.first_epoch else ()


def _model(config: ConfigDict) -> dict[str, Any]:
  return config.model.to_dict() if "model" in config else {"name": ""}


def _whitens(config: ConfigDict) -> bool:
  model = _model(config)
  family = families.FAMILIES.get(str(model["name"]))
  return bool(model.get("whiten", hasattr(family and family.module, "init_from_images")))


def _whitens_with_bias(config: ConfigDict) -> bool:
  model = _model(config)
  return _whitens(config) and model.get("whiten_bias", "none") != "none"


def _has_scales(config: ConfigDict) -> bool:
  model = _model(config)
  return model["name"] != "airbench" and bool(model.get("train_norm_scale", True))


def _evaluates_rectangles(config: ConfigDict) -> bool:
  modes = _column(config, "eval_mode") or config.eval.mode.split(",")
  return any("rect" in mode for mode in modes)


def _rates(segments: tuple) -> set[float]:
  return {rate for segment in segments for rate in segment[2:]}


def _has_momentum(config: ConfigDict) -> bool:
  return bool(config.optimizer.momentum or config.optimizer.momentum_segments)


_NO_SEGMENTS = "set --config.schedule.segments='()' for a learning rate that rises and falls once"

# No rule depends on the machine, even if a field does (allreduce.dtype needs several devices): the
# same command may run on another machine.
RULES = (
  # Data.
  Rule(
    "data.antialias data.on_error data.max_broken data.read_threads data.synthetic eval.image_size "
    "eval.resize augment.min_scale",
    "data.feed",
    _streams,
    "it applies to streams only",
  ),
  Rule(
    "data.copies",
    "data.feed phases.copies",
    lambda c: _streams(c) and any(_column(c, "copies")),
    "give the short sides of the copies as --config.phases.copies",
  ),
  Rule(
    "data.path data.name data.copies data.cache data.on_error data.max_broken data.read_threads "
    "phases.copies",
    "data.synthetic",
    lambda c: not c.data.synthetic,
    "synthetic images are noise, and no file is read",
  ),
  Rule(
    "data.max_broken",
    "data.on_error",
    lambda c: c.data.on_error == "skip",
    "the first broken image ends the run",
  ),
  Rule(
    "data.cache",
    "data.name data.path data.feed",
    lambda c: bool(c.data.name != "digits" or c.data.path) or _streams(c),
    "digits are read from a Python package",
  ),
  Rule("warmup", "data.feed", lambda c: not _streams(c) or c.warmup == "off", "a stream has none"),
  # Phases.
  Rule(
    "data.image_size",
    "phases.image_size",
    lambda c: _column(c, "image_size")[-1:] in ((), (c.data.image_size,)),
    "each phase has its own; for one size in all of them set --config.phases.image_size='()' too, "
    "for one phase --config.phases.first_epoch='()'",
  ),
  Rule(
    "batch_size",
    "phases.batch_size",
    lambda c: _column(c, "batch_size")[:1] in ((), (c.batch_size,)),
    "each phase has its own, which its learning rate fits; set --config.phases.batch_size",
  ),
  Rule(
    "augment.min_scale",
    "phases.min_scale",
    lambda c: not _column(c, "min_scale"),
    "each phase has its own; set --config.phases.min_scale, to '()' for one in all of them",
  ),
  Rule(
    "eval.mode",
    "phases.eval_mode",
    lambda c: not _column(c, "eval_mode"),
    "each phase has its own; set --config.phases.eval_mode, to '()' for one in all of them",
  ),
  Rule(
    "phases.image_size phases.batch_size phases.min_scale phases.copies phases.eval_mode",
    "phases.first_epoch",
    lambda c: bool(c.phases.first_epoch),
    "there is one phase; give the first epoch of each as --config.phases.first_epoch",
  ),
  Rule(
    "phases.first_epoch",
    "phases.image_size phases.batch_size phases.min_scale phases.copies phases.eval_mode",
    lambda c: not c.phases.first_epoch or any(v for n, v in c.phases.items() if n != "first_epoch"),
    "the phases are all alike; give another column of config.phases",
  ),
  # Model and augmentation.
  Rule(
    "pretrained.head",
    "pretrained.path",
    lambda c: bool(c.pretrained.path),
    "name the weights with --config.pretrained.path",
  ),
  Rule(
    "model.celu_alpha",
    "model.activation",
    lambda c: _model(c).get("activation") == "celu",
    "it applies to celu only",
  ),
  Rule(
    "augment.cutmix_epochs",
    "augment.cutmix",
    lambda c: c.augment.cutmix > 0,
    "give the side of the square as --config.augment.cutmix",
  ),
  Rule(
    "augment.cutmix",
    "augment.cutmix_epochs",
    lambda c: c.augment.cutmix_epochs > 0 or c.augment.cutmix == 0,
    "say in how many epochs with --config.augment.cutmix_epochs",
  ),
  Rule("proxy.every proxy.widths", "proxy.keep", lambda c: c.proxy.keep > 0, "there is no proxy"),
  # Precision.
  Rule(
    "loss_scale",
    "precision",
    lambda c: c.precision in ("auto", "float16"),
    "only float16 has a loss scale",
  ),
  # Optimizer.
  _only("optimizer.lars_* optimizer.decay_follows_rate", "optimizer.name", "lars"),
  _only("optimizer.muon_*", "optimizer.name", "muon"),
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
    "it applies to sgd only: lars does not decay scales, muon decays them as biases",
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
    "schedule.read schedule.start schedule.final schedule.warmup "
    "schedule.flat_epochs schedule.power",
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
  _only("average.from_epoch", "average.kind", "lookahead"),
  _only("average.reach", "average.kind", "ema"),
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
  # Evaluation and records.
  Rule(
    "eval.shapes eval.multiple",
    "eval.mode phases.eval_mode",
    _evaluates_rectangles,
    "it applies to the modes rect and rect_flip only",
  ),
  Rule(
    "target",
    "target_metric data.classes",
    lambda c: c.target_metric != "top5" or c.data.classes > 5,
    "all classes are among the five likeliest; set --config.target_metric=top1",
  ),
  Rule(
    "records.*",
    "tune_on",
    lambda c: c.tune_on == "test",
    "it is for the DAWNBench entry, which is written for the test set only",
  ),
)

# In addition to `RULES`, for training: a run counts its images itself.
COUNTED = Rule(
  "data.train_images data.eval_images",
  "data.synthetic",
  lambda c: c.data.synthetic,
  "a run counts its images; only a plan and synthetic data take the number from the config",
)
# For commands that do not train: the fields that they use, and why they refuse the others.
USED = {
  "evaluate": (
    "compile_cache data.* eval.* model.* phases.* precision pretrained.* tune_on",
    "it applies to training only",
  ),
  "predict": (
    "compile_cache data.antialias data.classes data.feed data.image_size data.mean data.name "
    "data.path data.std eval.image_size eval.mode eval.resize model.* phases.eval_mode "
    "phases.first_epoch phases.image_size precision pretrained.*",
    "predict does not use it; --help lists the fields that it uses",
  ),
}
