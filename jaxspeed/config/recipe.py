"""Loading of recipe files: any mistake in one becomes a sentence with its file and line."""

import dataclasses
import difflib
import importlib.machinery
import importlib.util
import inspect
import math
import os
import pathlib
import re
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ml_collections
from ml_collections import ConfigDict, FrozenConfigDict

from jaxspeed.config import checks, families, names
from jaxspeed.config.schema import is_plain, shown
from jaxspeed.errors import UserError

# Longest text of a recipe's own exception in a message, in characters.
_SHOWN = 300
_PACKAGE = pathlib.Path(__file__).parents[1]
_LIBRARY = str(pathlib.Path(ml_collections.__file__).parent)


class _Loader(importlib.machinery.SourceFileLoader):
  """Loads without __pycache__, which is stale for a second after an edit."""

  def path_stats(self, path: Any) -> Any:
    raise OSError("not cached")


@dataclasses.dataclass(frozen=True)
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
  top1: float | None = None
  top5: float | None = None
  runs: int | None = None
  seconds: float | None = None
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
  module = import_file(path, f"--config={name}: there is no such file.")
  if not callable(getattr(module, "get_config", None)):
    raise UserError(f"{path} defines no function get_config() that returns the config.")
  stated = getattr(module, "PUBLISHED", {})
  known = [field.name for field in dataclasses.fields(Published)]
  if not isinstance(stated, Mapping) or not all(
    isinstance(row, Mapping) and set(row) <= set(known) for row in stated.values()
  ):
    raise UserError(
      f"{path}: PUBLISHED must map each variant to a dict with fields of {', '.join(known)}."
    )
  for variant, row in stated.items():
    for field, value in row.items():
      if value is not None and not _can_be(field, value):
        raise UserError(
          f"{path}: PUBLISHED[{variant!r}] has {field}={shown(value)}: texts are strings, figures "
          "numbers of at least 0, accuracies fractions, and epochs a pair of them."
        )
  names = [*dict.fromkeys([*getattr(module, "VARIANTS", ()), *stated])] or [""]
  variants = {str(each): Published(**stated.get(each, {})) for each in names}
  default = _default_variant(getattr(module, "get_config", None))
  title = (module.__doc__ or "").strip().partition("\n")[0]
  return Facts(title, default if default in variants else names[0], variants)


def _can_be(field: str, value: Any) -> bool:
  """Whether a field of `Published` can have a value that is not None."""
  if field in ("source", "hardware", "clock"):
    return isinstance(value, str)
  if field == "epochs":
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_figure, value))
  return _is_figure(value) and (value <= 1 or field not in ("top1", "top5"))


def _is_figure(value: Any) -> bool:
  return isinstance(value, int | float) and 0 <= value < math.inf


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


def _default_variant(get_config: Any) -> str:
  """The default of the first parameter of `get_config`; "" if there is none."""
  try:
    parameters = [*inspect.signature(get_config).parameters.values()]
  except (TypeError, ValueError):
    return ""
  return parameters[0].default if parameters and isinstance(parameters[0].default, str) else ""


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
  if near := difflib.get_close_matches(path.stem, recipes, 1):
    raise UserError(f"--config={name}: there is no such file: did you mean {near[0]}?")
  if name and path.name == name and not path.suffix and not os.path.exists(name):
    listed = ", ".join(recipes)
    raise UserError(f"--config={name}: no recipe has this name: choose one of {listed}, or a file.")
  raise UserError(f"--config={name}: there is no such file.")


def load_recipe(file: str, variant: str | None = None) -> ConfigDict:
  """The checked config of a recipe file, with every field of its model.

  Args:
    file: the path of a Python file, or the name of a shipped recipe (`find_recipe`).
    variant: the text after the colon of --config=FILE:VARIANT; None: no colon.

  Raises:
    UserError: there is no such file, it raises an exception, or its config is invalid.
  """
  path = find_recipe(file)
  config = _returned_by(path, variant, file)
  checks.check(config, source=path)
  config = config.copy_and_resolve_references()
  config.model = families.with_defaults(config.model.to_dict())
  return config.lock()


def _returned_by(file: str, variant: str | None, name: str) -> ConfigDict:
  """The config that `get_config` of a recipe file returns; raises a UserError as `load_recipe`.

  Args:
    file: the path of the file.
    variant: as in `load_recipe`.
    name: what the user called the file.
  """
  module = import_file(file, f"--config={name}: there is no such file.")
  get_config = getattr(module, "get_config", None)
  if not callable(get_config):
    raise UserError(f"{file} defines no function get_config() that returns the config.")
  arguments = _arguments(name, get_config, variant)
  config = guarded(file, lambda: get_config(*arguments))
  if inspect.iscoroutine(config):
    config.close()  # or Python would print that it was never awaited
    raise UserError(f"{file}: get_config() is an async function: write def in place of async def.")
  if isinstance(config, FrozenConfigDict):
    config = ConfigDict(config)
  if not isinstance(config, ConfigDict):
    raise UserError(
      f"{file}: get_config() returned {_kind(config)}: it must return the config of base() of "
      f"jaxspeed.config.fields."
    )
  return config


