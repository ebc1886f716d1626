"""Groups of config fields, each stated once with default, type, range and meaning, and checked.

The library is pydantic in strict mode: `True` is not a number, 3.0 not an integer, a string not a
tuple. It refuses NaN, infinities and unknown fields, and returns errors as data, from which we
write sentences. Alternatives: msgspec reports only its first error, as text; jsonschema has no
tuples and keeps ranges apart from the fields; attrs leaves every check to its user. The values live
in an `ml_collections.ConfigDict`: recipes assign to it and the command line overrides its fields.
"""

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
    extra="forbid",
    allow_inf_nan=False,
    use_attribute_docstrings=True,
    arbitrary_types_allowed=True,
    validate_default=False,
  )


class Says(NamedTuple):
  """The values that a field accepts, as the end of "it must be ..."; replaces the type's words."""

  text: str


def must_be(text: str, accepts: Callable[[Any], bool]) -> Any:
  """A condition to add to `Annotated`, with `text` as the end of its error "it must be ..."."""

  def check(value: Any) -> Any:
    if not accepts(value):
      raise ValueError(f"it must be {text}.")
    return value

  check.text = text  # type: ignore[attr-defined]
  return pydantic.AfterValidator(check)


class OneOf:
  """A condition to add to `Annotated[str, ...]`: one of names that may be added while it runs."""

  def __init__(self, names: Callable[[], Iterable[str]]) -> None:
    self._names = names

  @property
  def text(self) -> str:
    """The names, as the end of "it must be ..."."""
    return f"one of {', '.join(self._names())}"

  def __call__(self, value: Any) -> Any:
    if value not in self._names():
      raise ValueError(choose(self._names()))
    return value


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
  value: Any
  text: str


def problems(
  group: type[Group], values: Mapping[Any, Any], *, complete: bool = False
) -> list[Problem]:
  """Errors in the values of a group: unknown fields first, then missing ones, then values.

  Args:
    group: the schema.
    values: nested like the schema, with tuples instead of lists.
    complete: whether every field must be present, even those with a default.
  """
  found: list[Problem] = []
  try:
    group.model_validate(dict(values))
  except pydantic.ValidationError as error:
    found = problems_of(group, values, error)
  if complete:
    found += [Problem("missing", name, None, "") for name in _missing(group, values, "")]
  # pydantic accepts a NumPy number, JSON does not.
  found += [
    Problem("value", name, value, f"it must be of Python's own types, not {strange}.")
    for name, value in _leaves(values, "")
    if (strange := _strange(value))
  ]
  first: dict[str, Problem] = {}
  for problem in found:
    first.setdefault(problem.name, problem)
  kinds = ("unknown", "missing", "value")
  return sorted(first.values(), key=lambda problem: kinds.index(problem.kind))


def _missing(group: type[Group], values: Mapping[Any, Any], prefix: str) -> Iterator[str]:
  for name, field in group.model_fields.items():
    inner: Any = field.annotation
    if name not in values:
      yield prefix + name
    elif isinstance(values[name], Mapping) and isinstance(inner, type) and issubclass(inner, Group):
      yield from _missing(inner, values[name], f"{prefix}{name}.")


def _leaves(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
  for name, value in values.items():
    if isinstance(value, Mapping):
      yield from _leaves(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value


def _strange(value: Any) -> str:
  """The type of the first part of a value that is not a plain Python type; '' if none."""
  if isinstance(value, tuple):
    return next((found for each in value if (found := _strange(each))), "")
  own = value is None or isinstance(value, bool | int | float | str)
  return "" if own else f"{type(value).__module__}.{type(value).__name__}"


def problems_of(
  group: type[Group], values: Mapping[Any, Any], error: pydantic.ValidationError
) -> list[Problem]:
  """The errors that pydantic found in the values of a group."""
  found = []
  for each in error.errors(include_url=False, include_input=False):
    names, field, value = _locate(group, values, each["loc"])
    name = ".".join(names)
    if each["type"] == "extra_forbidden" or each["type"] == "invalid_key" or field is None:
      found.append(Problem("unknown", name, value, ""))
    elif each["type"] == "missing" and len(names) == len(each["loc"]):
      found.append(Problem("missing", name, None, ""))
    else:
      whole = len(names) == len(each["loc"])
      text = str(each.get("ctx", {}).get("error", "")) if whole else ""
      text = text or _range_text(each, field, value)
      found.append(Problem("value", name, value, text))
  return found


def _locate(
  group: type[Group], values: Mapping[Any, Any], place: tuple[int | str, ...]
) -> tuple[list[str], Any, Any]:
  """Names down to the field that pydantic points at, the field (None: unknown) and its value."""
  schema: Any = group
  value: Any = values
  names: list[str] = []
  field = None
  for part in place:  # the parts after the field lead into its value
    known = isinstance(schema, type) and issubclass(schema, Group)
    if not known or not isinstance(value, Mapping):
      break
    names.append(str(part))
    field = schema.model_fields.get(str(part))
    value = value.get(part)
    schema = field.annotation if field else None
  return names, field, value


def _range_text(error: Any, field: Any, value: Any) -> str:
  """The end of a sentence about a value: the bound that it violates, or the values accepted."""
  context = error.get("ctx", {})
  bounds = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
  }
  # In a tuple, only one of several numbers violates the bound.
  if error["type"] in bounds and not _parts(field.annotation):
    key, words = bounds[error["type"]]
    return f"it must be {words} {context[key]:,.15g}."
  if error["type"] == "string_too_long":
    return f"it must have at most {context['max_length']:,} characters."
  if choices := _choices(field.annotation):
    return f"choose one of {', '.join(choices)}."
  return f"it must be {accepted(field.annotation, field.metadata)}{form(field.annotation, value)}."


def form(annotation: Any, value: Any) -> str:
  """How to type a tuple, in quotes for a shell, if the value may be one that was typed otherwise.

  A shell takes the quotes inside a value away: ("a", "b") becomes the one text "(a, b)".
  """
  example = _example(annotation)
  texts = value if isinstance(value, tuple) and len(value) == 1 else (value,)
  plain = all(isinstance(text, str) and not set(text) & set(",()[] ") for text in texts)
  if not example.startswith("(") or not isinstance(texts[0], str):
    return ""
  return "" if plain and '"' in example else f", as in '{example}'"


def _example(annotation: Any, place: int = 1) -> str:
  """A value of a type as Python writes it: the first ones, or the second, ... for another place."""
  while typing.get_origin(annotation) is Annotated:
    annotation = typing.get_args(annotation)[0]
  if typing.get_origin(annotation) in (typing.Union, types.UnionType):
    return _example(typing.get_args(annotation)[-1], place)
  if parts := _parts(annotation):
    parts = 2 * parts[:1] if ... in parts else parts
    return f"({', '.join(_example(part, number) for number, part in enumerate(parts, 1))})"
  if choices := _choices(annotation):
    return f'"{choices[min(place, len(choices)) - 1]}"'
  return f'"text{place}"' if annotation is str else str(place)


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
    if isinstance(each, Says):
      return each.text
    if isinstance(each, pydantic.AfterValidator) and hasattr(each.func, "text"):
      return str(each.func.text)
  if choices := _choices(annotation):
    return f"one of {', '.join(choices)}"
  if isinstance(annotation, type) and issubclass(annotation, Group):
    return "a group of fields"
  if typing.get_origin(annotation) in (typing.Union, types.UnionType):
    return ", or ".join(accepted(part) for part in typing.get_args(annotation))
  if annotation == tuple[()]:
    return "()"
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
