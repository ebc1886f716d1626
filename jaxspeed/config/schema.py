"""Fields as they are declared: type, range, default, meaning, and what else is known of them.

  momentum: Annotated[Share, on.unless("optimizer.name", "adamw")] = 0.9
  \"\"\"momentum of SGD and LARS\"\"\"

Checks, --help, docs/fields.md, suggestions of names and "has no effect" all read this. A name in
backticks in a meaning is what other projects call the field.
"""

import collections
import enum
import types
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import pydantic
from ml_collections import ConfigDict
from pydantic.fields import FieldInfo

# Longest value shown in a message, in characters.
_SHOWN = 80
_Fact = TypeVar("_Fact")
# A config by dotted field name, and the name of the "command"; None for a field that it lacks.
Values = Mapping[str, Any]


class Group(pydantic.BaseModel):
  """Fields with their defaults; the string below a field is its meaning.

  In strict mode, `True` is not a number, 3.0 not an integer, a string not a tuple.
  """

  model_config = pydantic.ConfigDict(
    strict=True,
    extra="forbid",
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    use_attribute_docstrings=True,
  )


# What may stand in a field's `Annotated`, or in that of its group, for all of its fields.


class Says(NamedTuple):
  """The values that a field accepts, as the end of "it must be ..."; replaces the type's words."""

  text: str | Callable[[], str]


class When(NamedTuple):
  """A condition without which a field has no effect."""

  works: Callable[[Values], Any]
  otherwise: str  # the reason or the remedy, as the end of a sentence


class Mark(enum.Enum):
  """A fact about a field."""

  COMMON = "--help lists it without being asked for all"
  SWITCH = "the conditions of its group do not apply to it"
  PLACE = "it cannot change a result: where a run reads and writes, and how it is watched"
  EVALUATE = "evaluate uses it"
  PREDICT = "evaluate and predict use it"


COMMON, SWITCH, PLACE, EVALUATE, PREDICT = Mark

# For commands that do not train: the marks of the fields that they use.
USED = {"evaluate": (Mark.EVALUATE, Mark.PREDICT), "predict": (Mark.PREDICT,)}


class Declared(NamedTuple):
  """A field: its dotted name, and what its declaration says; `...`: it has no default."""

  name: str
  annotation: Any
  default: Any
  meaning: str
  metadata: tuple[Any, ...]

  def facts(self, kind: type[_Fact]) -> list[_Fact]:
    """What the metadata say of one kind, marks or conditions."""
    return [each for each in self.metadata if isinstance(each, kind)]

  def is_used(self, command: str) -> bool:
    return command not in USED or any(mark in self.metadata for mark in USED[command])

  def idle(self, values: Values) -> str:
    """A sentence if the field has no effect; '' if it has one."""
    if not self.is_used(command := values["command"]):
      unused = f"{command} does not use it; --help=all lists what it uses"
      return f"config.{self.name} has no effect: {unused}."
    for condition in self.facts(When):
      if not condition.works(values):
        named = f"config.{self.name}={shown(values[self.name])}"
        return f"{named} has no effect: {condition.otherwise}."
    return ""

  def refusal(self, value: Any) -> str:
    """A sentence on a value that the field does not accept."""
    must = "choose" if self.accepted.startswith("one of ") else "it must be"
    return f"config.{self.name}={shown(value)}: {must} {self.accepted}."

  @property
  def accepted(self) -> str:
    return accepted(self.annotation, self.metadata)


def declared(group: type[Group], prefix: str = "", of: Any = ()) -> Iterator[Declared]:
  """Yields the fields of a group and of the groups in it; `of` is the metadata of this one."""
  for name, field in group.model_fields.items():
    annotation, switch = field.annotation, Mark.SWITCH in field.metadata
    above = [each for each in of if not (switch and isinstance(each, When))]
    metadata = (*above, *field.metadata)
    if isinstance(annotation, type) and issubclass(annotation, Group):
      yield from declared(annotation, f"{prefix}{name}.", metadata)
    else:
      default = ... if field.is_required() else field.default
      meaning = " ".join((field.description or "").split())
      yield Declared(f"{prefix}{name}", annotation, default, meaning, metadata)


def not_given(argument: str) -> When:
  """Fields that an argument of `jaxspeed.fit` replaces; evaluations may name other data."""
  return When(
    lambda c: c["command"] != "train" or not c[f"given.{argument}"],
    f"{argument}= of jaxspeed.fit replaces it",
  )


def only(field: str, *values: str, wanted: bool = True) -> When:
  """Fields that have an effect with some values of another field, or, without any, if it is set."""
  said = f"it is {'' if wanted else 'not '}for config.{field}={' or '.join(values)}"
  if not values:
    said = f"set --config.{field} too" if wanted else f"it is for runs without config.{field}"
  return When(lambda c: bool(c[field] in values if values else c[field]) is wanted, said)


def unless(field: str, *values: str) -> When:
  """Fields that have no effect with some values of another field, or, without any, if it is set."""
  return only(field, *values, wanted=False)


def by_phase(field: str, column: str, phase: int = -1) -> When:
  """A field of the whole run that a column of `phases` replaces; it may repeat that of a phase."""
  return When(
    lambda c: not c["phases.first_epoch"] or c[f"phases.{column}"][phase:][:1] in ((), (c[field],)),
    f"each phase has its own: set --config.phases.{column}, or '--config.phases.{column}=()' for "
    "one in all of them",
  )


def leaves(config: ConfigDict | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Yields pairs of a dotted field name and its value, depth first, names sorted."""
  for name in sorted(config):
    if isinstance(config[name], ConfigDict | dict):
      yield from leaves(config[name], f"{prefix}{name}.")
    else:
      yield prefix + name, config[name]


def values_of(config: ConfigDict | Mapping[str, Any], command: str = "") -> Values:
  """The values of a config and the command."""
  return collections.defaultdict(lambda: None, leaves(config), command=command)


def is_plain(text: str) -> bool:
  """Whether a text has no control characters, line separators or lone surrogates."""
  return not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)


def shown(value: Any) -> str:
  """A value as a message shows it: on one line and, if long, cut short."""
  try:
    text = repr(value)
  except Exception:  # an object's own __repr__, or an int of more digits than Python prints
    text = f"a {type(value).__name__}"
  text = " ".join(text.split())
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def accepted(annotation: Any, metadata: Any = ()) -> str:
  """The values that a type accepts, in words, as the end of "it must be ..."."""
  declared = FieldInfo.from_annotation(annotation)
  annotation, metadata = declared.annotation, (*metadata, *declared.metadata)
  if texts := [each.text for each in metadata if isinstance(each, Says)]:
    return texts[-1] if isinstance(texts[-1], str) else texts[-1]()
  origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Literal:
    return f"one of {', '.join(map(str, parts))}"
  if origin in (typing.Union, types.UnionType):
    return ", or ".join(map(accepted, parts))
  if origin is tuple and parts:
    many = "a tuple, as (1, 2)" if ... in parts else f"a tuple of {len(parts)}"
    return f"{many}, each {accepted(parts[0])}"
  names = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
  most = "and up to" if any(hasattr(each, "gt") for each in metadata) else "to"
  words = {"gt": "above", "ge": "from", "le": most, "lt": "and below"}
  bounds = [(f"{words[k]} ", getattr(each, k, None)) for k in words for each in metadata]
  return names.get(annotation, "a value of its type") + "".join(
    f" {word}{bound:,.15g}" for word, bound in bounds if bound is not None
  )
