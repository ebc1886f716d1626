"""Command-line flags: from arguments to a config, and from an exception to an exit code."""

import itertools
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxspeed.config import names, output, overrides
from jaxspeed.config.imports import import_modules
from jaxspeed.config.recipe import load_recipe
from jaxspeed.config.schema import shown
from jaxspeed.errors import DONE, FAULT, INTERRUPTED, MISTAKE, UserError
from jaxspeed.files import read_bytes

_CONFIG_HELP = (
  "Recipe: NAME, FILE.py or either with :VARIANT; --config.FIELD=VALUE changes a field."
)
# Longest value shown in a message, in characters.
_SHOWN = 80
# --config.FIELD, -config.FIELD and --noconfig.FIELD.
# Fields that the images may decide: not those of a recipe, where a message names them.
_OF_DATA = {
  f"data.{name}" for name in "classes image_size train_images eval_images mean std".split()
}
_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")


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


def _read_recipe(argv: Sequence[str]) -> None:
  """Loads the recipe that --config names and defines a flag for each of its fields.

  Raises:
    UserError: as `load_recipe`, or an override names an unknown field.
  """
  if "config" not in flags.FLAGS or isinstance(flags.FLAGS["config"].value, ConfigDict):
    return
  given = [value for flag, value in _flags_of(argv) if flag == "config"]
  if len(given) > 1:
    raise UserError(f"--config={given[1]}: a recipe is given already, --config={given[0]}.")
  if given:
    file, colon, variant = given[0].partition(":")
    config = load_recipe(file, variant if colon else None)
    delattr(flags.FLAGS, "config")
    define_config(config, argv, _CONFIG_HELP)
  elif overridden := next(_overridden(argv), None):
    raise UserError(f"--config.{overridden} changes a recipe: name it with --config=FILE.py.")


def define_config(config: ConfigDict, argv: Sequence[str], help_text: str) -> ConfigFlag:
  """Defines the flags --config.FIELD=VALUE, which override fields of `config`.

  Raises:
    UserError: an override names an unknown field.
  """
  model = str(config.model.get("name", ""))
  known = tuple(names.all_fields(model))
  for name in _overridden(argv):
    plain = name.partition("[")[0]
    if plain != name and plain in known:
      raise UserError(f"--config.{name}: set the whole tuple, as in --config.{plain}='(1, 2, 3)'.")
    if any(field.startswith(f"{name}.") for field in known):
      raise UserError(f"--config.{name} is a group of fields: set --config.{name}.FIELD=VALUE.")
    if name not in known:
      raise UserError(names.no_field(name, model))
  config_flags.DEFINE_config_dict("config", config, help_text, sys_argv=_without(argv))
  return ConfigFlag()


def overridden_in(argv: Sequence[str], group: str) -> list[str]:
  """Dotted names of the fields of `group` that the command line sets."""
  return [name for name in _overridden(argv) if name.partition(".")[0] == group]


class _NumberParser(flags.FloatParser):
  """Reads a number; `words` say what it must be."""

  def __init__(self, words: str) -> None:
    super().__init__()
    self._words = words

  def convert(self, argument: Any) -> float:
    try:
      return super().convert(argument)
    except (TypeError, ValueError):
      raise ValueError(self._words) from None


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
  holder = flags.DEFINE(_NumberParser(words), name, default, help_text)
  flags.register_validator(name, accepts, message=words)
  return holder


class _StepParser(flags.IntegerParser):
  """Reads the number of a step, or "best"."""

  def parse(self, argument: str | int) -> Any:
    if argument == "best":
      return argument
    try:
      return super().parse(argument)
    except (TypeError, ValueError):
      raise ValueError("it must be the number of a step, or best") from None


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
    raise UserError(f"{arguments[0]!r} is no flag; see --help for the flags.")


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
  fields: str = "*",
) -> None:
  """Parses the flags, calls `main` with the other arguments, and exits with a code.

  A UserError prints its sentence and exits with MISTAKE, Ctrl-C with INTERRUPTED. Any other
  exception prints a sentence, writes its traceback to a file, and exits with FAULT.

  Args:
    main: the command, which takes the arguments that are not flags.
    define: takes all arguments before parsing, to define flags that depend on others.
    output_is_result: whether the command fails if standard output cannot be written; a pipe closed
      by its reader, such as `head`, is no failure.
    fields: the config fields that --help lists, as names with wildcards.
  """
  output.guard()
  begun = False

  def run_main() -> None:
    nonlocal begun
    arguments = _parse(sys.argv, define, fields)[1:]
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
    output.say(_with_origins(str(error), sys.argv))
    return MISTAKE
  except KeyboardInterrupt:
    output.say("stopped by Ctrl-C.")
    return INTERRUPTED
  except SystemExit as ended:
    if isinstance(ended.code, str):
      output.say(ended.code)
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
  except Exception as error:
    if _is_interrupt(error):
      output.say("stopped by Ctrl-C.")
      return INTERRUPTED
    if mistake := output.environment_mistake(error):
      output.say(mistake)
      return MISTAKE
    output.report(error, None)
    return FAULT
  return DONE


def _is_interrupt(error: BaseException | None) -> bool:
  """Whether Ctrl-C caused an exception: jaxlib makes an ImportError of one in its import."""
  if error is None or isinstance(error, KeyboardInterrupt):
    return error is not None
  return _is_interrupt(error.__cause__ or error.__context__)


