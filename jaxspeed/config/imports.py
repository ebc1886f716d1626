"""Modules named with --import, which register models, optimizers and data sets."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from absl import flags

from jaxspeed.config.recipe import guarded
from jaxspeed.config.schema import is_plain, shown
from jaxspeed.errors import UserError

_HELP = "Modules to import first, separated by commas: they register a model, ... of your own."


def define_import_flag() -> None:
  """Defines --import; `flags.run` imports the modules before anything else is read."""
  flags.DEFINE_string("import", "", _HELP)


def import_modules(names: Sequence[str]) -> None:
  """Imports modules from the installed packages and the current folder, as `python -m` does.

  Raises:
    UserError: there is no such module, or its own code raises an exception.
  """
  here = os.getcwd()
  if here not in sys.path and "" not in sys.path:
    sys.path.insert(0, here)
  for name in names:
    _import(name)


def _import(name: str) -> None:
  flag = f"--import={name if is_plain(name) else shown(name)}"
  if not all(part.isidentifier() for part in name.split(".")):
    advice = "name a module as in --import=my_package.my_models, not a file"
    raise UserError(f"{flag} is no module's name: {advice}.")
  importlib.invalidate_caches()
  parts = name.split(".")
  for end in range(1, len(parts) + 1):
    module = ".".join(parts[:end])
    file = _file_of(module, flag)
    guarded(file, lambda module=module: importlib.import_module(module), prefix=f"{flag}: ")


def _file_of(module: str, flag: str) -> str:
  """The file of a module whose parent is imported; raises a UserError if there is none."""
  if module in sys.modules:
    return getattr(sys.modules[module], "__file__", None) or module
  parent = module.rpartition(".")[0]
  is_package = not parent or hasattr(sys.modules[parent], "__path__")
  spec = importlib.util.find_spec(module) if is_package else None
  if spec is None:
    raise UserError(
      f"{flag}: there is no module {module} in the current folder, {os.getcwd()}, or among the "
      "installed packages."
    )
  return spec.origin or module
