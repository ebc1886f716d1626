"""How a command line becomes a config, and a mistake an exit code."""

import itertools
import os
import sys
from collections.abc import Callable

from absl import flags
from ml_collections import config_flags

from jaxspeed.config import output
from jaxspeed.errors import DONE, FAULT, INTERRUPTED, MISTAKE, UserError


def define_config_flag() -> flags.FlagHolder:
  """The flag --config=FILE[:VARIANT] with its overrides --config.FIELD=VALUE."""
  return config_flags.DEFINE_config_file(
    "config", None, "Recipe: FILE.py or FILE.py:VARIANT; --config.FIELD=VALUE changes a field."
  )


def required(flag: str, value: str | None) -> str:
  """The value of a flag that must be given."""
  if not value:
    raise UserError(f"--{flag} is missing; see --help for the flags.")
  return value


def nothing_left(arguments: list[str]) -> None:
  """Refuses what stands on a command line and is no flag, as in `epochs=10` without the dashes."""
  if arguments:
    raise UserError(f"{arguments[0]!r} is no flag; see --help for the flags.")


def run(
  main: Callable[[list[str]], None],
  *,
  define: Callable[[list[str]], None] | None = None,
  output_is_result: bool = True,
) -> None:
  """Parses the flags, calls `main` with what is left, and ends with an exit code.

  A UserError is told in its sentence and ends with MISTAKE, Ctrl-C with INTERRUPTED. Any other
  exception is reported in a sentence too, with its traceback in a file, and ends with FAULT.

  Args:
    main: takes the arguments that are no flags.
    define: takes all of them before they are parsed, to define flags that depend on others.
    output_is_result: whether the command has failed where standard output takes no more; a reader
      that has enough, such as `head`, is none.
  """
  output.guard()
  begun = False

  def run_main() -> None:
    nonlocal begun
    if define is not None:
      define(sys.argv)
    arguments = _parse(sys.argv)[1:]
    begun = True
    main(arguments)

  code = _exit_code_of(run_main)
  lost = output.lost()
  if code == DONE and lost and (output_is_result or not begun):
    output.say(f"standard output could not be written ({lost}): send it to another place.")
    code = MISTAKE
  elif lost and code == DONE:
    output.say(f"standard output could not be written ({lost}); the work itself is done.")
  if code != DONE:
    sys.exit(code)


def _exit_code_of(function: Callable[[], None]) -> int:
  """Calls a function; returns the exit code, after the sentence on what ended it early."""
  try:
    function()
  except UserError as error:
    output.say(error)
    return MISTAKE
  except KeyboardInterrupt:
    output.say("stopped by Ctrl-C.")
    return INTERRUPTED
  except SystemExit as ended:
    if isinstance(ended.code, str):
      output.say(ended.code)
    return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
  except Exception as error:
    output.report(error, None)
    return FAULT
  return DONE


def _parse(argv: list[str]) -> list[str]:
  if {"-h", "-help", "--help"} & set(argv[1:]):
    print(_help())
    sys.exit(0)
  file = value_of("config", argv)
  file = file and file.split(":")[0]
  if file is not None and not os.path.isfile(file):
    raise UserError(f"--config={file}: there is no such file.")
  try:
    return flags.FLAGS(argv)
  except UserError:
    raise
  except (AttributeError, KeyError) as error:  # ml_collections: a field that is not there
    name, _, hint = str(error).strip("\"'").replace("\\'", "'").replace("\\n", "\n").partition("\n")
    raise UserError(f"the config has no field {name.strip(chr(39))}. {hint}".strip()) from None
  except SyntaxError as error:
    raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}.") from None
  except (flags.Error, TypeError, ValueError) as error:
    if "get_config() takes 0 positional" in str(error):
      raise UserError(f"--config={file} has no variants: leave out the colon.") from None
    raise UserError(_sentence(str(error))) from None


def value_of(name: str, argv: list[str]) -> str | None:
  """VALUE of --NAME=VALUE or --NAME VALUE, before the flags are parsed; None where it is not."""
  for argument, following in itertools.pairwise([*argv[1:], ""]):
    flag, equals, value = argument.partition("=")
    if flag in (f"--{name}", f"-{name}"):
      return value if equals else following
  return None


def _help() -> str:
  """The command's own docstring and flags; absl adds --help only to what its `app.run` starts."""
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if not module.startswith("absl"):
      lines += [f"  --{flag.name}: {flag.help}" for flag in defined]
  return "\n".join(lines)


def _sentence(message: str) -> str:
  """The last line of a message, which may have a traceback before it, and the way on."""
  last = message.strip().splitlines()[-1]
  return last.removeprefix("ValueError: ").rstrip(".") + "; see --help for the flags."
