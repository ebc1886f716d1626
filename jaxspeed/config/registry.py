"""Models, optimizers, losses, ... by their names: the package's own and the user's.

docs/extending.md says what each definition must be; --import=MODULE names the user's own:

  @registry.model("tiny")
  class Tiny(nn.Module):
    classes: int  # passed by `models.make`, like dtype: not a field
    dtype: Any
    width: Annotated[int, Field(ge=1, le=4096)] = 16  # a field of config.model
    "channels of each layer"

Nothing here imports JAX.
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

from jaxspeed.config.schema import COMMON, Also, Group, Says
from jaxspeed.errors import UserError

# A Flax module, or any object with its `init` and `apply` (docs/extending.md).
AnyModel = Any
_Definition = TypeVar("_Definition", bound=Callable[..., Any])


class Registry(dict[str, Any]):
  """Definitions by name. Called with a name, it is a decorator that adds one.

  Args:
    what: what it holds, for a message.
    own: the names of the package's own, which are defined elsewhere.
    check: raises a UserError on a definition that does not serve.
  """

  def __init__(
    self, what: str, *own: str, check: Callable[[str, Any], object] = lambda name, new: None
  ) -> None:
    super().__init__()
    self.what, self.own, self._check = what, own, check

  def __call__(self, name: str) -> Callable[[_Definition], _Definition]:
    def add(new: _Definition) -> _Definition:
      self._check(name, new)
      there = self.get(name, new)
      # A notebook may run one definition twice.
      same = (there.__module__, there.__qualname__) == (new.__module__, new.__qualname__)
      if name in self.own or not same:
        taken = f"the name {name!r} is that of another {self.what} already"
        raise UserError(f"{taken}: choose another name.")
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


# From `config.optimizer` to an optax.GradientTransformation, or to a dict of them by label.
optimizer = OPTIMIZERS = Registry("optimizer", "sgd", "muon", "lars", "adamw")
# From `config.data.path` to arrays; the package's own are in `data.memory.sources`.
data_set = DATA_SETS = Registry("data set", "cifar10", "cifar100", "digits")
# From the config to a function: of logits [n, classes], targets [n, classes], the `Batch` and the
# share of the run's steps that are done, to the loss of each image [n]; and of a key, the `Batch`
# of augmented images and that share, to the `Batch` to train on.
loss = LOSSES = Registry("loss", "cross_entropy")
augmentation = AUGMENTATIONS = Registry("augmentation", "")
# From the `TrainState` after an epoch to a number in its row.
scalar = SCALARS = Registry("scalar")


def _check_module(name: str, module: Any) -> None:
  # Without importing flax: `config` does not know it.
  fields = dataclasses.fields(module) if dataclasses.is_dataclass(module) else ()
  if not (hasattr(module, "apply") and {"classes", "dtype"} <= {each.name for each in fields}):
    raise UserError(
      f"the model {name!r} must be a flax.linen.Module with `classes: int` and `dtype: Any`, "
      f"which config.data.classes and config.precision set, and {module} is none."
    )
  fields_of(module)  # now, for the mistakes in its annotations


# Flax modules, by `config.model.name`; filled as the modules of `models/` are imported.
model = FAMILIES = Registry("model", check=_check_module)

_PLAIN = bool | int | float | str | tuple | None | python_types.EllipsisType
# Attributes of a module that no user sets, and those that the run sets.
NO_FIELDS = ("parent", "name", "dtype", "conv_fusion")


class Model(Group):
  """The field of `config.model` that every family has."""

  name: Annotated[
    str, Predicate(FAMILIES.knows), Says(FAMILIES.names), Also("arch architecture"), COMMON
  ]
  """the model"""


@functools.cache
def fields_of(module: Any) -> type[Model]:
  """The fields of a module's config: its attributes with their types, defaults and meanings."""
  types, meanings = typing.get_type_hints(module, include_extras=True), _meanings(module)
  fields: dict[str, Any] = {}
  for each in dataclasses.fields(module):
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
