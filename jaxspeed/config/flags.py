"""How a command line becomes a config, and a mistake an exit code."""

import itertools
import os
import sys
from collections.abc import Callable

from absl import flags
from ml_collections import config_flags

from jaxspeed.errors import UserError


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
  main: Callable[[list[str]], None], *, define: Callable[[list[str]], None] | None = None
) -> None:
  """Parses the flags, calls `main` with what is left, and turns a UserError into exit code 2.

  Args:
    main: takes the arguments that are no flags.
    define: takes all of them before they are parsed, to define flags that depend on others.
  """
  try:
    if define is not None:
      define(sys.argv)
    main(_parse(sys.argv)[1:])
  except UserError as error:
    print(f"jaxspeed: {error}", file=sys.stderr)
    sys.exit(2)


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
