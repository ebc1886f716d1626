"""Command-line flags: from arguments to a config, and from an exception to an exit code."""

import difflib
import importlib
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from jaxspeed.config import fields, output
from jaxspeed.config.checks import check_effects, set_in_vain, with_overrides
from jaxspeed.config.recipe import import_modules, load_recipe
from jaxspeed.config.schema import COMMON, leaves
from jaxspeed.errors import DONE, FAULT, INTERRUPTED, MISTAKE, UserError, printable

# The commands whose first argument may be a recipe.
_OF_RECIPES = ("train", "plan", "scaling")
_FIELD = re.compile(r"--?(?:no)?config\.([^=]*)")


class ConfigFlag:
  """--config=RECIPE with the fields that --config.FIELD=VALUE sets; `run` fills it."""

  recipe: ConfigDict | None = None  # None where none is named, which `train` and `plan` refuse
  overrides: Mapping[str, Any] = {}  # by dotted field name
  value: Any = None  # the recipe with the overrides, checked; `evaluate` merges them itself

  def read(self, name: str | None, arguments: list[str], command: str) -> list[str]:
    """Loads the recipe, if one is named, and returns the arguments that do not name it.

    Raises:
      UserError: the recipe is missing or wrong, or an override is invalid or has no effect.
    """
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
      raise UserError(f"name the recipe, as in: jaxspeed {command} quickstart.")
    elif self.overrides and command != "evaluate":  # which has a run's config
      field = next(iter(self.overrides))
      raise UserError(f"--config.{field} changes a recipe: name it with --config=NAME.")
    return arguments


_CONFIG: list[ConfigFlag] = []  # the one that was defined, until its command begins


def define_config_flag() -> ConfigFlag:
  """Defines --config and --import; `run` imports the modules before it loads the recipe."""
  help_text = "Recipe: NAME, FILE.py or either with :VARIANT; --config.FIELD=VALUE changes a field."
  flags.DEFINE_string("config", None, help_text)
  define_import_flag()
  return define_overrides()


def define_overrides() -> ConfigFlag:
  """Lets a command take --config.FIELD=VALUE."""
  _CONFIG[:] = [ConfigFlag()]
  return _CONFIG[0]


def define_import_flag() -> None:
  flags.DEFINE_list("import", [], "Modules of your own that register models, ...: imported first.")


def parse_overrides(words: list[str]) -> tuple[dict[str, Any], list[str]]:
  """The fields that words of a command line set, with their values, and the other words.

  ml_collections' flags parse them: --config.FIELD=VALUE, --config.FIELD VALUE, and for True or
  False --config.FIELD or --noconfig.FIELD too.

  Raises:
    UserError: there is no such field, or no such flag, or a field does not accept its value.
  """
  defaults, known = fields.base(), fields.known()
  for name in [found[1] for found in map(_FIELD.match, words) if found]:
    if name not in known:
      raise UserError(fields.no_field(name))
    if name.startswith("model."):
      value = known[name].default
      defaults.model[name.removeprefix("model.")] = "" if value is ... else value
  values = flags.FlagValues()
  config_flags.DEFINE_config_dict("config", defaults, flag_values=values, sys_argv=words)
  try:
    left = values(["", *words])[1:]
  except flags.IllegalFlagValueError as error:
    if not (found := re.match(r"flag --config\.([^=]+)=(.*?): ", str(error), re.DOTALL)):
      raise  # of --config itself, where a command takes no recipe
    raise UserError(known[found[1]].refusal(found[2])) from None
  return config_flags.get_override_values(values["config"]), left


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
  output_is_result: bool = True,
  command: str = "",
) -> None:
  """Parses the flags, calls `main` with the other arguments, and exits with a code.

  A UserError prints its sentence and exits with MISTAKE, Ctrl-C with INTERRUPTED. Any other
  exception prints a sentence, writes its traceback to a file, and exits with FAULT.

  Args:
    main: the command, which takes the arguments that are not flags.
    output_is_result: whether standard output that cannot be written, but for a pipe that its reader
      closed, is a MISTAKE.
    command: its name, if its first argument may be a recipe or --help lists the fields it uses.
  """
  finish(lambda: main(_parsed(sys.argv, command)), output_is_result=output_is_result)


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


def _parsed(argv: list[str], command: str) -> list[str]:
  """Parses the flags, loads the config, and returns the arguments that are left."""
  values, words = flags.EnumParser(["true", "false", "all"]), "Prints this; --help=all: all."
  asked = flags.Flag(values, None, "help", None, words, "h", boolean=True)
  flags.DEFINE_flag(asked)
  config_flag, has_recipe = _CONFIG.pop() if _CONFIG else None, "config" in flags.FLAGS
  try:
    argv = flags.FLAGS.read_flags_from_files(argv)
    _, *arguments = flags.FLAGS(argv, known_only=config_flag is not None)
    recipe = flags.FLAGS["config"].value if has_recipe else None
    if config_flag and (command or recipe or any(map(_FIELD.match, arguments))):
      importlib.import_module("jaxspeed.models.make")  # their fields; it imports JAX
    if "import" in flags.FLAGS:
      import_modules(flags.FLAGS["import"].value or [])
    if config_flag:
      config_flag.overrides, arguments = parse_overrides(arguments)
  except flags.UnrecognizedFlagError as error:
    near = difflib.get_close_matches(error.flagname, [*flags.FLAGS], 1, 0.8)
    if not near and config_flag:
      near = [f"config.{each}" for each in fields.nearest(error.flagname, fields.SHARED.values())]
    meant = f" (did you mean {' or '.join(f'--{flag}' for flag in near)}?)" if near else ""
    raise UserError(f"--{error.flagname} is not a flag{meant}; see --help for the flags.") from None
  except flags.Error as error:
    last = str(error).strip().splitlines()[-1].rstrip(".").removeprefix("ERROR:: ")
    raise UserError(f"{last}; see --help for the flags.") from None
  if config_flag and has_recipe:
    arguments = config_flag.read(recipe, arguments, command)
  if asked.value:
    print(_help(command, asked.value == "all", config_flag and config_flag.value))
    sys.exit(DONE)
  return arguments


def _help(command: str, all_fields: bool, config: ConfigDict | None) -> str:
  """The text of --help: the command's docstring, its flags, and the fields of a config."""
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    lines += [f"  --{flag.name}: {flag.help}" for flag in defined if not module.startswith("absl")]
  if "config" in flags.FLAGS:
    values = dict(leaves(config or {}))
    which = "Fields of a config" if all_fields else "Common fields of a config (--help=all: all)"
    whose = f"the values of {values.get('name') or 'the recipe'}" if values else "defaults"
    listed = fields.in_words(command, values, *[COMMON] * (not all_fields))
    lines += ["", f"{which}, with {whose}:", "", *(f"  --config.{n}{words}" for n, words in listed)]
  return "\n".join(lines)
