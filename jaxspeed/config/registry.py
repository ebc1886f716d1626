"""Models, optimizers and data sets of the user's own, registered by decorators.

A module with such definitions is named on the command line with --import=MODULE:

  from jaxspeed.config import registry

  @registry.model("tiny")
  class Tiny(nn.Module): ...

  @registry.optimizer("lion")
  def lion(fields): ...

  @registry.data_set("stripes")
  def stripes(path): ...

docs/extending.md says what each must be. Nothing here imports JAX.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from jaxspeed.config import families

model = families.register

_Function = TypeVar("_Function", bound=Callable[..., Any])

# The names of the package's own optimizers (`optim.make`) and of its data sets in memory
# (`data.memory.arrays`), which a user's own cannot take.
OPTIMIZER_NAMES = ("sgd", "muon", "lars", "adamw")
DATA_NAMES = ("cifar10", "cifar100", "digits")

# From `config.optimizer` to an optax.GradientTransformation, or to a dict of them by label.
OPTIMIZERS: dict[str, Callable[..., Any]] = {}
# From `config.data.path` to arrays.
DATA_SETS: dict[str, Callable[..., Any]] = {}


def optimizer(name: str) -> Callable[[_Function], _Function]:
  """A decorator that registers a function as the optimizer `name` of `config.optimizer.name`.

  The function takes `config.optimizer` and returns an optax.GradientTransformation without a
  learning rate, for all parameters, or a dict of them by the labels of parameters
  (`optim.groups.LABELS`); what a dict leaves out is trained with SGD. The learning rate of the plan
  is applied to what it returns.
  """
  return _adder("optimizer", OPTIMIZERS, name, OPTIMIZER_NAMES)


def data_set(name: str) -> Callable[[_Function], _Function]:
  """A decorator that registers a function as the data set `name` of `config.data.name`.

  The function takes `config.data.path`, perhaps "", and returns a dict with `train_images`,
  `train_labels`, `eval_images` and `eval_labels`, and if it likes `class_names`. Images are uint8
  [n, height, width, 3], labels integers [n] from 0.
  """
  return _adder("data set", DATA_SETS, name, DATA_NAMES)


def _adder(
  what: str, registered: dict[str, Callable[..., Any]], name: str, own: tuple[str, ...]
) -> Callable[[_Function], _Function]:
  def add(function: _Function) -> _Function:
    families.require_free(
      name, what, function, None if name in own else registered.get(name, function)
    )
    registered[name] = function
    return function

  return add
