"""Fields as they are declared: type, range, default, meaning, and what else is known of them.

  momentum: Annotated[Share, on.MOMENTUM, Also("beta")] = 0.9
  \"\"\"momentum of SGD and LARS\"\"\"

Checks, --help, docs/fields.md, suggestions of names and "has no effect" all read this. pydantic in
strict mode checks the values: `True` is not a number, 3.0 not an integer, a string not a tuple. The
values live in an `ml_collections.ConfigDict`, to which recipes assign.
"""

import enum
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

# Longest value shown in a message, in characters.
_SHOWN = 80


class Group(pydantic.BaseModel):
  """Fields with their defaults; the string below a field is its meaning."""

  model_config = pydantic.ConfigDict(
    strict=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    extra="forbid",
    use_attribute_docstrings=True,
  )


# What may stand in a field's `Annotated`, or in that of its group, for all of its fields.


class Says(NamedTuple):
  """The values that a field accepts, as the end of "it must be ..."; replaces the type's words."""

  text: str | Callable[[], str]


class When(NamedTuple):
  """A condition without which a field has no effect.

  Attributes:
    works: takes a view of the config (`conditions.View`), which notes the fields that it reads.
    otherwise: the reason or the remedy, as the end of a sentence.
    command: the only command to which this applies; '': all.
    but: the fields of a group with this condition to which it does not apply.
  """

  works: Callable[[Any], Any]
  otherwise: str
  command: str = ""
  but: tuple[str, ...] = ()


class Also(NamedTuple):
  """Names that other projects use for a field, separated by spaces."""

  names: str


class Mark(enum.Enum):
  """A fact about a field."""

  COMMON = "--help lists it without being asked for all"
  PLACE = "it cannot change a result: where a run reads and writes, and how it is watched"
  EVALUATE = "evaluate uses it"
  PREDICT = "evaluate and predict use it"


def must_be(text: str | Callable[[], str], accepts: Callable[[Any], bool]) -> Any:
  """A condition to add to `Annotated`, with `text` as the end of its error "it must be ..."."""

  def check(value: Any) -> Any:
    if not accepts(value):
      raise ValueError
    return value

  check.text = text  # type: ignore[attr-defined]
  return pydantic.AfterValidator(check)


def one_of(names: Callable[[], Iterable[str]]) -> Any:
  """A condition to add to `Annotated[str, ...]`: one of names that --import may add to."""
  return must_be(lambda: choose(names())[len("choose ") : -1], lambda value: value in names())


def choose(names: Iterable[str]) -> str:
  """A sentence after an unknown name: the known ones, and how to add one."""
  return f"choose one of {', '.join(names)}, or name the module that registers it with --import."


def is_plain(text: str) -> bool:
  """Whether a text has no control characters, line separators or lone surrogates."""
  return not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)


class Mistake(NamedTuple):
  """An error in a field: its kind, name and value, and a sentence about the value."""

  kind: Literal["unknown", "missing", "value"]
  name: str
  value: Any
  text: str


def first_mistake(
  error: pydantic.ValidationError, group: type[Group], values: Mapping[str, Any]
) -> Mistake:
  """The error to report first, an unknown field before all others; `values` are those refused."""
  found = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
  names: list[str] = []
  kind: Any = group
  value: Any = values
  metadata: list[Any] = []
  for key in found["loc"]:
    if not is_group(kind):
      break  # what follows is a place in a tuple
    names.append(str(key))
    value = value.get(key) if isinstance(value, Mapping) else None
    if field := kind.model_fields.get(names[-1]):
      kind, metadata = field.annotation, field.metadata
  words = accepted(kind, metadata)
  text = f"choose {words}." if words.startswith("one of ") else f"it must be {words}."
  if found["type"] in ("extra_forbidden", "invalid_key"):
    return Mistake("unknown", ".".join(names), value, "")
  # A tuple that is too short misses an element, which is another thing.
  is_missing = found["type"] == "missing" and len(names) == len(found["loc"])
  return Mistake("missing" if is_missing else "value", ".".join(names), value, text)


def is_group(annotation: Any) -> bool:
  return isinstance(annotation, type) and issubclass(annotation, Group)


def accepted(annotation: Any, metadata: Any = ()) -> str:
  """The values that a type accepts, in words, as the end of "it must be ..."."""
  while typing.get_origin(annotation) is Annotated:
    annotation, *more = typing.get_args(annotation)
    metadata = (*metadata, *more)
  for each in reversed(metadata):
    text = getattr(each.func if isinstance(each, pydantic.AfterValidator) else each, "text", None)
    if text is not None:
      return text() if callable(text) else str(text)
  origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
  if is_group(annotation):
    return "a group of fields"
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


def shown(value: Any) -> str:
  """A value as a message shows it: on one line and, if long, cut short."""
  try:
    text = ascii(value) if isinstance(value, str) and not is_plain(value) else repr(value)
  except Exception:  # an object's own __repr__, or an int of more digits than Python prints
    text = f"a {type(value).__name__}"
  text = " ".join(text.split())
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class Declared(NamedTuple):
  """A field: its dotted name, and what its declaration says."""

  name: str
  annotation: Any
  default: Any
  meaning: str
  metadata: tuple[Any, ...]

  @property
  def accepted(self) -> str:
    return accepted(self.annotation, self.metadata)

  @property
  def marks(self) -> set[Mark]:
    return {each for each in self.metadata if isinstance(each, Mark)}

  @property
  def conditions(self) -> list[When]:
    last = self.name.rpartition(".")[2]
    return [each for each in self.metadata if isinstance(each, When) and last not in each.but]

  @property
  def also(self) -> list[str]:
    return [name for each in self.metadata if isinstance(each, Also) for name in each.names.split()]


def declared(group: type[Group], prefix: str = "", of: Any = ()) -> Iterator[Declared]:
  """Yields the fields of a group and of the groups in it; `of` is the metadata of this one."""
  for name, field in group.model_fields.items():
    annotation, metadata = field.annotation, (*of, *field.metadata)
    if is_group(annotation):
      inner: Any = annotation
      yield from declared(inner, f"{prefix}{name}.", metadata)
    else:
      default = ... if field.is_required() else field.default
      meaning = " ".join((field.description or "").split())
      yield Declared(f"{prefix}{name}", annotation, default, meaning, metadata)
