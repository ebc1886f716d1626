"""Fields as they are declared: type, range, default, meaning, and what else is known of them.

  momentum: Annotated[Share, Unless("optimizer.name", "adamw")] = 0.9
  \"\"\"momentum of SGD and LARS\"\"\"

Checks, --help, docs/fields.md, suggestions of names and "has no effect" all read this. pydantic in
strict mode checks the values: `True` is not a number, 3.0 not an integer, a string not a tuple. The
values live in an `ml_collections.ConfigDict`, to which recipes assign.
"""

import enum
import functools
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

# Longest value shown in a message, in characters.
_SHOWN = 80
_STRICT = pydantic.ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


class Group(pydantic.BaseModel):
  """Fields with their defaults; the string below a field is its meaning."""

  model_config = pydantic.ConfigDict(
    **_STRICT, extra="forbid", use_attribute_docstrings=True, validate_default=False
  )


# What may stand in a field's `Annotated`, or in that of its group, for all of its fields.


class Says(NamedTuple):
  """The values that a field accepts, as the end of "it must be ..."; replaces the type's words."""

  text: str | Callable[[], str]


class When(NamedTuple):
  """A condition without which a field has no effect.

  Attributes:
    works: takes a view of the config (`effects.View`), which notes the fields that it reads.
    otherwise: the reason or the remedy, as the end of a sentence.
    command: the only command to which this applies; '': all.
  """

  works: Callable[[Any], Any]
  otherwise: str
  command: str = ""


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


class Problem(NamedTuple):
  """An error in a field: its kind, name and value, and the end of a sentence about it."""

  kind: Literal["unknown", "missing", "value"]
  name: str
  value: Any = None
  text: str = ""


def is_group(annotation: Any) -> bool:
  return isinstance(annotation, type) and issubclass(annotation, Group)


def problems(
  group: type[Group], values: Mapping[Any, Any], *, complete: bool = False, prefix: str = ""
) -> list[Problem]:
  """Errors in the values of a group: unknown fields first, then missing ones, then values.

  Args:
    group: the schema.
    values: nested like the schema, with tuples instead of lists.
    complete: whether every field must be present, even those with a default.
    prefix: of the names in the result.
  """
  found = [Problem("unknown", f"{prefix}{n}", values[n]) for n in values if n not in _names(group)]
  for name, field in group.model_fields.items():
    full = prefix + name
    if name not in values:
      found += [Problem("missing", full)] if complete or field.is_required() else []
    elif not is_group(field.annotation):
      if not _fits(group, name, values[name]):
        found.append(Problem("value", full, values[name], _sentence(field, values[name])))
    elif isinstance(values[name], Mapping):
      inner: Any = field.annotation
      found += problems(inner, values[name], complete=complete, prefix=f"{full}.")
    else:
      found.append(Problem("value", full, values[name], "it must be a group of fields."))
  kinds = ("unknown", "missing", "value")
  return sorted(found, key=lambda problem: kinds.index(problem.kind))


def _names(group: type[Group]) -> Iterable[str]:
  return group.model_fields


@functools.cache
def _adapter(group: type[Group], name: str) -> pydantic.TypeAdapter[Any]:
  field = group.model_fields[name]
  kind: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
  return pydantic.TypeAdapter(kind, config=_STRICT)


def _fits(group: type[Group], name: str, value: Any) -> bool:
  try:
    _adapter(group, name).validate_python(value)
  except pydantic.ValidationError:
    return False
  return _is_own(value)


def _is_own(value: Any) -> bool:
  """Whether a value is of Python's own types: pydantic accepts a NumPy number, JSON does not."""
  if isinstance(value, tuple | list | dict):
    return all(map(_is_own, value))
  return value is None or type(value) in (bool, int, float, str)


def _sentence(field: Any, value: Any) -> str:
  """The end of a sentence about a value that a field does not accept."""
  words = accepted(field.annotation, field.metadata)
  if words.startswith("one of "):
    return f"choose {words}."
  return f"it must be {words}{form(field.annotation, value)}."


def form(annotation: Any, value: Any) -> str:
  """How to type a tuple, in quotes for a shell, if the value is one that was typed otherwise.

  A shell takes the quotes inside a value away: ("a", "b") becomes the one text "(a, b)".
  """
  text = value[0] if isinstance(value, tuple) and len(value) == 1 else value
  if not isinstance(text, str) or "tuple" not in str(annotation):
    return ""
  of_texts = "str" in str(annotation) or "Literal" in str(annotation)
  return """, as in '("a", "b")'""" if of_texts else ", as in '(1, 2)'"


def _parts(annotation: Any) -> tuple[Any, ...]:
  return typing.get_args(annotation) if typing.get_origin(annotation) is tuple else ()


def _choices(annotation: Any) -> list[str]:
  is_literal = typing.get_origin(annotation) is Literal
  return [str(choice) for choice in typing.get_args(annotation)] if is_literal else []


def accepted(annotation: Any, metadata: Any = ()) -> str:
  """The values that a type accepts, in words, as the end of "it must be ..."."""
  while typing.get_origin(annotation) is Annotated:
    annotation, *more = typing.get_args(annotation)
    metadata = (*metadata, *more)
  for each in reversed(metadata):
    text = getattr(each.func if isinstance(each, pydantic.AfterValidator) else each, "text", None)
    if text is not None:
      return text() if callable(text) else str(text)
  if choices := _choices(annotation):
    return f"one of {', '.join(choices)}"
  if typing.get_origin(annotation) in (typing.Union, types.UnionType):
    return ", or ".join(accepted(part) for part in typing.get_args(annotation))
  if parts := _parts(annotation):
    each = accepted(parts[0])
    return f"a tuple, each {each}" if ... in parts else f"a tuple of {len(parts)}, each {each}"
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
    return [each for each in self.metadata if isinstance(each, When)]

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
