"""How a group of fields states value, type, range and meaning in one place, and is checked by it.

The library is pydantic, in its strict mode: `True` is no number, 3.0 no whole number, a word no
tuple; NaN, infinities and unknown fields are refused, and each error comes as data from which one
sentence is made. Of the others, msgspec reports its first error as text only, jsonschema knows
neither tuples nor Python's types and keeps the ranges away from the fields, and attrs leaves every
check to be written. `ml_collections.ConfigDict` still carries the values: recipes assign to it and
the command line overrides its fields.
"""

import types
import typing
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

# Characters of a value that a sentence shows.
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
  """What values a field takes, as the end of "it must be ..."; in place of what its type says."""

  text: str


def must_be(text: str, accepts: Callable[[Any], bool]) -> Any:
  """What to add to `Annotated`: a further condition, and `text` as the end of "it must be ..."."""

  def check(value: Any) -> Any:
    if not accepts(value):
      raise ValueError(f"it must be {text}.")
    return value

  check.text = text  # type: ignore[attr-defined]
  return pydantic.AfterValidator(check)


def is_plain(text: str) -> bool:
  """Whether a text has no control characters, line separators or halves of characters."""
  return not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in text)


class Problem(NamedTuple):
  """What is wrong with a field: 'unknown', 'missing' or 'value', and the end of a sentence."""

  kind: Literal["unknown", "missing", "value"]
  name: str
  value: Any
  text: str


def problems(
  group: type[Group], values: Mapping[Any, Any], *, complete: bool = False
) -> list[Problem]:
  """What is wrong with the values of a group; unknown names first, then missing ones.

  Args:
    group: the schema.
    values: nested as the schema is, with tuples and not lists.
    complete: whether every field must be there, also one that has a default.
  """
  found: list[Problem] = []
  try:
    group.model_validate(dict(values))
  except pydantic.ValidationError as error:
    found = _problems(group, values, error)
  if complete:
    found += [Problem("missing", name, None, "") for name in _missing(group, values, "")]
  # A NumPy number passes for a number, but is none in JSON.
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
  """The type of the first part of a value that is none of Python's own; '' where there is none."""
  if isinstance(value, tuple):
    return next((found for each in value if (found := _strange(each))), "")
  own = value is None or isinstance(value, bool | int | float | str)
  return "" if own else f"{type(value).__module__}.{type(value).__name__}"


def _problems(
  group: type[Group], values: Mapping[Any, Any], error: pydantic.ValidationError
) -> list[Problem]:
  found = []
  for each in error.errors(include_url=False, include_input=False):
    schema: Any = group
    value: Any = values
    names: list[str] = []
    field = None
    # Down to the field; what follows is a place inside its value.
    for part in each["loc"]:
      known = isinstance(schema, type) and issubclass(schema, Group)
      if not known or not isinstance(value, Mapping):
        break
      names.append(str(part))
      field = schema.model_fields.get(str(part))
      value = value.get(part)
      schema = field.annotation if field else None
    name = ".".join(names)
    if each["type"] == "extra_forbidden" or each["type"] == "invalid_key" or field is None:
      found.append(Problem("unknown", name, value, ""))
    elif each["type"] == "missing" and len(names) == len(each["loc"]):
      found.append(Problem("missing", name, None, ""))
    else:
      whole = len(names) == len(each["loc"])
      text = str(each.get("ctx", {}).get("error", "")) if whole else ""
      text = text or _range_text(each, field)
      found.append(Problem("value", name, value, text))
  return found


def _range_text(error: Any, field: Any) -> str:
  """The end of a sentence about a value: the bound that it passes, or all that it may be."""
  context = error.get("ctx", {})
  bounds = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
  }
  # In a tuple it is one of several numbers that passes.
  if error["type"] in bounds and not _parts(field.annotation):
    key, words = bounds[error["type"]]
    return f"it must be {words} {context[key]:,.15g}."
  if error["type"] == "string_too_long":
    return f"it must have at most {context['max_length']:,} characters."
  if choices := _choices(field.annotation):
    return f"choose one of {', '.join(choices)}."
  return f"it must be {accepted(field.annotation, field.metadata)}."


def _parts(annotation: Any) -> tuple[Any, ...]:
  return typing.get_args(annotation) if typing.get_origin(annotation) is tuple else ()


def _choices(annotation: Any) -> list[str]:
  is_literal = typing.get_origin(annotation) is Literal
  return [str(choice) for choice in typing.get_args(annotation)] if is_literal else []


def accepted(annotation: Any, metadata: Any = ()) -> str:
  """The values that a type takes, in words, as the end of "it must be ..."."""
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
  """The range of a number in words; pydantic keeps it as objects with `gt`, `ge` and `le`."""
  parts = [part for each in metadata for part in getattr(each, "metadata", [each])]
  above, least, most = (
    next((f" {words} {getattr(part, key):,.15g}" for part in parts if hasattr(part, key)), "")
    for key, words in (("gt", "above"), ("ge", "from"), ("le", "to"))
  )
  return f"{above} and up{most}" if above and most else f"{above}{least}{most}"


def shown(value: Any) -> str:
  """A value as a sentence shows it: on one line, and of a long one its beginning."""
  try:
    text = ascii(value) if isinstance(value, str) and not is_plain(value) else repr(value)
  except Exception:  # an object's own __repr__, or an int of more digits than Python prints
    text = f"a {type(value).__name__}"
  text = " ".join(text.split())
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
