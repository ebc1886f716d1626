"""Fields that have no effect beside the values of others: refused, or reported.

Such a field is an error on the command line and a warning in a recipe. A field of a recipe that an
override leaves without effect is accepted.
"""

from collections.abc import Collection, Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import fields as fields_lib
from jaxspeed.config import names as names_lib
from jaxspeed.config import stored
from jaxspeed.config.rule import Rule
from jaxspeed.config.rules import COUNTED, RULES, USED
from jaxspeed.errors import UserError


def check(config: ConfigDict, overridden: Collection[str], *, command: str = "") -> list[str]:
  """Refuses overrides without an effect.

  Args:
    config: the config with its overrides.
    overridden: names of the fields that the command line sets.
    command: "train", "evaluate" or "predict", for rules of that command; '': none.

  Returns:
    A sentence for each field without an effect that the recipe sets; none for "evaluate" and
    "predict".

  Raises:
    UserError: a field of the command line has no effect.
  """
  names = {name.partition("[")[0] for name in overridden}
  used, why = USED.get(command, ("*", ""))
  for name in sorted(names):
    if not names_lib.matches(name, used):
      raise UserError(f"config.{name} has no effect: {why}.")
  rules = (*RULES, COUNTED) if command == "train" else RULES
  for name, sentence, _ in _idle(config, names, rules):
    raise UserError(f"config.{name}{sentence}.")
  return [] if command in USED else _idle_in_recipe(config, names)


def _idle_in_recipe(config: ConfigDict, names: set[str]) -> list[str]:
  """A sentence for each field that the recipe sets without effect, unless due to an override."""
  shared = [dict(stored.leaves(base)) for base in (fields_lib.base(), fields_lib.imagenet())]
  own = {
    name
    for name, value in stored.leaves(config)
    if name in shared[0] and value not in [defaults[name] for defaults in shared]
  } - names
  return [
    f"config.{name}{sentence} (set in the recipe)."
    for name, sentence, beside in _idle(config, own, RULES)
    if not any(names_lib.matches(other, beside) for other in names)
  ]


def _idle(
  config: ConfigDict, names: Collection[str], rules: Collection[Rule]
) -> Iterator[tuple[str, str, str]]:
  """Yields name, rest of a sentence and deciding fields for each of `names` without an effect."""
  fields = dict(stored.leaves(config))
  for name in sorted(names):
    for rule in rules:
      if names_lib.matches(name, rule.fields) and not rule.works(config):
        beside = [n for n in fields if names_lib.matches(n, rule.beside) and _counts(config, n)]
        given = " and ".join(f"config.{n}={_shown(fields[n])}" for n in beside)
        yield (
          name,
          f"={_shown(fields[name])} has no effect beside {given}: {rule.instead}",
          rule.beside,
        )
        break


def _counts(config: ConfigDict, name: str) -> bool:
  """Whether a field is in use: a column of `phases` is in use only if there are phases."""
  is_column = name.startswith("phases.") and name != "phases.first_epoch"
  return bool(config.phases.first_epoch) or not is_column


def _shown(value: Any) -> str:
  """A value as written in a recipe; a long table is cut short."""
  text = repr(value)
  return text if len(text) <= 60 else f"{text[:60]} ..."
