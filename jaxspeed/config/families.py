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
from collections.abc import Callable, Mapping
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
    _check(name, module)
    named = Annotated[str, one_of(lambda: FAMILIES), Also("arch architecture"), Mark.COMMON]
    fields: dict[str, Any] = {"name": (named, pydantic.Field(name, description="the model"))}
    meanings = _meanings(module)
    for field in dataclasses.fields(module):
      if field.name not in _NOT_FIELDS:
        default = ... if field.default is dataclasses.MISSING else field.default
        described = pydantic.Field(default, description=meanings.get(field.name))
        fields[field.name] = (field.type, described)
    schema = pydantic.create_model(f"{module.__name__}Fields", __base__=Group, **fields)
    FAMILIES[name] = Family(module, schema, least_side)
    return module

  return add


def _check(name: str, module: type) -> None:
  """Makes sure that a class can be the model `name`, or raises a UserError."""
  own = module.__name__ if isinstance(module, type) else repr(module)
  # Without importing flax: `config` does not know it.
  if not (isinstance(module, type) and hasattr(module, "apply") and hasattr(module, "init")):
    raise UserError(f"the model {name!r} must be a flax.linen.Module, not {own}.")
  missing = {"classes", "dtype"} - {field.name for field in dataclasses.fields(module)}
  if missing:
    raise UserError(
      f"the model {name!r}: {own} has no attribute {' and '.join(sorted(missing))}; a model has "
      "`classes: int` and `dtype: Any`, which config.data.classes and config.precision set."
    )
  if name in FAMILIES and not is_same(FAMILIES[name].module, module):
    raise UserError(f"the name {name!r} is that of another model already: choose another name.")


def is_same(one: Any, other: Any) -> bool:
  """Whether two functions or classes are one definition, which a notebook may run twice."""
  return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


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


def of_family(model: Mapping[str, Any], name: str) -> dict[str, Any]:
  """The fields of a recipe's model, or the defaults of another family where `name` is that."""
  is_other = name in FAMILIES and name != model.get("name")
  return with_defaults({"name": name} if is_other else model)


def with_defaults(model: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a model, with defaults for those that the recipe does not set.

  So the command line can override every field of the family.
  """
  family = FAMILIES.get(str(model.get("name")))
  if family is None:
    return dict(model)
  fields = family.fields.model_fields
  defaults = {name: field.default for name, field in fields.items() if not field.is_required()}
  return defaults | dict(model)
