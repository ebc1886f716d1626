"""Fields that have no effect beside the values of others: refused, or reported.

Such a field is an error on the command line and a note in a recipe. A field of a recipe that an
override leaves without effect is accepted.
"""

from collections.abc import Collection, Iterator

from ml_collections import ConfigDict

from jaxspeed.config import fields, names
from jaxspeed.config.conditions import View, leaves
from jaxspeed.config.schema import Declared, Mark, shown
from jaxspeed.errors import UserError

# For commands that do not train: the marks of the fields that they use.
USED = {"evaluate": {Mark.EVALUATE, Mark.PREDICT}, "predict": {Mark.PREDICT}}


def is_used(field: Declared, command: str) -> bool:
  """Whether a command uses a field."""
  is_model = field.name.startswith("model.")
  return command not in USED or is_model or bool(field.marks & USED[command])


def check(config: ConfigDict, overridden: Collection[str], *, command: str = "") -> list[str]:
  """Refuses overrides without an effect.

  Args:
    config: the config with its overrides.
    overridden: names of the fields that the command line sets.
    command: "train", "evaluate" or "predict", for what holds for that command only; '': none.

  Returns:
    A sentence for each field without an effect that the recipe sets; none for "evaluate" and
    "predict".

  Raises:
    UserError: a field of the command line has no effect.
  """
  given = {name.partition("[")[0] for name in overridden}
  known = names.declared(str(config.model.get("name", "")))
  for name in sorted(given & set(known)):
    if not is_used(known[name], command):
      raise UserError(
        f"config.{name} has no effect: {command} does not use it; --help=all lists what it uses."
      )
  for name in sorted(given & set(known)):
    for sentence, _ in _idle(config, known[name], command):
      raise UserError(f"{sentence}.")
  return [] if command in USED else _idle_in_recipe(config, given, known)


def _idle_in_recipe(config: ConfigDict, given: set[str], known: dict[str, Declared]) -> list[str]:
  """A sentence for each field that the recipe sets without effect, unless due to an override."""
  shared = [dict(leaves(base)) for base in (fields.base(), fields.imagenet())]
  return [
    f"{sentence} (set in the recipe)."
    for name, value in leaves(config)
    if name in shared[0] and name in known and name not in given
    if value not in [defaults[name] for defaults in shared]
    for sentence, beside in _idle(config, known[name], "")
    if not given & set(beside)
  ]


def _idle(
  config: ConfigDict, field: Declared, command: str
) -> Iterator[tuple[str, Collection[str]]]:
  """Yields, if a field has no effect, a sentence and the names of the deciding fields."""
  for condition in field.conditions:
    view = View(config)
    if condition.command in ("", command) and not condition.works(view):
      value = view[field.name]
      beside = {name: found for name, found in view.read.items() if name != field.name}
      listed = " and ".join(f"config.{name}={shown(found)}" for name, found in beside.items())
      effect = f"config.{field.name}={shown(value)} has no effect beside {listed}"
      yield f"{effect}: {condition.otherwise}", beside
      return
