"""Models, optimizers and data sets by their names: the package's own and the user's.

A module of the user's with such definitions is named on the command line with --import=MODULE:

  @registry.model("tiny")
  class Tiny(nn.Module):
    classes: int  # passed by `models.make`, like dtype: not a field
    dtype: Any
    width: Annotated[int, Field(ge=1, le=4096)] = 16
    "channels of each layer"

  @registry.optimizer("lion")
  def lion(fields): ...

  @registry.data_set("stripes")
  def stripes(path): ...

The other attributes of a model are the fields of `config.model`: type, range, default and, in the
string below it, the meaning of each. docs/extending.md says what each definition must be. Nothing
here imports JAX.
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar

import pydantic

from jaxspeed.config.schema import Also, Declared, Mark, Says, not_given, one_of
from jaxspeed.errors import UserError

# The names of the package's own optimizers (`optim.make`) and of its data sets in memory
# (`data.memory.arrays`), which a user's own cannot take.
OPTIMIZER_NAMES = ("sgd", "muon", "lars", "adamw")
DATA_NAMES = ("cifar10", "cifar100", "digits")

# From `config.optimizer` to an optax.GradientTransformation, or to a dict of them by label.
OPTIMIZERS: dict[str, Callable[..., Any]] = {}
# From `config.data.path` to arrays.
DATA_SETS: dict[str, Callable[..., Any]] = {}

# Attributes of a module that no user sets, and those that the run sets.
NO_FIELDS = ("parent", "name", "dtype", "conv_fusion")
_Definition = TypeVar("_Definition", bound=Callable[..., Any])


class Family(NamedTuple):
  """A flax module, the fields of its config, and the smallest side of its images in pixels."""

  module: Callable[..., Any]
  fields: tuple[Declared, ...]
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
    if not (isinstance(module, type) and hasattr(module, "apply") and hasattr(module, "init")):
      own = getattr(module, "__name__", repr(module))
      raise UserError(f"the model {name!r} must be a flax.linen.Module, not {own}.")
    if missing := {"classes", "dtype"} - {each.name for each in dataclasses.fields(module)}:
      raise UserError(
        f"the model {name!r}: {module.__name__} has no attribute {' and '.join(sorted(missing))}; "
        "a model has `classes: int` and `dtype: Any`, which config.data.classes and "
        "config.precision set."
      )
    _require_free(name, "model", module, FAMILIES[name].module if name in FAMILIES else module)
    FAMILIES[name] = Family(module, (_NAME, *_fields_of(module)), least_side)
    return module

  return add


_OF_MODELS = (Mark.PREDICT, not_given("model"))
_NAME = Declared(
  "model.name",
  str,
  ...,
  "the model",
  (*_OF_MODELS, Says(lambda: one_of(FAMILIES)), Also("arch architecture"), Mark.COMMON),
)


def _fields_of(module: Any) -> Iterator[Declared]:
  types, meanings = typing.get_type_hints(module, include_extras=True), _meanings(module)
  for each in dataclasses.fields(module):
    if each.name not in ("classes", *NO_FIELDS):
      info = pydantic.fields.FieldInfo.from_annotation(types[each.name])
      default = ... if each.default is dataclasses.MISSING else each.default
      meaning = " ".join(meanings.get(each.name, "").split())
      metadata = (*_OF_MODELS, *info.metadata)
      yield Declared(f"model.{each.name}", info.annotation, default, meaning, metadata)


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


def optimizer(name: str) -> Callable[[_Definition], _Definition]:
  """A decorator that registers a function as the optimizer `name` of `config.optimizer.name`.

  The function takes `config.optimizer` and returns an optax.GradientTransformation without a
  learning rate, for all parameters, or a dict of them by the labels of parameters
  (`optim.groups.LABELS`); what a dict leaves out is trained with SGD. The learning rate of the plan
  is applied to what it returns.
  """
  return _adder("optimizer", OPTIMIZERS, name, OPTIMIZER_NAMES)


def data_set(name: str) -> Callable[[_Definition], _Definition]:
  """A decorator that registers a function as the data set `name` of `config.data.name`.

  The function takes `config.data.path`, perhaps "", and returns a dict with `train_images`,
  `train_labels`, `eval_images` and `eval_labels`, and if it likes `class_names`. Images are uint8
  [n, height, width, 3], labels integers [n] from 0.
  """
  return _adder("data set", DATA_SETS, name, DATA_NAMES)


def _adder(
  what: str, registered: dict[str, Callable[..., Any]], name: str, own: Collection[str]
) -> Callable[[_Definition], _Definition]:
  def add(function: _Definition) -> _Definition:
    _require_free(name, what, function, None if name in own else registered.get(name, function))
    registered[name] = function
    return function

  return add


def _require_free(name: str, what: str, new: Any, there: Any) -> None:
  """Refuses a name of another definition; a notebook may run one definition twice."""
  same = new is there or (
    there and (new.__module__, new.__qualname__) == (there.__module__, there.__qualname__)
  )
  if not same:
    raise UserError(f"the name {name!r} is that of another {what} already: choose another name.")
