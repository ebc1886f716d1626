"""The folder of a run on a command line: the first argument that is not a flag, or --workdir."""

import os

from jaxspeed.errors import UserError


def take_run(workdir: str | None, arguments: list[str]) -> tuple[str | None, list[str]]:
  """The folder of a run, which --workdir or the first argument names, and the other arguments.

  Args:
    workdir: the value of --workdir.
    arguments: those that are not flags.

  Raises:
    UserError: both name a run, and not the same one.
  """
  first = arguments[0] if arguments else ""
  if not workdir:
    # Not epochs=10, a flag without its dashes.
    named = bool(first) and ("=" not in first or os.path.isdir(first))
    return (first, arguments[1:]) if named else (workdir, arguments)
  # Other programs have a config.json too.
  if not all(os.path.exists(os.path.join(first, name)) for name in ("config.json", "owner.json")):
    return workdir, arguments
  if os.path.realpath(first) != os.path.realpath(workdir):
    raise UserError(f"--workdir={workdir} and {first} are two runs: name one of them.")
  return workdir, arguments[1:]
