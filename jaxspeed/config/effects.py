"""Fields that have no effect beside the values of others: refused, or reported.

Such a field is an error on the command line and a note in a recipe. A field of a recipe that an
override leaves without effect is accepted.
"""

from collections.abc import Collection

from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.config.conditions import View, leaves
from jaxspeed.config.schema import Declared, Mark, shown
from jaxspeed.errors import UserError

# For commands that do not train: the marks of the fields that they use.
USED = {"evaluate": {Mark.EVALUATE, Mark.PREDICT}, "predict": {Mark.PREDICT}}


def is_used(field: Declared, command: str) -> bool:
  """Whether a command uses a field."""
  return command not in USED or not USED[command].isdisjoint(field.facts(Mark))


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
  # A field of the recipe's model may be set although another model was given.
  known = fields.known() | fields.known(str(config.model.get("name", "")))
  for name in sorted(known.keys() & overridden):
    if not is_used(known[name], command):
      raise UserError(
        f"config.{name} has no effect: {command} does not use it; --help=all lists what it uses."
      )
    sentence, _ = _idle(config, known[name], command)
    if sentence:
      raise UserError(f"{sentence}.")
  bases = [dict(leaves(base)) for base in (fields.base(), fields.imagenet())]
  notes = []
  for name, value in [] if command in USED else leaves(config):
    if name in fields.SHARED and value not in [base.get(name, value) for base in bases]:
      sentence, beside = _idle(config, known[name], "")
      # Who turns it off on the command line knows.
      if sentence and not {name, *beside} & {*overridden}:
        notes.append(f"{sentence} (set in the recipe).")
  return notes


def _idle(config: ConfigDict, field: Declared, command: str) -> tuple[str, Collection[str]]:
  """A sentence if a field has no effect, and the names of the deciding fields; '' if it has one."""
  for condition in field.conditions:
    view = View(config)
    if condition.command in ("", command) and not condition.works(view):
      beside = [_named(view, name) for name in view.read if name != field.name]
      if beside:
        effect = f"{_named(view, field.name)} has no effect beside {' and '.join(beside)}"
        return f"{effect}: {condition.otherwise}", view.read
  return "", ()


def _named(view: View, name: str) -> str:
  if name.startswith("given."):
    return f"{name.removeprefix('given.')}= of jaxspeed.fit"
  value = view.get(name)
  return f"config.{name}" if value is None else f"config.{name}={shown(value)}"
