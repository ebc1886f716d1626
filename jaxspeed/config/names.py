"""The declared fields by their dotted names, and suggestions for mistyped ones."""

import difflib
import functools

from jaxspeed.config import families, run_fields, schema
from jaxspeed.config.schema import Declared, shown

_NAMED = 3
# Least similarity of a suggestion, from 0 to 1.
_ALIKE = 0.75


def declared(model: str = "") -> dict[str, Declared]:
  """The shared fields by dotted name, and those of the model family `model` if given."""
  found = _shared()
  if family := families.FAMILIES.get(model):
    model_field = run_fields.Config.model_fields["model"]
    own = schema.declared(family.fields, "model.", tuple(model_field.metadata))
    found = found | {each.name: each for each in own}
  return found


@functools.cache
def _shared() -> dict[str, Declared]:
  # `given` is filled by jaxspeed.fit, never set.
  found = {each.name: each for each in schema.declared(run_fields.Config)}
  return {name: found[name] for name in found if name.partition(".")[0] not in ("model", "given")}


def field_of(name: str) -> Declared | None:
  """The field of a dotted name; for a model's field, that of the first family with it."""
  return next((d[name] for d in map(declared, ("", *families.FAMILIES)) if name in d), None)


def nearest(name: str, model: str = "") -> list[str]:
  """At most three fields that `name` may mean, the likeliest first.

  Args:
    name: a dotted name, or its last part.
    model: the config's model family; '': the fields of all families are suggested too.
  """
  name = name.lower().replace("-", "_")
  last = name.rpartition(".")[2]
  meant: dict[str, list[str]] = {}
  known = dict(declared(model))
  for family in () if model else families.FAMILIES:
    known |= declared(family)
  for field in known.values():
    for word in {field.name, field.name.rpartition(".")[2], *field.also}:
      meant.setdefault(word, []).append(field.name)
  found = meant.get(name) or meant.get(last) or []
  for word in [] if found else (name, last):
    for alike in difflib.get_close_matches(word, meant, 1, _ALIKE):
      found = found or meant[alike]
  # Among names with the same last part, the one in the named group comes first.
  return sorted(found, key=lambda field: -difflib.SequenceMatcher(None, name, field).ratio())[
    :_NAMED
  ]


def no_field(name: str, model: str = "") -> str:
  """A sentence that a config has no field of this name, with suggestions; arguments: `nearest`."""
  if any(known.startswith(f"{name}.") for known in declared(model)):
    return f"config.{name} is a group of fields: set config.{name}.FIELD."
  near = nearest(name, model)
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  return f"the config has no field {shown(name)[1:-1]}{meant}"
