"""Command-line flags: from arguments to a config, and from an exception to an exit code."""

import contextlib
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxspeed.config import families, names, output, overrides, reference
from jaxspeed.config.imports import import_modules
from jaxspeed.config.recipe import load_recipe
from jaxspeed.config.schema import shown
from jaxspeed.errors import DONE, FAULT, INTERRUPTED, MISTAKE, UserError

_CONFIG_HELP = (
  "Recipe: NAME, FILE.py or either with :VARIANT; --config.FIELD=VALUE changes a field."
)
# --config.FIELD, -config.FIELD and --noconfig.FIELD.
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
# Fields that the images may decide: not those of a recipe, where a message names them.
_OF_DATA = {
  f"data.{name}" for name in "classes image_size train_images eval_images mean std".split()
}


class ConfigFlag:
  """The flag --config=FILE[:VARIANT] and its overrides --config.FIELD=VALUE."""

  @property
  def value(self) -> ConfigDict | None:
    """The recipe's config with the overrides; None where no recipe is named."""
    value = flags.FLAGS["config"].value
    if not isinstance(value, ConfigDict):
      return None
    overrides.scale_segments(value, config_flags.get_override_values(flags.FLAGS["config"]))
    return value


def define_config_flag() -> ConfigFlag:
  """Defines --config; `run` executes and checks the recipe before it parses the other flags."""
  flags.DEFINE_string("config", None, _CONFIG_HELP)
  return ConfigFlag()


def define_config(config: ConfigDict, argv: Sequence[str], help_text: str) -> ConfigFlag:
  """Defines the flags --config.FIELD=VALUE, which override fields of `config`.

  Where they choose another family of models, its defaults replace the fields of the recipe's own.

  Raises:
    UserError: an override names an unknown field.
  """
  before = config.model.to_dict()
  if family := value_of("config.model.name", argv):
    config = config.copy_and_resolve_references()
    with config.unlocked():
      config.model = families.of_family(before, family)
    defaults = families.with_defaults({"name": before.get("name")})
    own = [f"{name}={value!r}" for name, value in before.items() if value != defaults.get(name)]
    if own and config.model.name != before.get("name"):
      output.note(f"config.model.name={family}: not used are the recipe's {', '.join(own)}.")
  model = str(config.model.get("name", ""))
  for name in _overridden(argv):
    plain = name.partition("[")[0]
    if plain != name and plain in names.declared(model):
      raise UserError(f"--config.{name}: set the whole tuple, as in --config.{plain}='(1, 2, 3)'.")
    if name not in names.declared(model):
      raise UserError(names.no_field(name, model))
  if "config" in flags.FLAGS:
    delattr(flags.FLAGS, "config")
  config_flags.DEFINE_config_dict("config", config, help_text, sys_argv=[*argv])
  return ConfigFlag()


def overridden_in(argv: Sequence[str], group: str) -> list[str]:
  """Dotted names of the fields of `group` that the command line sets."""
  return [name for name in _overridden(argv) if name.partition(".")[0] == group]


def define_number(
  name: str,
  default: float,
  help_text: str,
  *,
  least: float = 0.0,
  most: float = 1e9,
  off: str = "",
) -> flags.FlagHolder:
  """Defines a flag for a number from `least` to `most`; its default may lie outside that range.

  Args:
    name: the flag's name.
    default: its default.
    help_text: its meaning.
    least: the least number.
    most: the largest number.
    off: what a message calls a default outside the range that users may give; "": they do not.
  """

  def accepts(value: float) -> bool:
    return value == default or (math.isfinite(value) and least <= value <= most)

  words = f"it must be {off and f'{off} or '}a number from {least:g} to {most:g}"
  holder = flags.DEFINE_float(name, default, help_text)
  flags.register_validator(name, accepts, message=words)
  return holder


class _StepParser(flags.IntegerParser):
  """Reads the number of a step, or "best"."""

  def parse(self, argument: str | int) -> Any:
    try:
      return argument if argument == "best" else super().parse(argument)
    except (TypeError, ValueError):
      raise ValueError("it must be the number of a step, or best") from None


class _HelpParser(flags.BooleanParser):
  """Reads --help, or --help=all."""

  def parse(self, argument: Any) -> Any:
    return argument if argument == "all" else super().parse(argument)


def define_step() -> flags.FlagHolder:
  """Defines --step, the checkpoint that a command uses."""
  help_text = (
    "The step of the checkpoint, or best for that of the best evaluation, if its "
    "checkpoint is there (--config.checkpoint.keep_best keeps it); the default is the newest whole "
    "one."
  )
  return flags.DEFINE(_StepParser(lower_bound=1), "step", None, help_text)


