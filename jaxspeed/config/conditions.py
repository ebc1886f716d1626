"""Conditions that several fields share, under which they have an effect (`schema.When`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import families
from jaxspeed.config.schema import When


def leaves(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields pairs of a dotted field name and its value, depth first, names sorted."""
  for name in sorted(config):
    if isinstance(config[name], ConfigDict | dict):
      yield from leaves(config[name], f"{prefix}{name}.")
    else:
      yield prefix + name, config[name]


class View:
  """The fields of a config by dotted name; None for one that it lacks.

  Attributes:
    read: the fields that were looked at, with their values.
  """

  def __init__(self, config: ConfigDict | Mapping[str, Any]) -> None:
    self._fields = dict(leaves(config))
    self.read: dict[str, Any] = {}

  def __getitem__(self, name: str) -> Any:
    if name in self._fields:
      self.read[name] = self._fields[name]
    return self._fields.get(name)


def only(field: str, *values: str) -> When:
  """Fields that have an effect with some values of another field only."""
  what = f"it applies to {' and '.join(values)} only"
  return When(lambda c: c[field] in values, what)


def given(field: str, otherwise: str, *but: str) -> When:
  """Fields that have an effect where another field is set: not 0, empty or False."""
  return When(lambda c: c[field], otherwise, but=but)


def without(field: str, otherwise: str, *but: str) -> When:
  """Fields that have an effect where another field is not set."""
  return When(lambda c: not c[field], otherwise, but=but)


LEAVE_OUT = "leave one of them out"


def not_given(argument: str, *but: str) -> When:
  """A group that an argument of `jaxspeed.fit` replaces, but for some of its fields.

  Evaluations of such a run may name other data.
  """
  return When(lambda c: not c[f"given.{argument}"], LEAVE_OUT, "train", but)


def phase_column(c: View, name: str) -> tuple:
  """A field's values by phase; () if all phases use the value of the whole run."""
  return c[f"phases.{name}"] if c["phases.first_epoch"] else ()


def _first_layer(c: View) -> bool:
  family = families.FAMILIES.get(c["model.name"])
  # A model of one's own whitens if it has the method.
  default = hasattr(family and family.module, "init_from_images")
  return default if c["model.whiten"] is None else c["model.whiten"]


STREAM = When(lambda c: c["data.feed"] == "stream", "it applies to streams only")
READ = without("data.synthetic", "synthetic images are noise, and no file is read")
NO_ARRAYS = not_given("data")
LARS = only("optimizer.name", "lars")
MUON = only("optimizer.name", "muon")
ADAMW = only("optimizer.name", "adamw")
MOMENTUM = When(
  lambda c: c["optimizer.name"] != "adamw",
  "adamw has --config.optimizer.b1 and b2 in place of a momentum",
)
NOT_LARS = When(
  lambda c: c["optimizer.name"] != "lars",
  "with lars all parameters have one learning rate, and the last layer is treated as the others",
)
DECAYS = given("optimizer.weight_decay", "it is a factor on the weight decay")
ONE_PIECE = without(
  "schedule.segments",
  "set --config.schedule.segments='()' for a learning rate that rises and falls once",
  "segments",
  "peak",
)
STEPWISE = only("schedule.name", "step", "exponential")
FALLING = only("schedule.name", "linear", "cosine")
AVERAGES = When(
  lambda c: c["average.kind"] != "none",
  "set --config.average.kind to ema or lookahead",
  but=("kind",),
)
WHITENS = When(_first_layer, "this model does not begin with a whitening layer")
WHITENING_BIAS = When(
  lambda c: _first_layer(c) and c["model.whiten_bias"] not in (None, "none"),
  "this model has no whitening layer with a bias",
)
BIAS_TRAINED = given(
  "whitening.bias_epochs",
  "say in how many epochs the bias is trained with --config.whitening.bias_epochs",
)
PROXY = given("proxy.keep", "there is no proxy", "keep")
PRETRAINED = given("pretrained.path", "name the weights with --config.pretrained.path", "path")
PHASES = given(
  "phases.first_epoch",
  "there is one phase; give the first epoch of each as --config.phases.first_epoch",
  "first_epoch",
)
RECTANGLES = When(
  lambda c: any("rect" in mode for mode in phase_column(c, "eval_mode") or [c["eval.mode"]]),
  "it applies to the modes rect and rect_flip only",
)
TESTED = When(
  lambda c: c["tune_on"] == "test",
  "it is for the DAWNBench entry, which is written for the test set only",
)
COUNTED = When(
  lambda c: c["data.synthetic"],
  "a run counts its images; only a plan and synthetic data take the number from the config",
  command="train",
)


def by_phase(name: str, setting: str) -> When:
  """A field of the whole run that a column of `phases` replaces."""
  return When(lambda c: not phase_column(c, name), f"each phase has its own; set {setting}")
