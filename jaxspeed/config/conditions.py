"""Conditions under which fields have an effect (`schema.When`), and the view that they look at."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import When

LEAVE_OUT = "leave one of them out"


def leaves(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields pairs of a dotted field name and its value, depth first, names sorted."""
  for name in sorted(config):
    if isinstance(config[name], ConfigDict | dict):
      yield from leaves(config[name], f"{prefix}{name}.")
    else:
      yield prefix + name, config[name]


class View(dict[str, Any]):
  """The fields of a config by dotted name, None for one that it lacks; notes those `read`."""

  def __init__(self, config: ConfigDict | Mapping[str, Any]) -> None:
    super().__init__(leaves(config))
    self.read: dict[str, None] = {}  # a set in order

  def __getitem__(self, name: str) -> Any:
    if name in self:
      self.read[name] = None
    return self.get(name)


def not_given(argument: str, *but: str) -> When:
  """A group that an argument of `jaxspeed.fit` replaces; evaluations may name other data."""
  return When(lambda c: not c[f"given.{argument}"], LEAVE_OUT, "train", but)


def only(field: str, *values: str) -> When:
  """Fields that have an effect with some values of another field, or, without any, if it is set."""
  if not values:
    return When(lambda c: c[field], f"set --config.{field} too")
  return When(lambda c: c[field] in values, f"it is for config.{field}={' or '.join(values)}")


def unless(field: str, *values: str, but: tuple[str, ...] = ()) -> When:
  """Fields that have no effect with some values of another field, or, without any, if it is set."""
  if not values:
    return When(lambda c: not c[field], f"it is for runs without config.{field}", but=but)
  return When(
    lambda c: c[field] not in values, f"it is not for config.{field}={' or '.join(values)}"
  )


def by_phase(field: str, column: str, phase: int = -1) -> When:
  """A field of the whole run that a column of `phases` replaces; it may repeat that of a phase."""
  return When(
    lambda c: phase_column(c, column)[phase:][:1] in ((), (c[field],)),
    f"each phase has its own: set --config.phases.{column}, or '--config.phases.{column}=()' for "
    "one in all of them",
  )


def phase_column(c: View, name: str) -> tuple:
  """A field's values by phase; () if all phases use the value of the whole run."""
  return c[f"phases.{name}"] if c["phases.first_epoch"] else ()


def _whitens(c: View) -> bool:
  family = FAMILIES.get(c["model.name"])
  # A model of one's own whitens if it has the method.
  default = hasattr(family and family.module, "init_from_images")
  return default if c["model.whiten"] is None else c["model.whiten"]


STREAM = only("data.feed", "stream")
READ = unless("data.synthetic")
NO_ARRAYS = not_given("data")
LARS = only("optimizer.name", "lars")
MUON = only("optimizer.name", "muon")
ADAMW = only("optimizer.name", "adamw")
MOMENTUM = unless("optimizer.name", "adamw")
HAS_MOMENTUM = When(
  lambda c: (
    (c["optimizer.name"] == "muon" and c["optimizer.muon_momentum"] > 0)
    or c["optimizer.momentum"]
    or c["optimizer.momentum_segments"]
  ),
  "there is no momentum",
)
NOT_LARS = unless("optimizer.name", "lars")
DECAYS = only("optimizer.weight_decay")
ONE_PIECE = unless("schedule.segments", but=("peak",))
STEPWISE = only("schedule.name", "step", "exponential")
FALLING = only("schedule.name", "linear", "cosine")
AVERAGES = unless("average.kind", "none")
WHITENS = When(_whitens, "this model does not begin with a whitening layer")
WHITENING_BIAS = When(
  lambda c: _whitens(c) and c["model.whiten_bias"] not in (None, "none"),
  "this model has no whitening layer with a bias",
)
BIAS_TRAINED = only("whitening.bias_epochs")
FUSES = When(
  lambda c: hasattr(getattr(FAMILIES.get(c["model.name"]), "module", None), "conv_fusion"),
  "this model has no form for it",
)
RECTANGLES = When(
  lambda c: any("rect" in mode for mode in phase_column(c, "eval_mode") or [c["eval.mode"]]),
  "it applies to the modes rect and rect_flip only",
)
TESTED = only("tune_on", "test")
COUNTED = When(
  lambda c: c["data.synthetic"],
  "a run counts its images; only a plan and synthetic data take the number from the config",
  command="train",
)
