"""Recipes and modules of the user's own: finding, running and checking them.

A mistake in one is a sentence with the file and its line.
"""

import dataclasses
import importlib
import importlib.machinery
import inspect
import os
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from typing import Any

import pydantic
from ml_collections import ConfigDict

from jaxspeed.config import checks, names
from jaxspeed.config.kinds import PositiveShare
from jaxspeed.errors import UserError, did_you_mean

# Longest text of a recipe's own exception in a message, in characters.
_SHOWN = 300
_PACKAGE = pathlib.Path(__file__).parents[1]
# Where the frames of a traceback are not the user's.
_NOT_OWN = ("<frozen", os.path.dirname(importlib.__file__), os.path.join(_PACKAGE, "config", ""))


class _Loader(importlib.machinery.SourceFileLoader):
  """Loads without __pycache__, which is stale for a second after an edit."""

  def path_stats(self, path: Any) -> Any:
    raise OSError("not cached")


@pydantic.dataclasses.dataclass(
  frozen=True, config=pydantic.ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")
)
class Published:
  """What is published of a recipe, as its file states it in PUBLISHED[variant]; None: nothing.

  Attributes:
    source: the repository or paper.
    hardware: number and name of the devices.
    top1: accuracy, as a fraction.
    top5: the same.
    runs: number of runs of which the accuracy is the mean.
    seconds: time to that accuracy.
    clock: what that time covers.
    epochs: least and most epochs to that accuracy.
  """

  source: str = ""
  hardware: str = ""
  top1: PositiveShare | None = None
  top5: PositiveShare | None = None
  runs: pydantic.PositiveInt | None = None
  seconds: pydantic.PositiveFloat | None = None
  clock: str = ""
  epochs: tuple[int, int] | None = None

  @property
  def accuracy_in_words(self) -> str:
    """The accuracies as "75.92 % top-1, 93.02 % top-5"; '' without any."""
    parts = ((self.top1, "top-1"), (self.top5, "top-5"))
    return ", ".join(f"{100 * value:.4g} % {metric}" for value, metric in parts if value)

  @property
  def epochs_in_words(self) -> str:
    """The epochs as "27 epochs" or "55-57 epochs"; '' if they are not published."""
    return f"{'-'.join(map(str, dict.fromkeys(self.epochs)))} epochs" if self.epochs else ""


@dataclasses.dataclass(frozen=True)
class Facts:
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
    UserError: there is no such recipe, it raises an exception, or its PUBLISHED has other fields
      than `Published`.
  """
  path = find_recipe(name)
  module = import_file(path)
  get_config = _get_config(module)
  stated = getattr(module, "PUBLISHED", {})
  try:
    rows = {str(variant): Published(**row) for variant, row in stated.items()}
  except (AttributeError, TypeError, pydantic.ValidationError) as error:
    known = ", ".join(field.name for field in dataclasses.fields(Published))
    raise UserError(
      f"{path}: PUBLISHED must map each variant to a dict with fields of {known} "
      f"({' '.join(str(error).split())[:_SHOWN]})."
    ) from None
  variants = [*rows] or [""]
  first = next(iter(inspect.signature(get_config).parameters.values()), None)
  default = first.default if first and first.default in variants else variants[0]
  title = (module.__doc__ or "").strip().partition("\n")[0]
  return Facts(title, default, {each: rows.get(each, Published()) for each in variants})


def published(name: str, variant: str | None = None) -> Published:
  """What is published of a recipe; its fields are empty where nothing is.

  Args:
    name: a shipped recipe, or the path of a recipe file.
    variant: one of its variants; None: that of the recipe without a colon.

  Raises:
    UserError: as `facts_of`.
  """
  facts = facts_of(name)
  return facts.variants.get(facts.default if variant is None else variant, Published())


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
  recipes = shipped()
  path = pathlib.PurePath(name)
  if name in recipes:
    return str(recipes[name])
  if os.path.isfile(name):
    return name
  if path.parent.name == "configs" and not path.is_absolute() and path.stem in recipes:
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
  get_config = _get_config(import_file(path))
  arguments = [variant] if colon else []
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
  return checks.checked(config.copy_and_resolve_references().to_dict(), source=path)


def _get_config(module: types.ModuleType) -> Callable[..., Any]:
  found = getattr(module, "get_config", None)
  if not callable(found):
    raise UserError(f"{module.__file__} defines no function get_config() that returns the config.")
  return found


def import_file(file: str) -> types.ModuleType:
  """Imports a Python file as a module.

  Raises:
    UserError: there is no such file, or it raises an exception; the message names the line.
  """
  if not os.path.isfile(file):
    raise UserError(f"{file}: there is no such file.")
  name = f"jaxspeed_recipe_{pathlib.Path(file).stem}"
  loader = _Loader(name, file)
  module = types.ModuleType(name)
  module.__file__ = file
  sys.modules[name] = module  # where dataclasses look for a class's module
  guarded(lambda: loader.exec_module(module))
  return module


def import_modules(modules: Sequence[str]) -> None:
  """Imports modules from the installed packages and the current folder, as `python -m` does.

  Args:
    modules: names, as my_models; my_models.py is the same.

  Raises:
    UserError: there is no such module, or its own code raises an exception.
  """
  here = os.getcwd()
  if here not in sys.path and "" not in sys.path:
    sys.path.insert(0, here)
  importlib.invalidate_caches()
  for module in modules:
    name = module.removesuffix(".py").strip("./").replace("/", ".")
    guarded(lambda name=name: importlib.import_module(name), prefix=f"--import={module}: ")


def guarded(run: Callable[[], Any], *, prefix: str = "") -> Any:
  """Runs the user's own code and returns its result; its exceptions become UserErrors.

  The last frame of Python's traceback is a note of the exception, which the commands print.

  Args:
    run: runs it.
    prefix: the beginning of the message.
  """
  try:
    return run()
  except (Exception, SystemExit) as error:
    text = traceback.format_exception_only(error)[-1]
    # ml_collections lists all fields that there are.
    unknown = re.search(r'Key "(.*?)" does not exist and cannot be added', text, re.DOTALL)
    is_plain = isinstance(error, UserError)
    text = names.no_field(unknown[1]) if unknown else str(error) if is_plain else text
    text = " ".join(text.split()).removesuffix(".")[:_SHOWN]
    frame: list[str] = []
    if not (unknown or is_plain):
      frame = traceback.format_exception(error, limit=0 if isinstance(error, SyntaxError) else -1)
    sentence = f"{prefix}{_where(error)}{text}{'.' * (not text.endswith('?'))}"
    raise UserError(sentence, frame="".join(frame)) from None


def _where(error: BaseException) -> str:
  """The innermost line of the user's file in a traceback, as "FILE, line N: "; '' without one."""
  if isinstance(error, SyntaxError):
    return f"{error.filename}, line {error.lineno}: "
  frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
  own = [frame for frame in frames if not frame[0].startswith(_NOT_OWN)]
  return next((f"{f}, line {line}: " for f, line in reversed(own) if f == own[0][0]), "")
