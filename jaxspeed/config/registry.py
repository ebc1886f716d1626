"""Models, optimizers, losses, ... by their names: the package's own and the user's.

docs/extending.md says what each definition must be; --import=MODULE names the user's own. Nothing
here imports JAX.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import types as python_types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import pydantic
from annotated_types import Predicate

from jaxspeed.config.schema import COMMON, Group, Says
from jaxspeed.errors import UserError

# A Flax module, or any object with its `init` and `apply` (docs/extending.md).
AnyModel = Any
_Definition = TypeVar("_Definition", bound=Callable[..., Any])


class Registry(dict[str, Any]):
  """Definitions by name. Called with a name, it is a decorator that adds one.

  Args:
    what: what it holds, for a message.
    own: the names of the package's own, which are defined elsewhere.
  """

  def __init__(self, what: str, *own: str) -> None:
    super().__init__()
    self.what, self.own = what, own

  def __call__(self, name: str) -> Callable[[_Definition], _Definition]:
    def add(new: _Definition) -> _Definition:
      if self is FAMILIES:
        fields_of(new)  # now, for its mistakes
      # A notebook may run a definition of its own twice.
      if name in self.own or getattr(self.get(name), "__module__", "").startswith("jaxspeed."):
        raise UserError(f"the {self.what} {name!r} is jaxspeed's own: choose another name.")
      self[name] = new
      return new

    return add

  def knows(self, name: str) -> bool:
    """Whether a field may have this name."""
    return name in self or name in self.own

  def names(self) -> str:
    """The known names in words, and how to add one: what a field of such a name accepts."""
    known = ", ".join(name or "''" for name in (*self.own, *self))
    return f"one of {known}, or name the module that registers it with --import"


optimizer = OPTIMIZERS = Registry("optimizer", "sgd", "muon", "lars", "adamw")
data_set = DATA_SETS = Registry("data set", "cifar10", "cifar100", "digits")
loss = LOSSES = Registry("loss", "cross_entropy")
augmentation = AUGMENTATIONS = Registry("augmentation", "")
scalar = SCALARS = Registry("scalar")
# Flax modules, by `config.model.name`; filled as the modules of `models/` are imported.
model = FAMILIES = Registry("model")

_PLAIN = bool | int | float | str | tuple | None | python_types.EllipsisType
# Attributes of a module that no user sets, and those that the run sets.
NO_FIELDS = ("parent", "name", "dtype", "conv_fusion")


class Model(Group):
  """The field of `config.model` that every family has."""

  name: Annotated[str, Predicate(FAMILIES.knows), Says(FAMILIES.names), COMMON]
  """the model (`arch`, `architecture`)"""


@functools.cache
def fields_of(module: Any) -> type[Model]:
  """The fields of a module's config: its attributes with their types, defaults and meanings.

  Raises:
    UserError: it is no module that a config can make.
  """
  attributes = dataclasses.fields(module) if dataclasses.is_dataclass(module) else ()
  # Without importing flax: `config` does not know it.
  if not (hasattr(module, "apply") and {"classes", "dtype"} <= {each.name for each in attributes}):
    raise UserError(
      "a model must be a flax.linen.Module with `classes: int` and `dtype: Any`, which "
      f"config.data.classes and config.precision set, and {module} is none."
    )
  types, meanings = typing.get_type_hints(module, include_extras=True), _meanings(module)
  fields: dict[str, Any] = {}
  for each in attributes:
    default = ... if each.default is dataclasses.MISSING else each.default
    # A function or a dtype is the module's own choice: no command line or JSON can say it.
    if each.name not in ("classes", *NO_FIELDS) and isinstance(default, _PLAIN):
      field = pydantic.Field(default, description=meanings.get(each.name))
      fields[each.name] = types[each.name], field
  return pydantic.create_model(module.__name__, __base__=Model, **fields)


def _meanings(module: type) -> dict[str, str]:
  """The strings below a class's attributes; empty for a class without a source file."""
  try:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(module))).body
  except (OSError, TypeError, SyntaxError, ValueError):
    return {}
  return {
    attribute.target.id: below.value.value
    for attribute, below in itertools.pairwise(getattr(definition, "body", ()))
    if isinstance(attribute, ast.AnnAssign) and isinstance(attribute.target, ast.Name)
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
  }
