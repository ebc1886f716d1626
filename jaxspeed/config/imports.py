"""Modules named with --import, which register models, optimizers and data sets."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxspeed.config.recipe import guarded
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
  importlib.invalidate_caches()
  for name in names:
    _import(name)


def _import(name: str) -> None:
  flag = f"--import={name}"
  if name.endswith(".py") or "/" in name:
    raise UserError(f"{flag} is not a module's name: write --import=my_models for my_models.py.")
  spec = guarded(name, lambda: _spec(name), prefix=f"{flag}: ")
  if spec is None:
    raise UserError(
      f"{flag}: there is no module {name} in the current folder, {os.getcwd()}, or among the "
      "installed packages."
    )
  guarded(spec.origin or name, lambda: importlib.import_module(name), prefix=f"{flag}: ")


def _spec(name: str) -> Any:
  try:
    return importlib.util.find_spec(name)  # imports the packages above it
  except (ModuleNotFoundError, ValueError):
    return None
