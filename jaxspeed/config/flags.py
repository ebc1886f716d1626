"""Command-line flags: from arguments to a config, and from an exception to an exit code."""

import importlib
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import fields, output
from jaxspeed.config.checks import check_effects, parse_value, set_in_vain, with_overrides
from jaxspeed.config.recipe import import_modules, load_recipe
from jaxspeed.config.schema import COMMON, leaves
from jaxspeed.errors import DONE, FAULT, INTERRUPTED, MISTAKE, UserError, printable

# What registers the package's own families of models, whose fields a config has, and imports JAX.
_MODELS = "jaxspeed.models.make"
# The commands whose first argument may be a recipe.
_OF_RECIPES = ("train", "plan")
_FIELD = re.compile(r"--?(config\.[^=]+)")


class ConfigFlag:
  """--config=RECIPE with the fields that --config.FIELD=VALUE sets; `run` fills it."""

  recipe: ConfigDict | None = None  # None where none is named, which `train` and `plan` refuse
  overrides: Mapping[str, Any] = {}  # by dotted field name
  value: Any = None  # the recipe with the overrides, checked; `evaluate` merges them itself

  def read(self, arguments: list[str], command: str) -> list[str]:
    """Loads the recipe, and returns the arguments that do not name it.

    Raises:
      UserError: the recipe is missing or wrong, or an override is invalid or has no effect.
    """
    name, self.overrides = flags.FLAGS["config"].value, overrides()
    if name is None and command in _OF_RECIPES and arguments and "=" not in arguments[0]:
      name, *arguments = arguments
    if name is not None:
      self.recipe = self.value = load_recipe(name)
      for sentence in set_in_vain(self.recipe) if command in _OF_RECIPES else ():
        output.note(f"{sentence[:-1]} (set in the recipe).")
      if command != "evaluate":
        self.value = with_overrides(self.recipe, self.overrides)
        check_effects(self.value, self.overrides, command=command)
    elif command in _OF_RECIPES and not flags.FLAGS["help"].value:
      raise UserError(f"name the recipe to {command}, as in: jaxspeed {command} quickstart.")
    elif self.overrides and command != "evaluate":  # which has a run's config
      field = next(iter(self.overrides))
      raise UserError(f"--config.{field} changes a recipe: name it with --config=NAME.")
    return arguments


_CONFIG: list[ConfigFlag] = []  # the last that was defined, as absl's flags global


def define_config_flag() -> ConfigFlag:
  """Defines --config and --import; `run` imports the modules before it loads the recipe."""
  help_text = "Recipe: NAME, FILE.py or either with :VARIANT; --config.FIELD=VALUE changes a field."
  flags.DEFINE_string("config", None, help_text)
  define_import_flag()
  _CONFIG[:] = [ConfigFlag()]
  return _CONFIG[0]


def define_import_flag() -> None:
  flags.DEFINE_list("import", [], "Modules of your own that register models, ...: imported first.")


def define_fields(argv: Sequence[str]) -> None:
  """Defines a flag for each field that the command line sets."""
  for name in sorted({each[1] for each in map(_FIELD.match, argv) if each}):
    flags.DEFINE_string(name, None, "")


def overrides() -> dict[str, Any]:
  """The fields that the command line sets, with their values."""
  names = [name.removeprefix("config.") for name in flags.FLAGS if name.startswith("config.")]
  return {name: parse_value(name, str(flags.FLAGS[f"config.{name}"].value)) for name in names}


def define_run() -> tuple[flags.FlagHolder, flags.FlagHolder]:
  """Defines --workdir, the folder of a run, and --step, the checkpoint that a command uses."""
  help_text = "The folder of a run that jaxspeed.train made, which may also come first."
  workdir = flags.DEFINE_string("workdir", None, help_text)
  help_text = (
    "The step of the checkpoint, or best for that of the best evaluation "
    "(--config.checkpoint.keep_best keeps it); the default is the newest whole one."
  )
  return workdir, flags.DEFINE_string("step", None, help_text)


def define_quiet(what: str) -> None:
  """Defines --quiet, which silences `output.note`; `what` else it leaves out ends its help."""
  flags.DEFINE_bool("quiet", False, f"Prints results and errors only, no {what}.")


def take_run(workdir: str | None, arguments: list[str]) -> tuple[pathlib.Path, list[str]]:
  """The folder of a run, which --workdir or the first argument names, and the other arguments."""
  if not workdir:
    workdir, *arguments = arguments or [""]
  return pathlib.Path(required("workdir", workdir)), arguments


