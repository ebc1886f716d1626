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
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import pydantic
from annotated_types import Predicate

from jaxspeed.config.schema import Also, Group, Mark, Says, one_of
from jaxspeed.errors import UserError

# The names of the package's own optimizers (`optim.make`) and of its data sets in memory
# (`data.memory.arrays`), which a user's own cannot take.
OPTIMIZER_NAMES = ("sgd", "muon", "lars", "adamw")
DATA_NAMES = ("cifar10", "cifar100", "digits")

# From `config.optimizer` to an optax.GradientTransformation, or to a dict of them by label.
OPTIMIZERS: dict[str, Callable[..., Any]] = {}
# From `config.data.path` to arrays.
DATA_SETS: dict[str, Callable[..., Any]] = {}
# From the config to a function: of logits [n, classes], targets [n, classes], the `Batch` and the
# share of the run's steps that are done, to the loss of each image [n]; and of a key, the `Batch`
# of augmented images and that share, to the `Batch` to train on.
LOSSES: dict[str, Callable[..., Any]] = {}
AUGMENTATIONS: dict[str, Callable[..., Any]] = {}
# From the `TrainState` after an epoch to a number in its row.
SCALARS: dict[str, Callable[..., Any]] = {}

# Attributes of a module that no user sets, and those that the run sets.
NO_FIELDS = ("parent", "name", "dtype", "conv_fusion")
_Definition = TypeVar("_Definition", bound=Callable[..., Any])


class AnyModel(Protocol):
  """What the package asks of a model, as a `flax.linen.Module` has it (docs/extending.md)."""

  @property
  def init(self) -> Callable[..., Any]:
    """From (rng, images, *, train) to a dict with "params" and perhaps "batch_stats"."""

  @property
  def apply(self) -> Callable[..., Any]:
    """From (variables, images, *, train, ...) to logits, with `mutable` also the new statistics."""

  def __hash__(self) -> int:
    """Equal for models of equal fields: shapes are kept by model."""


class Model(Group):
  """The field of `config.model` that every family has."""

  name: Annotated[
    str,
    Predicate(lambda name: name in FAMILIES),
    Says(lambda: one_of(FAMILIES)),
    Also("arch architecture"),
    Mark.COMMON,
  ]
  """the model"""


class Family(NamedTuple):
  """A flax module, the fields of its config, and the smallest side of its images in pixels."""

  module: Callable[..., Any]
  fields: type[Model]
  least_side: int


# The families of models by `config.model.name`; filled as the modules of `models/` are imported.
FAMILIES: dict[str, Family] = {}


def model(name: str, *, least_side: int = 1) -> Callable[[_Definition], _Definition]:
  """A decorator that registers a flax module as the family `name` of `config.model.name`.

  Args:
    name: the family.
    least_side: the smallest side of its images, in pixels.

  Raises:
    UserError: it is not a flax module with `classes` and `dtype`, or another has the name.
  """

  def add(module: _Definition) -> _Definition:
    # Without importing flax: `config` does not know it.
    fields = dataclasses.fields(module) if dataclasses.is_dataclass(module) else ()
    if not (hasattr(module, "apply") and {"classes", "dtype"} <= {each.name for each in fields}):
      raise UserError(
        f"the model {name!r} must be a flax.linen.Module with `classes: int` and `dtype: Any`, "
        f"which config.data.classes and config.precision set, and {module} is none."
      )
    _require_free("model", name, module, FAMILIES[name].module if name in FAMILIES else module)
    FAMILIES[name] = Family(module, _fields_of(module), least_side)
    return module

  return add


def _fields_of(module: Any) -> type[Model]:
  """The attributes of a module as fields with their types, defaults and meanings."""
  types, meanings = typing.get_type_hints(module, include_extras=True), _meanings(module)
  fields: dict[str, Any] = {}
  for each in dataclasses.fields(module):
    if each.name not in ("classes", *NO_FIELDS):
      default = ... if each.default is dataclasses.MISSING else each.default
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


def _require_free(what: str, name: str, new: Any, there: Any) -> None:
  """Refuses a name of another definition; a notebook may run one definition twice."""
  if there is None or (new.__module__, new.__qualname__) != (there.__module__, there.__qualname__):
    raise UserError(f"the name {name!r} is that of another {what} already: choose another name.")


def _register(
  what: str, table: dict[str, Callable[..., Any]], own: tuple[str, ...], name: str
) -> Callable[[_Definition], _Definition]:
  def add(function: _Definition) -> _Definition:
    _require_free(what, name, function, None if name in own else table.get(name, function))
    table[name] = function
    return function

  return add


# The decorators for a name of `config.optimizer.name`, `config.data.name`, `config.loss`,
# `config.augment.own` and in the rows.
optimizer = functools.partial(_register, "optimizer", OPTIMIZERS, OPTIMIZER_NAMES)
data_set = functools.partial(_register, "data set", DATA_SETS, DATA_NAMES)
loss = functools.partial(_register, "loss", LOSSES, ("cross_entropy",))
augmentation = functools.partial(_register, "augmentation", AUGMENTATIONS, ("",))
scalar = functools.partial(_register, "scalar", SCALARS, ())
