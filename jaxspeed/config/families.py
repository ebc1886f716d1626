"""Families of models, by the name in `config.model.name`, and the fields of each.

A model's fields are the attributes of its flax module, which states type, range, default and, in
the string below it, the meaning of each:

  @families.register("tiny")
  class Tiny(nn.Module):
    classes: int  # passed by `models.make`, like dtype: not a field
    width: Annotated[int, Field(ge=1, le=4096)] = 16
    "channels of each layer"
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeVar

import pydantic

from jaxspeed.config.schema import Also, Group, Mark, one_of
from jaxspeed.errors import UserError

# Attributes of a module that are not config fields.
_NOT_FIELDS = ("classes", "dtype", "parent", "name")

_Module = TypeVar("_Module", bound=type)


class Family(NamedTuple):
  """A flax module, the schema of its fields, and the smallest side of its images in pixels."""

  module: Callable[..., Any]
  fields: type[Group]
  least_side: int


# Filled as the modules of `models/` are imported.
FAMILIES: dict[str, Family] = {}


def register(name: str, *, least_side: int = 1) -> Callable[[_Module], _Module]:
  """A decorator that registers a flax module as the family `name`.

  Args:
    name: the value of `config.model.name`.
    least_side: the smallest side of its images, in pixels.

  Raises:
    UserError: it is not a flax module with `classes` and `dtype`, or another has the name.
  """

  def add(module: _Module) -> _Module:
    # Without importing flax: `config` does not know it.
    if not (isinstance(module, type) and hasattr(module, "apply") and hasattr(module, "init")):
      own = getattr(module, "__name__", repr(module))
      raise UserError(f"the model {name!r} must be a flax.linen.Module, not {own}.")
    attributes = {field.name: field for field in dataclasses.fields(module)}
    if missing := {"classes", "dtype"} - {*attributes}:
      raise UserError(
        f"the model {name!r}: {module.__name__} has no attribute {' and '.join(sorted(missing))}; "
        "a model has `classes: int` and `dtype: Any`, which config.data.classes and "
        "config.precision set."
      )
    require_free(name, "model", module, FAMILIES[name].module if name in FAMILIES else module)
    named = Annotated[str, one_of(lambda: FAMILIES), Also("arch architecture"), Mark.COMMON]
    fields: dict[str, Any] = {"name": (named, pydantic.Field(name, description="the model"))}
    meanings = _meanings(module)
    for field in attributes.values():
      if field.name not in _NOT_FIELDS:
        default = ... if field.default is dataclasses.MISSING else field.default
        described = pydantic.Field(default, description=meanings.get(field.name))
        fields[field.name] = (field.type, described)
    schema = pydantic.create_model(f"{module.__name__}Fields", __base__=Group, **fields)
    FAMILIES[name] = Family(module, schema, least_side)
    return module

  return add


def require_free(name: str, what: str, new: Any, there: Any) -> None:
  """Makes sure that a name is free, or that a notebook runs one definition twice.

  Raises:
    UserError: it is that of another definition.
  """
  same = new is there or (
    there and (new.__module__, new.__qualname__) == (there.__module__, there.__qualname__)
  )
  if not same:
    raise UserError(f"the name {name!r} is that of another {what} already: choose another name.")


def _meanings(module: type) -> dict[str, str]:
  """The strings below a class's attributes; empty for a class without a source file."""
  try:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(module))).body
  except (OSError, TypeError, SyntaxError, ValueError):
    return {}
  assert isinstance(definition, ast.ClassDef)
  return {
    attribute.target.id: below.value.value
    for attribute, below in itertools.pairwise(definition.body)
    if isinstance(attribute, ast.AnnAssign)
    and isinstance(attribute.target, ast.Name)
    and isinstance(below, ast.Expr)
    and isinstance(below.value, ast.Constant)
    and isinstance(below.value.value, str)
  }
