"""Fields that have no effect beside the values of others: refused, or reported.

Such a field is an error on the command line and a note in a recipe. A field of a recipe that an
override leaves without effect is accepted.
"""

from collections.abc import Collection, Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import fields, names
from jaxspeed.config.conditions import View, leaves
from jaxspeed.config.schema import Declared, Mark, shown
from jaxspeed.errors import UserError

# For commands that do not train: the marks of the fields that they use.
USED = {"evaluate": {Mark.EVALUATE, Mark.PREDICT}, "predict": {Mark.PREDICT}}


def is_used(field: Declared, command: str) -> bool:
  """Whether a command uses a field."""
  return command not in USED or bool(field.marks & USED[command])


def check(config: ConfigDict, overridden: Collection[str], *, command: str = "") -> list[str]:
  """Refuses overrides without an effect.

  Args:
    config: the config with its overrides, checked.
    overridden: names of the fields that the command line sets.
    command: "train", "evaluate" or "predict", for what holds for that command only; '': none.

  Returns:
    A sentence for each field without an effect that the recipe sets; none for "evaluate" and
    "predict".

  Raises:
    UserError: a field of the command line has no effect.
  """
  known = names.declared(str(config.model.get("name", "")))
  # A field of the recipe's model may be set although another model was given.
  given = {name: known.get(name) or names.field_of(name) for name in sorted(overridden)}
  for name, field in given.items():
    if field and not is_used(field, command):
      raise UserError(
        f"config.{name} has no effect: {command} does not use it; --help=all lists what it uses."
      )
  for field in filter(None, given.values()):
    for sentence, _ in _idle(config, field, command):
      raise UserError(f"{sentence}.")
  if command in USED:
    return []
  shared = [dict(leaves(base)) for base in (fields.base(), fields.imagenet())]
  return [
    f"{sentence} (set in the recipe)."
    for name, value in leaves(config)
    if name in shared[0] and name in known and name not in given
    if value not in [defaults[name] for defaults in shared]
    for sentence, beside in _idle(config, known[name], "")
    if not given.keys() & {*beside}  # who turns it off on the command line knows
  ]


def _idle(
  config: ConfigDict, field: Declared, command: str
) -> Iterator[tuple[str, Collection[str]]]:
  """Yields, if a field has no effect, a sentence and the names of the deciding fields."""
  for condition in field.conditions:
    view = View(config)
    if condition.command in ("", command) and not condition.works(view):
      beside = {name: found for name, found in view.read.items() if name != field.name}
      listed = " and ".join(_named(*each) for each in beside.items())
      effect = f"{_named(field.name, view[field.name])} has no effect beside {listed}"
      yield f"{effect}: {condition.otherwise}", beside
      return


def _named(name: str, value: Any) -> str:
  if name.startswith("given."):
    return f"{name.removeprefix('given.')}= of jaxspeed.fit"
  return f"config.{name}" if value is None else f"config.{name}={shown(value)}"
