"""Fields as they are declared: type, range, default, meaning, and what else is known of them.

  momentum: Annotated[Share, on.MOMENTUM, Also("beta")] = 0.9
  \"\"\"momentum of SGD and LARS\"\"\"

Checks, --help, docs/fields.md, suggestions of names and "has no effect" all read this.
"""

import enum
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pydantic

# Longest value shown in a message, in characters.
_SHOWN = 80
_Fact = TypeVar("_Fact")


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
  """A condition without which a field has no effect (`conditions`)."""

  works: Callable[[Any], Any]  # takes a `conditions.View`, which notes the fields that it reads
  otherwise: str  # the reason or the remedy, as the end of a sentence
  command: str = ""  # the only command to which this applies; '': all
  but: tuple[str, ...] = ()  # the fields of a group with this condition to which it does not apply


class Also(NamedTuple):
  """Names of a field in other projects and in earlier versions, separated by spaces."""

  names: str


class Mark(enum.Enum):
  """A fact about a field."""

  COMMON = "--help lists it without being asked for all"
  PLACE = "it cannot change a result: where a run reads and writes, and how it is watched"
  EVALUATE = "evaluate uses it"
  PREDICT = "evaluate and predict use it"


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
    """What the metadata say of one kind: marks, conditions, other names."""
    return [each for each in self.metadata if isinstance(each, kind)]

  @property
  def conditions(self) -> list[When]:
    last = self.name.rpartition(".")[2]
    return [each for each in self.facts(When) if last not in each.but]

  def is_used(self, command: str) -> bool:
    return command not in USED or any(mark in self.metadata for mark in USED[command])

  @property
  def also(self) -> list[str]:
    return [name for each in self.facts(Also) for name in each.names.split()]

  @property
  def accepted(self) -> str:
    return accepted(self.annotation, self.metadata)


def declared(group: type[Group], prefix: str = "", of: Any = ()) -> Iterator[Declared]:
  """Yields the fields of a group and of the groups in it; `of` is the metadata of this one."""
  for name, field in group.model_fields.items():
    annotation, metadata = field.annotation, (*of, *field.metadata)
    if isinstance(annotation, type) and issubclass(annotation, Group):
      yield from declared(annotation, f"{prefix}{name}.", metadata)
    else:
      default = ... if field.is_required() else field.default
      meaning = " ".join((field.description or "").split())
      yield Declared(f"{prefix}{name}", annotation, default, meaning, metadata)


def is_plain(text: str) -> bool:
  """Whether a text has no control characters, line separators or lone surrogates."""
  return not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)


def one_of(names: Iterable[str]) -> str:
  """The known names in words, and how to add one: what a field of such a name accepts."""
  return f"one of {', '.join(names)}, or name the module that registers it with --import"


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
  while typing.get_origin(annotation) is Annotated:
    annotation, *more = typing.get_args(annotation)
    metadata = (*metadata, *more)
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
  words = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
  return words.get(annotation, "a value of its type") + _bounds(metadata)


def _bounds(metadata: Any) -> str:
  """The range of a number in words, from pydantic's objects with `gt`, `ge`, `le` and `lt`."""
  parts = [part for each in metadata for part in getattr(each, "metadata", [each])]
  above, least, most, below = (
    next((f" {words} {getattr(part, key):,.15g}" for part in parts if hasattr(part, key)), "")
    for key, words in (("gt", "above"), ("ge", "from"), ("le", "to"), ("lt", "and below"))
  )
  return f"{above} and up{most}" if above and most else f"{above}{least}{most}{below}"