def define_quiet(what: str) -> None:
  """Defines --quiet, which silences `output.note`; `what` else it leaves out ends its help."""
  flags.DEFINE_bool("quiet", False, f"Prints results and errors only, no {what}.")


def required(flag: str, value: str | None) -> str:
  """Returns the value of a flag, or raises a UserError if it is missing."""
  if not value:
    form = ": name the folder of a run, as --workdir=runs/a" if flag == "workdir" else ""
    raise UserError(f"--{flag} is missing{form}; see --help for the flags.")
  return value


def nothing_left(arguments: list[str]) -> None:
  """Refuses arguments that are not flags, such as `epochs=10` without the dashes."""
  if arguments:
    raise UserError(f"{arguments[0]!r} is not a flag; see --help for the flags.")


def without_effect(because: str, *holders: flags.FlagHolder) -> None:
  """Refuses the flags `holders` if they are given, as they have no effect.

  Args:
    because: the end of the sentence, after "has no effect".
    holders: the flags to refuse.
  """
  for holder in holders:
    if flags.FLAGS[holder.name].present:
      raise UserError(f"--{holder.name}={holder.value} has no effect {because}.")


def run(
  main: Callable[[list[str]], None],
  *,
  define: Callable[[list[str]], None] | None = None,
  output_is_result: bool = True,
  command: str = "",
) -> None:
  """Parses the flags, calls `main` with the other arguments, and exits with a code.

  A UserError prints its sentence and exits with MISTAKE, Ctrl-C with INTERRUPTED. Any other
  exception prints a sentence, writes its traceback to a file, and exits with FAULT.

  Args:
    main: the command, which takes the arguments that are not flags.
    define: takes the arguments that no flag has taken yet, to define flags that depend on others.
    output_is_result: whether the command fails if standard output cannot be written; a pipe closed
      by its reader, such as `head`, is not a failure.
    command: its name, if --help lists only the config fields that it uses, or if its first argument
      may be a recipe.
  """
  output.guard()
  begun = False

  def run_main() -> None:
    nonlocal begun
    with _ends_at_once():
      arguments = _parse(sys.argv, define, command)[1:]
    begun = True
    output.be_quiet("quiet" in flags.FLAGS and bool(flags.FLAGS["quiet"].value))
    main(arguments)

  code = _exit_code_of(run_main)
  output.be_quiet(False)
  lost = output.lost()
  if code == DONE and lost and (output_is_result or not begun):
    output.say(f"standard output could not be written ({lost}): send it to another place.")
    code = MISTAKE
  elif lost and code == DONE:
    output.say(f"standard output could not be written ({lost}); the work itself is done.")
  if code != DONE:
    sys.exit(code)


def _exit_code_of(function: Callable[[], None]) -> int:
  """Calls a function, reports the exception that ends it, and returns the exit code."""
  try:
    function()
  except UserError as error:
    for note in getattr(error, "__notes__", ()):
      print(note, file=sys.stderr)
    output.say(_with_origins(str(error), sys.argv))
    return MISTAKE
  except SystemExit as ended:
    if isinstance(ended.code, str):
      output.say(ended.code)
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
  except KeyboardInterrupt:
    output.say("stopped by Ctrl-C.")
    return INTERRUPTED
  except Exception as error:
    if mistake := output.environment_mistake(error):
      output.say(mistake)
      return MISTAKE
    output.report(error, None)
    return FAULT
  return DONE


@contextlib.contextmanager
def _ends_at_once() -> Iterator[None]:
  """Lets Ctrl-C end the process at once in a block that has nothing to save.

  In the middle of an import an exception is lost, or becomes another: jaxlib makes an ImportError
  of it. A process in the background ignores Ctrl-C, and others have handlers of their own.
  """

  def end(*_: Any) -> None:
    output.write_error("stopped by Ctrl-C.")
    os._exit(INTERRUPTED)

  is_main = threading.current_thread() is threading.main_thread()
  if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
    yield
    return
  signal.signal(signal.SIGINT, end)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _with_origins(message: str, argv: Sequence[str]) -> str:
  """A message on fields of the command line and of the recipe, with which are whose at its end."""
  overridden, known = {*_overridden(argv)}, names.declared()
  # Not --config.FIELD and "set config.FIELD", which are advice.
  named = dict.fromkeys(
    re.findall(r"(?<!-)(?<!set )\bconfig\.([a-z0-9_]+(?:\.[a-z0-9_]+)*)", message)
  )
  users = [f"config.{name}" for name in named if name in overridden]
  recipes = [f"config.{name}" for name in named if name in known and name not in overridden]
  recipes = [name for name in recipes if name.removeprefix("config.") not in _OF_DATA]
  if not users or not recipes or "config" not in flags.FLAGS:
    return message
  whose = f"{' and '.join(users)}: from the command line, {' and '.join(recipes)}: the recipe's"
  return f"{message.removesuffix('.')} ({whose})."