def required(flag: str, value: str | None) -> str:
  """The value of a flag, which must be given."""
  if not value:
    form = ": name the folder of a run, as in runs/a" if flag == "workdir" else ""
    raise UserError(f"--{flag} is missing{form}; see --help for the flags.")
  return value


def nothing_left(arguments: list[str]) -> None:
  """Refuses arguments that are not flags, such as `epochs=10` without the dashes."""
  if arguments:
    raise UserError(f"{arguments[0]!r} is not a flag; see --help for the flags.")


def without_effect(because: str, *holders: flags.FlagHolder) -> None:
  """Refuses those of the flags `holders` that are given; `because` ends the sentence."""
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
    define: takes the words of the command line, to define flags that depend on them or on JAX.
    output_is_result: whether standard output that cannot be written, but for a pipe that its reader
      closed, is a MISTAKE.
    command: its name, if its first argument may be a recipe or --help lists the fields it uses.
  """
  finish(lambda: main(_parsed(sys.argv, define, command)), output_is_result=output_is_result)


def finish(function: Callable[[], None], *, output_is_result: bool = True) -> None:
  """Calls a function as `run` calls a command, and exits with a code unless that is DONE."""
  output.guard()
  code: int | str = DONE
  try:
    function()
  except UserError as error:
    for line in "".join(getattr(error, "__notes__", ())).splitlines():
      print(printable(line), file=sys.stderr)
    output.say(error)
    code = MISTAKE
  except SystemExit as ended:
    code = ended.code or DONE
  except (KeyboardInterrupt, Exception) as error:
    # In an import, jaxlib makes an ImportError of a KeyboardInterrupt.
    if "KeyboardInterrupt\n" in traceback.format_exception(error):
      output.say("stopped by Ctrl-C.")
      code = INTERRUPTED
    else:
      output.report(error)
      code = FAULT
  if code == DONE and (lost := output.lost()):
    more = ": send it to another place" if output_is_result else "; the work itself is done"
    output.say(f"standard output could not be written ({lost}){more}.")
    code = MISTAKE if output_is_result else DONE
  if code != DONE:
    sys.exit(code)


def _parsed(argv: list[str], define: Callable[[list[str]], None] | None, command: str) -> list[str]:
  """Parses the flags, loads the config, and returns the arguments that are left."""
  values, words = flags.EnumParser(["true", "false", "all"]), "Prints this; --help=all: all."
  asked = flags.Flag(values, None, "help", None, words, "h", boolean=True)
  flags.DEFINE_flag(asked)
  has_config = "config" in flags.FLAGS
  try:
    argv = flags.FLAGS.read_flags_from_files(argv)
    if define is not None:
      define(argv)
    define_fields(argv if has_config else [])
    _, *arguments = flags.FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    near = re.findall(r"Did you mean: (.*) \?", str(error))
    if not near and has_config:
      near = [f"config.{each}" for each in fields.nearest(error.flagname, fields.SHARED.values())]
    meant = f" (did you mean {' or '.join(f'--{flag}' for flag in near)}?)" if near else ""
    raise UserError(f"--{error.flagname} is not a flag{meant}; see --help for the flags.") from None
  except flags.Error as error:
    last = str(error).strip().splitlines()[-1].rstrip(".").removeprefix("ERROR:: ")
    raise UserError(f"{last}; see --help for the flags.") from None
  if has_config and (command or flags.FLAGS["config"].value):
    importlib.import_module(_MODELS)
  if "import" in flags.FLAGS:
    import_modules(flags.FLAGS["import"].value or [])
  if has_config:
    arguments = _CONFIG[0].read(arguments, command)
  if asked.value:
    print(_help(command, asked.value == "all", _CONFIG[0].value if has_config else None))
    sys.exit(DONE)
  return arguments


def _help(command: str, all_fields: bool, config: ConfigDict | None) -> str:
  """The text of --help: the command's docstring, its flags, and the fields of a config."""
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    own = [flag for flag in defined if not flag.name.startswith("config.")]
    lines += [f"  --{flag.name}: {flag.help}" for flag in own if not module.startswith("absl")]
  if "config" in flags.FLAGS:
    values = dict(leaves(config or {}))
    which = "Fields of a config" if all_fields else "Common fields of a config (--help=all: all)"
    whose = f"the values of {values.get('name') or 'the recipe'}" if values else "defaults"
    listed = fields.in_words(command, values, *[COMMON] * (not all_fields))
    lines += ["", f"{which}, with {whose}:", "", *(f"  --config.{n}{words}" for n, words in listed)]
  return "\n".join(lines)
