"""Recipes and modules of the user's own: finding, importing and checking them.

A mistake in one is a sentence with the file and its line.
"""

import contextlib
import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import pydantic
from ml_collections import ConfigDict

from jaxspeed.config import checks
from jaxspeed.config.kinds import PositiveShare
from jaxspeed.config.schema import Group
from jaxspeed.errors import UserError, did_you_mean

# Longest text of a recipe's own exception in a message, in characters.
_SHOWN = 300
_PACKAGE = pathlib.Path(__file__).parents[1]
# Where the frames of a traceback are not the user's.
_NOT_OWN = ("<frozen", os.path.dirname(importlib.__file__), os.path.join(_PACKAGE, "config", ""))


class Published(Group):
  """What is published of a recipe, as its file states it in PUBLISHED[variant]; None: nothing."""

  source: str = ""
  """the repository or paper"""
  hardware: str = ""
  """number and name of the devices"""
  top1: PositiveShare | None = None
  """accuracy, as a fraction"""
  top5: PositiveShare | None = None
  """the same"""
  runs: pydantic.PositiveInt | None = None
  """number of runs of which the accuracy is the mean"""
  seconds: pydantic.PositiveFloat | None = None
  """time to that accuracy"""
  clock: str = ""
  """what that time covers"""
  epochs: tuple[int, int] | None = None
  """least and most epochs to that accuracy"""
  rates_for: Literal["mean loss", "summed loss", "1,024 images"] = "mean loss"
  """what its learning rates are stated for; of 1,024 images: without the momentum's lengthening"""

  @property
  def accuracy_in_words(self) -> str:
    """The accuracies as "75.92 % top-1, 93.02 % top-5"; '' without any."""
    parts = ((self.top1, "top-1"), (self.top5, "top-5"))
    return ", ".join(f"{100 * value:.4g} % {metric}" for value, metric in parts if value)

  @property
  def epochs_in_words(self) -> str:
    """The epochs as "27 epochs" or "55-57 epochs"; '' if they are not published."""
    return f"{'-'.join(map(str, dict.fromkeys(self.epochs)))} epochs" if self.epochs else ""


class Facts(NamedTuple):
  """What a recipe file says of itself.

  Attributes:
    title: the first line of its docstring.
    default: the variant without a colon; "" for a recipe without variants.
    variants: what is published of each variant; the only one of a recipe without variants is "".
  """

  title: str
  default: str
  variants: dict[str, Published]


def facts_of(name: str) -> Facts:
  """What a recipe says of itself: `name` is that of a shipped recipe, or the path of a file.

  Raises:
    UserError: there is no such recipe, or it raises an exception.
  """
  module = _imported(path := find_recipe(name))
  rows = getattr(module, "PUBLISHED", None) or {"": {}}
  try:
    variants = {str(variant): Published(**row) for variant, row in rows.items()}
  except (AttributeError, TypeError, pydantic.ValidationError):
    names = ", ".join(Published.model_fields)
    raise UserError(f"{path}: PUBLISHED must map each variant to a dict of {names}.") from None
  first = next(iter(inspect.signature(module.get_config).parameters.values()), None)
  default = first.default if first and first.default in variants else next(iter(variants))
  return Facts((module.__doc__ or "").strip().partition("\n")[0], default, variants)


def published(name: str, variant: str | None = None) -> Published:
  """What is published of a variant of a recipe (`facts_of`), perhaps nothing; None: the default."""
  facts = facts_of(name)
  return facts.variants.get(facts.default if variant is None else variant, Published())


def published_as(name: str) -> Published:
  """What is published of the shipped recipe with a config's name, as cifar10_airbench/94.

  The name may come from a file, so it selects a recipe, but not a path.
  """
  recipe, _, variant = name.partition("/")
  if recipe in shipped():
    with contextlib.suppress(UserError):
      return published(recipe, variant or None)
  return Published()


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
  meant = did_you_mean(path.stem, recipes)
  if not meant and path.name == name and not path.suffix:
    meant = f": choose one of {', '.join(recipes)}, or a file."
  raise UserError(f"{name or 'the recipe'}: there is no such recipe or file{meant or '.'}")


def load_recipe(name: str) -> ConfigDict:
  """The checked config of a recipe.

  Args:
    name: NAME of a shipped recipe or FILE.py (`find_recipe`), either with :VARIANT.

  Raises:
    UserError: there is no such file, it raises an exception, or its config is invalid.
  """
  file, colon, variant = name.partition(":")
  path = find_recipe(file)
  get_config, arguments = _imported(path).get_config, [variant] if colon else []
  try:
    inspect.signature(get_config).bind(*arguments)
  except TypeError:
    wrong = "has no variants: leave out the colon" if colon else f"needs one: write {file}:VARIANT"
    raise UserError(f"{file} {wrong}.") from None
  config = guarded(lambda: get_config(*arguments))
  if not isinstance(config, ConfigDict):
    raise UserError(
      f"{path}: get_config() returned {type(config).__name__}: it must return the config of base() "
      "of jaxspeed.config.fields."
    )
  return checks.checked(config, source=path)


def _imported(path: str) -> Any:
  """The module of a recipe."""
  module = import_file(path)
  if not callable(getattr(module, "get_config", None)):
    raise UserError(f"{path} defines no function get_config() that returns the config.")
  return module


def import_file(file: str) -> types.ModuleType:
  """Imports a Python file as a module.

  Raises:
    UserError: it raises an exception; the message names the line.
  """
  loader = importlib.machinery.SourceFileLoader(f"recipe_{pathlib.Path(file).stem}", file)
  spec = importlib.util.spec_from_file_location(loader.name, file, loader=loader)
  assert spec is not None
  module = sys.modules[loader.name] = importlib.util.module_from_spec(spec)
  guarded(lambda: loader.exec_module(module))
  return module


def import_modules(modules: Sequence[str]) -> None:
  """Imports modules from the installed packages and the current folder, as `python -m` does.

  Args:
    modules: names, as my_models; my_models.py is the same.

  Raises:
    UserError: there is no such module, or its own code raises an exception.
  """
  if (here := os.getcwd()) not in sys.path:
    sys.path.insert(0, here)
  importlib.invalidate_caches()
  for module in modules:
    name = module.removesuffix(".py").strip("./").replace("/", ".")
    guarded(lambda name=name: importlib.import_module(name), prefix=f"--import={module}: ")


def guarded(run: Callable[[], Any], *, prefix: str = "") -> Any:
  """Runs the user's own code and returns its result; its exceptions become UserErrors.

  The commands print the last frame of Python's traceback, a note of the error, before the sentence,
  which begins with `prefix` and the innermost line of the user's file.
  """
  try:
    return run()
  except (Exception, SystemExit) as error:
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if not frame[0].startswith(_NOT_OWN)]
    if isinstance(error, SyntaxError):
      own = [(str(error.filename), error.lineno or 0)]
    where = next((f"{f}, line {line}: " for f, line in reversed(own) if f == own[0][0]), "")
    is_plain = isinstance(error, UserError)
    text = str(error) if is_plain else traceback.format_exception_only(error)[-1]
    text = " ".join(text.split()).removesuffix(".")[:_SHOWN]
    mistake = UserError(f"{prefix}{where}{text}{'' if text.endswith('?') else '.'}")
    if not is_plain:
      limit = 0 if isinstance(error, SyntaxError) else -1
      mistake.add_note("".join(traceback.format_exception(error, limit=limit)))
    raise mistake from None