def _parse(argv: list[str], define: Callable[[list[str]], None] | None, command: str) -> list[str]:
  """Parses the flags in two rounds: the second has those that a recipe or a run decides."""
  flags.DEFINE_flag(
    flags.Flag(_HelpParser(), None, "help", None, "Prints this; --help=all: all fields.", "h", True)
  )
  try:
    rest = _read(argv, known_only=True)
    asked = flags.FLAGS["help"].value
    if "import" in flags.FLAGS:
      # Before a recipe or a run's folder is read, which may name what the modules register.
      import_modules([name for name in str(flags.FLAGS["import"].value).split(",") if name])
    if define is not None:
      define(rest[:1] if asked else rest)
    if "config" in flags.FLAGS and not isinstance(flags.FLAGS["config"].value, ConfigDict):
      rest = _with_recipe(rest, command)
    if asked:
      print(reference.help_text(command, asked == "all"))
      sys.exit(0)
    return _read(rest)
  except flags.IllegalFlagValueError as error:
    raise UserError(_illegal(str(error))) from None
  except flags.UnrecognizedFlagError as error:
    raise UserError(_unknown(error)) from None
  except flags.Error as error:
    last = str(error).strip().splitlines()[-1].rstrip(".")
    raise UserError(f"{last}; see --help for the flags.") from None


def _read(argv: Sequence[str], *, known_only: bool = False) -> list[str]:
  """Reads flags and returns the other arguments; parsers' errors become flags.Error."""
  try:
    return flags.FLAGS(argv, known_only=known_only)
  except (TypeError, ValueError) as error:
    raise flags.Error(str(error)) from None
  except (MemoryError, RecursionError):
    # Python's parser does not say which argument: only a long one can be nested so deeply.
    raise flags.Error(f"{shown(max(argv[1:], key=len, default=''))} is nested too deeply") from None


def _with_recipe(rest: list[str], command: str) -> list[str]:
  """Loads the recipe that --config or the first argument names; returns the other arguments."""
  named = flags.FLAGS["config"].value
  if command in ("train", "plan") and (first := next(positionals(rest), "")) and "=" not in first:
    if named is not None:
      raise UserError(f"--config={named} and {first} are two recipes: name one of them.")
    named = first
    rest = [*rest[: (place := rest.index(first, 1))], *rest[place + 1 :]]
  if named is not None:
    file, colon, variant = named.partition(":")
    define_config(load_recipe(file, variant if colon else None), rest, _CONFIG_HELP)
  elif overridden := next(_overridden(rest), None):
    raise UserError(f"--config.{overridden} changes a recipe: name it with --config=NAME.")
  return rest


def positionals(argv: Sequence[str]) -> Iterator[str]:
  """Yields the arguments that are neither flags nor their values, before overrides are parsed."""
  words = iter(argv[1:])
  for word in words:
    if word == "--":
      yield from words
    elif not word.startswith("-") or word == "-":
      yield word
    elif "=" not in word and not word.startswith(("--no", "-no")):
      next(words, None)


def _overridden(argv: Sequence[str]) -> Iterator[str]:
  """FIELD of each --config.FIELD."""
  for argument in argv[1:]:
    if argument == "--":
      return
    if found := _OVERRIDE.match(argument):
      yield found[1]


def value_of(name: str, argv: Sequence[str]) -> str | None:
  """The value of the last --NAME=VALUE or --NAME VALUE, before flags are parsed; None if absent."""
  found = None
  for word, following in zip(argv, [*argv[1:], ""], strict=True):
    flag, equals, value = word.partition("=")
    if word.startswith("-") and flag.lstrip("-") == name:
      found = value if equals else following
  return found


def _illegal(message: str) -> str:
  """A sentence on a value that a flag refuses, from absl's message."""
  found = re.match(r"flag --config\.([^=]*)=(.*?): ", message, re.DOTALL)
  if found and (accepted := names.accepted(found[1], found[2])):
    return f"config.{found[1]}={shown(found[2])}: it must be {accepted}."
  return f"{message.splitlines()[-1].rstrip('.')}; see --help for the flags."


def _unknown(error: flags.UnrecognizedFlagError) -> str:
  """A sentence on an unknown flag, with the nearest flag or field."""
  near = re.findall(r"Did you mean: (.*) \?", str(error))
  if not near and "config" in flags.FLAGS:
    near = [f"config.{field}" for field in names.nearest(error.flagname)]
  meant = f" (did you mean {' or '.join(f'--{flag}' for flag in near)}?)" if near else ""
  return f"--{error.flagname} is not a flag{meant}; see --help for the flags."