def import_file(file: str, missing: str) -> types.ModuleType:
  """Executes a Python file as a module.

  Args:
    file: the file's path.
    missing: the sentence to raise if there is no such file.

  Raises:
    UserError: there is no such file, or it raises an exception; the message names the line.
  """
  if not os.path.isfile(file):
    raise UserError(missing)
  return guarded(file, lambda: _import(file))


def _import(file: str) -> types.ModuleType:
  name = f"jaxspeed_recipe_{pathlib.Path(file).stem}"
  loader = _Loader(name, file)
  spec = importlib.util.spec_from_loader(name, loader)
  assert spec is not None
  module = importlib.util.module_from_spec(spec)
  loader.exec_module(module)
  return module


def _arguments(file: str, get_config: Callable[..., Any], variant: str | None) -> list[str]:
  """The arguments for `get_config`: the variant, if one is given.

  Raises:
    UserError: the recipe takes no variant, or needs one.
  """
  if variant == "":
    raise UserError(f"--config={file}: names no variant after the colon: leave the colon out.")
  arguments = [] if variant is None else [variant]
  try:
    signature = inspect.signature(get_config)
  except (TypeError, ValueError):  # a callable without a signature
    return arguments
  try:
    signature.bind(*arguments)
  except TypeError:
    if variant is None:
      raise UserError(f"--config={file} names no variant: write --config={file}:VARIANT.") from None
    raise UserError(f"--config={file} has no variants: leave out the colon.") from None
  return arguments


def guarded(file: str, run: Callable[[], Any], *, prefix: str = "") -> Any:
  """Runs the user's own code and returns its result; its exceptions become UserErrors.

  Args:
    file: the path of its file, whose innermost line in the traceback the message names.
    run: runs it.
    prefix: the beginning of the message.
  """
  try:
    return run()
  except UserError as error:
    if not prefix:
      raise
    _refuse(file, _line(error, file), str(error), prefix)
  except KeyboardInterrupt:
    raise
  except SyntaxError as error:
    _refuse(error.filename or file, error.lineno, error.msg, prefix)
  except SystemExit as error:
    reason = f"it ends the process with SystemExit({error.code!r})."
    _refuse(file, _line(error, file), reason, prefix)
  except BaseException as error:
    if isinstance(error, OSError) and not _line(error, file):
      raise UserError(f"{prefix}{file} cannot be read ({error.strerror or error}).") from None
    _refuse(file, _line(error, file), _reason(error), prefix)


def _refuse(file: str, line: int | None, reason: str, prefix: str = "") -> NoReturn:
  where = f"{file}, line {line}" if line else file
  text = " ".join(reason.split())
  text = text if is_plain(text) else ascii(text)[1:-1]
  text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
  end = "" if text.endswith((".", "?")) else "."
  raise UserError(f"{prefix}{where}: {text}{end}") from None


def _line(error: BaseException, file: str) -> int | None:
  """The innermost line of the recipe in an exception's traceback; None if there is none."""
  frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
  lines = [line for frame, line in traceback.walk_tb(error.__traceback__)]
  own = [i for i, frame in enumerate(frames) if frame.f_code.co_filename == file]
  return lines[own[-1]] if own else None


def _reason(error: BaseException) -> str:
  """An exception in words; an exception of ml_collections names the config field."""
  last = list(traceback.walk_tb(error.__traceback__))[-1:]
  of_config = any(frame.f_code.co_filename.startswith(_LIBRARY) for frame, _ in last)
  text = _text(error)
  if of_config and isinstance(error, AttributeError | KeyError):
    unlocked = re.match(r'Key "(.*?)" does not exist', text, re.DOTALL)
    key = unlocked[1] if unlocked else text.splitlines()[0].strip("\"'")
    if "unlock it before trying to delete" in text:
      return "a field of the config cannot be deleted"
    return names.no_field(key)
  cast = re.search(r"field '(.+?)'.*type <class '(.+?)'>.*type <class '(.+?)'>", text, re.DOTALL)
  if of_config and isinstance(error, TypeError) and cast:
    return f"the field {cast[1]} holds values of type {cast[3]}, not {cast[2]}"
  return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
  """An exception's message, also of a KeyError that ml_collections wraps in an AttributeError."""
  inner: Any = error
  while inner.args and isinstance(inner.args[0], BaseException):
    inner = inner.args[0]
  try:
    return str(inner.args[0]) if isinstance(inner, KeyError) and inner.args else str(inner)
  except Exception:  # an exception whose own __str__ fails
    return ""


def _kind(value: Any) -> str:
  return "nothing" if value is None else f"a value of type {type(value).__name__}"
