"""The declared fields by their dotted names, and suggestions for mistyped ones."""

import difflib
from collections.abc import Mapping
from typing import Any

from jaxspeed.config import schema
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.run_fields import Config, Given
from jaxspeed.config.schema import Declared, shown

# Fields by the names of earlier versions, which a stored config may hold.
RENAMED = {
  "optimizer.bias_rate": "optimizer.bias_rate_factor",
  "optimizer.bias_decay": "optimizer.bias_decay_factor",
  "optimizer.scale_decay": "optimizer.scale_decay_factor",
  "optimizer.head_rate": "optimizer.head_rate_factor",
  "optimizer.head_decay": "optimizer.head_decay_factor",
  "whitening.bias_rate": "whitening.bias_rate_factor",
  "whitening.bias_decay": "whitening.bias_decay_factor",
}
_NAMED = 3
# Least similarity of a suggestion, from 0 to 1.
_ALIKE = 0.75
_SHARED = {each.name: each for each in schema.declared(Config)}
# What `jaxspeed.fit` fills, and nobody sets.
GIVEN = {each.name: each for each in schema.declared(Given, "given.")}


def declared(model: str = "") -> dict[str, Declared]:
  """The shared fields by dotted name, and those of the model family `model` if given."""
  family = FAMILIES.get(model)
  return _SHARED | {each.name: each for each in (family.fields if family else ())}


def _of_all_families() -> dict[str, Declared]:
  families = reversed(FAMILIES.values())
  return _SHARED | {each.name: each for family in families for each in family.fields}


def field_of(name: str) -> Declared | None:
  """The field of a dotted name; for a model's field, that of the first family with it."""
  return _of_all_families().get(name)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
  """Values by dotted name as groups of fields."""
  found: dict[str, Any] = {}
  for name, value in values.items():
    group, _, last = name.rpartition(".")
    (found.setdefault(group, {}) if group else found)[last] = value
  return found


def nearest(name: str, model: str = "") -> list[str]:
  """At most three fields that `name` may mean, the likeliest first.

  Args:
    name: a dotted name, or its last part.
    model: the config's model family; '': the fields of all families are suggested too.
  """
  name = name.lower().replace("-", "_")
  last = name.rpartition(".")[2]
  meant: dict[str, list[str]] = {}
  for field in (declared(model) if model else _of_all_families()).values():
    for word in {field.name, field.name.rpartition(".")[2], *field.also}:
      meant.setdefault(word, []).append(field.name)
  words = [word for word in (name, last) if word in meant]
  for word in () if words else (name, last):
    words += difflib.get_close_matches(word, meant, 1, _ALIKE)
  # Among names with the same last part, the one in the named group comes first.
  found = sorted(
    meant[words[0]] if words else (),
    key=lambda field: -difflib.SequenceMatcher(None, name, field).ratio(),
  )
  return found[:_NAMED]


def no_field(name: str, model: str = "") -> str:
  """A sentence that a config has no field of this name, with suggestions or its present name.

  Arguments: as for `nearest`.
  """
  if any(known.startswith(f"{name}.") for known in _of_all_families()):
    return f"config.{name} is a group of fields: set config.{name}.FIELD."
  near = [RENAMED[old] for old in RENAMED if name in (old, old.partition(".")[2])]
  near = near or nearest(name, model)
  meant = f": did you mean {' or '.join(near)}?" if near else "."
  return f"the config has no field {shown(name)[1:-1]}{meant}"