def _with_origins(message: str, argv: Sequence[str]) -> str:
  """A message on fields of the command line and of the recipe, with which are whose at its end."""
  if not value_of("config", argv):
    return message
  overridden, known = {*_overridden(argv)}, {*names.all_fields()}
  # Not --config.FIELD and "set config.FIELD", which are advice.
  named = dict.fromkeys(
    re.findall(r"(?<!-)(?<!set )\bconfig\.([a-z0-9_]+(?:\.[a-z0-9_]+)*)", message)
  )
  users = [f"config.{name}" for name in named if name in overridden]
  recipes = [f"config.{name}" for name in named if name in known - overridden - _OF_DATA]
  if not users or not recipes:
    return message
  whose = f"{' and '.join(users)}: from the command line, {' and '.join(recipes)}: the recipe's"
  return f"{message.removesuffix('.')} ({whose})."


def _parse(argv: list[str], define: Callable[[list[str]], None] | None, fields: str) -> list[str]:
  wants_help = bool({"-h", "-help", "--help"} & set(argv[1:]))
  _check_flag_files(argv)
  try:
    argv = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
    if "import" in flags.FLAGS:
      # Before a recipe or a run's folder is read, which may name what the modules register.
      given = [value for flag, value in _flags_of(argv) if flag == "import"]
      import_modules([name for value in given for name in value.split(",") if name])
    argv = argv[:1] if wants_help else argv
    if define is not None:
      define(argv)
    if wants_help:
      print(_help(fields))
      sys.exit(0)
    _read_recipe(argv)
    return _parse_values(_without(argv))
  except flags.IllegalFlagValueError as error:
    raise UserError(_illegal(str(error))) from None
  except flags.Error as error:
    raise UserError(_sentence(str(error))) from None


def _check_flag_files(argv: Sequence[str]) -> None:
  """Refuses a --flagfile on which absl would block or raise a traceback."""
  for flag, value in _flags_of(argv):
    if flag == "flagfile":
      try:
        read_bytes(pathlib.Path(value)).decode()
      except (OSError, ValueError) as error:
        # The message of a UnicodeDecodeError only lists bytes and positions.
        reason = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise UserError(
          f"--flagfile={value} cannot be read ({getattr(error, 'strerror', None) or reason}): name "
          "a file of flags, one a line."
        ) from None


def _parse_values(argv: list[str]) -> list[str]:
  """Parses flags with absl and returns the other arguments; parsers' errors become flags.Error."""
  try:
    return flags.FLAGS(argv)
  except (TypeError, ValueError) as error:
    raise flags.Error(str(error)) from None
  except (MemoryError, RecursionError):
    # Python's parser does not say which argument: only a long one can be nested so deeply.
    longest = max(argv[1:], key=len, default="")
    raise flags.Error(f"{longest[:_SHOWN]}... is nested too deeply") from None


def _flags_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
  """Name and value of each --NAME=VALUE or --NAME VALUE, before the flags are parsed."""
  for argument, following in itertools.pairwise([*argv[1:], ""]):
    if argument == "--":
      return
    flag, equals, value = argument.partition("=")
    if flag.startswith("-"):
      yield flag.lstrip("-"), value if equals else following


def _overridden(argv: Sequence[str]) -> Iterator[str]:
  """FIELD of each --config.FIELD."""
  for argument in itertools.takewhile(lambda argument: argument != "--", argv[1:]):
    if found := _OVERRIDE.match(argument):
      yield found[1]


def _without(argv: Sequence[str]) -> list[str]:
  """The command line without --config=FILE, which `_read_recipe` has read."""
  rest, skip = [], False
  for argument in argv:
    if not skip and argument not in ("--config", "-config"):
      if not argument.startswith(("--config=", "-config=")):
        rest.append(argument)
      continue
    skip = not skip
  return rest


def value_of(name: str, argv: Sequence[str]) -> str | None:
  """The value of the last --NAME=VALUE or --NAME VALUE, before flags are parsed; None if absent."""
  return next((value for flag, value in reversed([*_flags_of(argv)]) if flag == name), None)


def _help(fields: str) -> str:
  """The text of --help: the command's docstring, its flags, and the fields of a config.

  absl defines --help only for programs that its `app.run` starts.
  """
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if not module.startswith("absl"):
      lines += [f"  --{flag.name}: {flag.help}" for flag in defined]
  if "config" in flags.FLAGS:
    which = "Fields of a config" if fields == "*" else "Fields of a config that this command uses"
    lines += ["", f"{which}, with their defaults:", ""]
    lines += [f"  --config.{line}" for line in names.described(fields)]
  return "\n".join(lines)


def _illegal(message: str) -> str:
  """A sentence on a value that a flag refuses, from absl's message."""
  found = re.match(r"flag --config\.([^=]*)=(.*?): ", message, re.DOTALL)
  if found and (accepted := names.accepted(found[1], found[2])):
    return f"config.{found[1]}={shown(found[2])}: it must be {accepted}."
  # Python's words for a flag of DEFINE_integer, and absl's for one of DEFINE_bool.
  message = re.sub(r": invalid literal for int\(\).*", ": it must be a whole number", message)
  return _sentence(re.sub(r": \('Non-boolean arg.*", ": it must be True or False", message))


def _sentence(message: str) -> str:
  """The last line of a message, which may begin with a traceback, and a pointer to --help."""
  last = message.strip().splitlines()[-1]
  if unknown := re.match(r"Unknown command line flag '(.*?)'(?:\. Did you mean: (.*) \?)?", last):
    near = unknown[2].split(" or ") if unknown[2] else []
    if not near and "config" in flags.FLAGS:
      near = [f"config.{field}" for field in names.nearest(unknown[1], [*names.all_fields()])]
    meant = f" (did you mean {' or '.join(f'--{flag}' for flag in near)}?)" if near else ""
    last = f"Unknown command line flag '{unknown[1]}'{meant}"
  return last.removeprefix("ValueError: ").rstrip(".") + "; see --help for the flags."
