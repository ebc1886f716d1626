"""The table of fields that have no effect beside the values of others, and why (`effects`)."""

import math

from ml_collections import ConfigDict

from jaxspeed.config import image_rules, training_rules
from jaxspeed.config.rule import Rule, column


def _evaluates_rectangles(config: ConfigDict) -> bool:
  modes = column(config, "eval_mode") or config.eval.mode.split(",")
  return any("rect" in mode for mode in modes)


# No rule depends on the machine, even if a field does (allreduce.dtype needs several devices): the
# same command may run on another machine.
RULES = (
  *image_rules.RULES,
  *training_rules.RULES,
  # Evaluation and records.
  Rule(
    "eval.shapes eval.multiple",
    "eval.mode phases.eval_mode",
    _evaluates_rectangles,
    "it applies to the modes rect and rect_flip only",
  ),
  Rule(
    "patience",
    "epochs eval.every_epochs",
    lambda c: not c.patience or math.ceil(c.epochs) > c.patience * c.eval.every_epochs,
    "there are no more evaluations than that",
  ),
  Rule(
    "target",
    "target_metric data.classes",
    lambda c: c.target_metric != "top5" or c.data.classes > 5,
    "all classes are among the five likeliest; set --config.target_metric=top1",
  ),
  Rule("stop_at_target", "target", lambda c: c.target > 0, "there is no target"),
  Rule(
    "records.author records.author_email records.code_url",
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
    "compile_cache data.* eval.* model.* phases.* precision pretrained.head pretrained.path "
    "tune_on",
    "it applies to training only",
  ),
  "predict": (
    "compile_cache data.antialias data.classes data.feed data.image_size data.mean data.name "
    "data.path data.read_threads data.std eval.batch_size eval.image_size eval.mode eval.resize "
    "model.* phases.eval_mode phases.first_epoch phases.image_size precision pretrained.head "
    "pretrained.path",
    "predict does not use it; --help lists the fields that it uses",
  ),
}
