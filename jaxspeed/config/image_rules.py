"""Rules of the fields in `image_fields.py`, and of the model and the proxy."""

from jaxspeed.config.given import given_in
from jaxspeed.config.rule import Rule, column, model_of, streams

RULES = (
  # Data.
  Rule(
    "data.antialias data.on_error data.max_broken data.read_threads data.synthetic eval.image_size "
    "eval.resize augment.min_scale",
    "data.feed",
    streams,
    "it applies to streams only",
  ),
  Rule(
    "data.copies",
    "data.feed phases.copies",
    lambda c: streams(c) and any(column(c, "copies")),
    "give the short sides of the copies as --config.phases.copies",
  ),
  Rule(
    "data.path data.name data.copies data.cache data.on_error data.max_broken data.read_threads "
    "data.hold_out phases.copies",
    "data.synthetic",
    lambda c: not c.data.synthetic,
    "synthetic images are noise, and no file is read",
  ),
  Rule(
    "data.hold_out",
    "data.path tune_on",
    lambda c: bool(c.data.path or given_in(c).get("data")) or c.tune_on == "validation",
    "this data set has evaluation images of its own; --config.tune_on=validation holds training "
    "images out",
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
    lambda c: bool(c.data.name != "digits" or c.data.path) or streams(c),
    "digits are read from a Python package",
  ),
  Rule("warmup", "data.feed", lambda c: not streams(c) or c.warmup == "off", "a stream has none"),
  Rule(
    "data.balance",
    "data.synthetic",
    lambda c: not c.data.synthetic or c.data.balance == "none",
    "the classes of noise are even",
  ),
  # Phases.
  Rule(
    "data.image_size",
    "phases.image_size",
    lambda c: column(c, "image_size")[-1:] in ((), (c.data.image_size,)),
    "each phase has its own; for one size in all of them set --config.phases.image_size='()' too, "
    "for one phase --config.phases.first_epoch='()'",
  ),
  Rule(
    "batch_size",
    "phases.batch_size",
    lambda c: column(c, "batch_size")[:1] in ((), (c.batch_size,)),
    "each phase has its own, which its learning rate fits; set --config.phases.batch_size",
  ),
  Rule(
    "augment.min_scale",
    "phases.min_scale",
    lambda c: not column(c, "min_scale"),
    "each phase has its own; set --config.phases.min_scale, to '()' for one in all of them",
  ),
  Rule(
    "eval.mode",
    "phases.eval_mode",
    lambda c: not column(c, "eval_mode"),
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
    "pretrained.head pretrained.freeze",
    "pretrained.path",
    lambda c: bool(c.pretrained.path),
    "name the weights with --config.pretrained.path",
  ),
  Rule(
    "optimizer.layer_decay",
    "pretrained.freeze",
    lambda c: c.pretrained.freeze != "backbone" or c.optimizer.layer_decay == 1,
    "only the last layer is trained, at the whole learning rate",
  ),
  Rule(
    "model.celu_alpha",
    "model.activation",
    lambda c: model_of(c).get("activation") == "celu",
    "it applies to celu only",
  ),
  Rule(
    "augment.randaugment_magnitude",
    "augment.randaugment_layers",
    lambda c: c.augment.randaugment_layers > 0,
    "say how many operations with --config.augment.randaugment_layers",
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
)
