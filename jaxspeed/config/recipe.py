"""Recipes and modules of the user's own: finding, importing and checking them."""

import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from jaxspeed.config import checks
from jaxspeed.config.output import own_place
from jaxspeed.errors import UserError, did_you_mean

# Longest text of a recipe's own exception in a message, in characters.
_SHOWN = 300
_PACKAGE = pathlib.Path(__file__).parents[1]


class Published(NamedTuple):
  """What is published of a recipe, as its file states it in PUBLISHED[variant]; None: nothing."""

  source: str = ""  # the repository or paper
  hardware: str = ""  # number and name of the devices
  top1: float | None = None  # accuracy, as a fraction
  top5: float | None = None
  runs: int | None = None  # number of runs of which the accuracy is the mean
  seconds: float | None = None  # time to that accuracy
  clock: str = ""  # what that time covers
  epochs: tuple[int, int] | None = None  # least and most epochs to that accuracy
  # What its learning rates are for, "summed loss", "1,024 images": without momentum's lengthening.
  rates_for: str = "mean loss"

  @property
  def accuracy_in_words(self) -> str:
    """The accuracies as "75.92 % top-1, 93.02 % top-5"; '' without any."""
    parts = ((self.top1, "top-1"), (self.top5, "top-5"))
    return ", ".join(f"{100 * value:.4g} % {metric}" for value, metric in parts if value)

  @property
  def epochs_in_words(self) -> str:
    """The epochs as "27 epochs" or "55-57 epochs"; '' if they are not published."""
    return f"{'-'.join(map(str, dict.fromkeys(self.epochs)))} epochs" if self.epochs else ""


def published(name: str) -> dict[str, Published]:
  """What is published of each variant of a recipe: `name` is a shipped one's, or a file's path.

  A recipe without variants has one that is called "".

  Raises:
    UserError: there is no such recipe, it raises an exception, or its PUBLISHED has other fields
      than `Published`.
  """
  module = import_file(path := find_recipe(name))
  rows = getattr(module, "PUBLISHED", None) or {"": {}}
  return guarded(lambda: {str(each): Published(**rows[each]) for each in rows}, path)


def published_as(name: str) -> Published:
  """What is published of the shipped recipe with a config's name, as cifar10_airbench/94.

  The name may come from a file, so it selects a recipe, but not a path.
  """
  recipe, _, variant = name.partition("/")
  return (published(recipe) if recipe in shipped() else {}).get(variant, Published())


def shipped() -> dict[str, pathlib.Path]:
  """The recipes that come with the package, by name: from its wheel, or from configs/ beside it."""
  folder = _PACKAGE / "configs"
  if not folder.is_dir():
    folder = _PACKAGE.parent / "configs"  # a checkout
  files = sorted(folder.glob("*.py")) if (folder / "quickstart.py").is_file() else []
  return {file.stem: file for file in files if file.stem != "__init__"}


def find_recipe(name: str) -> str:
  """The file that a name or a path means.

  A name without a dot or a slash is that of a shipped recipe. A path is a file of the user's;
  configs/NAME.py means the shipped recipe where there is no such file.

  Raises:
    UserError: there is no such recipe, or no such file.
  """
  recipes, path = shipped(), pathlib.PurePath(name)
  if name not in recipes and os.path.isfile(name):
    return name
  if name in recipes or str(path.parent) == "configs" and path.stem in recipes:
    return str(recipes[path.stem])
  meant = did_you_mean(path.stem, recipes) or f": choose one of {', '.join(recipes)}, or a file."
  raise UserError(f"{name or 'the recipe'}: there is no such recipe or file{meant}")


def load_recipe(name: str) -> ConfigDict:
  """The checked config of NAME, a shipped recipe, or FILE.py (`find_recipe`), with :VARIANT or not.

  Raises:
    UserError: there is no such file, it raises an exception, or its config is invalid.
  """
  file, colon, variant = name.partition(":")
  module = import_file(path := find_recipe(file))
  variants = guarded(lambda: [*map(str, getattr(module, "PUBLISHED", ()))], path)
  takes_one = guarded(lambda: bool(inspect.signature(module.get_config).parameters), path)
  if colon and (not takes_one or variants and variant not in variants):
    named = ", ".join(filter(None, variants))
    others = f"choose one of {named}" if named else "leave out the colon"
    raise UserError(f"there is no variant {variant!r} of {file}: {others}.")
  config = guarded(lambda: module.get_config(*[variant] * bool(colon)), path)
  if not isinstance(config, ConfigDict):
    returned = f"{path}: get_config() returned {type(config).__name__}"
    raise UserError(f"{returned}: it must return the config of jaxspeed.config.fields.base().")
  return guarded(lambda: checks.checked(config), path)


def import_file(file: str) -> types.ModuleType:
  """Imports a Python file as a module; a UserError if it raises an exception."""
  loader = importlib.machinery.SourceFileLoader(f"recipe_{pathlib.Path(file).stem}", file)
  spec = importlib.util.spec_from_file_location(loader.name, file, loader=loader)
  assert spec is not None
  module = sys.modules[loader.name] = importlib.util.module_from_spec(spec)
  guarded(lambda: loader.exec_module(module), file)
  return module


def import_modules(modules: Sequence[str]) -> None:
  """Imports modules from the installed packages and the current folder, as `python -m` does.

  A module my_models is also named by my_models.py.

  Raises:
    UserError: there is no such module, or its own code raises an exception.
  """
  if (here := os.getcwd()) not in sys.path:
    sys.path.insert(0, here)
  importlib.invalidate_caches()
  for module in modules:
    name = module.removesuffix(".py").strip("./").replace("/", ".")
    guarded(lambda name=name: importlib.import_module(name), f"--import={module}")


def guarded(run: Callable[[], Any], source: str) -> Any:
  """Runs the user's own code and returns its result; its exceptions become UserErrors.

  The sentence names the innermost line of the user's own, or the source. The commands print the
  last frame of Python's traceback, a note of the error, before it.
  """
  try:
    return run()
  except UserError as error:
    raise UserError(f"{own_place(error) or source}: {error}") from None
  except (Exception, SystemExit) as error:
    place, is_syntax = own_place(error), isinstance(error, SyntaxError)
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_SHOWN].removesuffix(".")
    mistake = UserError(f"{place or source}: {said}.")
    if place or is_syntax:
      limit = 0 if is_syntax else -1
      mistake.add_note("".join(traceback.format_exception(error, limit=limit)))
    raise mistake from None
