"""The declared fields by their dotted names, and suggestions for mistyped ones."""

import difflib
import functools

from jaxspeed.config import families, fields, schema
from jaxspeed.config.schema import Declared, shown

_NAMED = 3
# Least similarity of a suggestion, from 0 to 1.
_ALIKE = 0.75


def declared(model: str = "") -> dict[str, Declared]:
  """The shared fields by dotted name, and those of the model family `model` if given."""
  found = _shared()
  if family := families.FAMILIES.get(model):
    found = found | {each.name: each for each in schema.declared(family.fields, "model.")}
  return found


@functools.cache
def _shared() -> dict[str, Declared]:
  # `given` is filled by jaxspeed.fit, never set.
  found = {each.name: each for each in schema.declared(fields.Config)}
  return {
    name: each for name, each in found.items() if name.partition(".")[0] not in ("model", "given")
  }


def field_of(name: str) -> Declared | None:
  """The field of a dotted name; for a model's field, that of the first family with it."""
  return next(
    (found for family in ("", *families.FAMILIES) if (found := declared(family).get(name))), None
  )


def accepted(name: str, value: object = None) -> str:
  """The values that a field accepts, in words; '' for an unknown field.

  Args:
    name: the dotted name of the field.
    value: one that it does not accept, which decides whether the form of a tuple is shown.
  """
  field = field_of(name)
  return field.accepted + schema.form(field.annotation, value) if field else ""


def nearest(name: str, model: str = "") -> list[str]:
  """At most three fields that `name` may mean, the likeliest first.

  Args:
    name: a dotted name, or its last part.
    model: the config's model family, to suggest its fields too.
  """
  name = name.lower().replace("-", "_")
  last = name.rpartition(".")[2]
  meant: dict[str, list[str]] = {}
  for field in declared(model).values():
    for word in (field.name, field.name.rpartition(".")[2], *field.also):
      meant.setdefault(word, []).append(field.name)
  found = meant.get(name) or meant.get(last) or []
  for word in [] if found else (name, last):
    for alike in difflib.get_close_matches(word, meant, 1, _ALIKE):
      found = found or meant[alike]
  # Among names with the same last part, the one in the named group comes first.
  return sorted(dict.fromkeys(found), key=lambda field: -_likeness(name, field))[:_NAMED]


def _likeness(a: str, b: str) -> float:
  return difflib.SequenceMatcher(None, a, b).ratio()


def no_field(name: str, model: str = "") -> str:
  """A sentence that a config has no field of this name, with suggestions.

  Args:
    name: a dotted name, or its last part.
    model: the config's model family, to suggest its fields too.
  """
  plain = shown(name)[1:-1] if shown(name)[:1] in "'\"" else shown(name)
  groups = {known.partition(".")[0] for known in declared(model) if "." in known}
  if name in groups:
    return f"config.{name} is a group of fields: set config.{name}.FIELD."
  near = nearest(name, model)
  if "." not in name:
    near = difflib.get_close_matches(name, groups, 1, 0.8) or near
  if not near and model and name.startswith("model."):
    own = (known.removeprefix("model.") for known in declared(model) if known.startswith("model."))
    return f"the config has no field {plain}; those of {model} are {', '.join(own)}."
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  return f"the config has no field {plain}{meant}"
