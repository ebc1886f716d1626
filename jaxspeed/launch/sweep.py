"""Sweep files: Python that defines `sweep() -> Run`."""

import os

from jaxspeed.config.recipe import guarded, import_file
from jaxspeed.errors import UserError
from jaxspeed.launch.run import Run


def load_sweep(file: str) -> Run:
  """The run that `sweep()` of a file returns.

  Raises:
    UserError: there is no such file, it raises an exception, or it returns no run.
  """
  if not os.path.isfile(file):
    raise UserError(f"{file}: there is no such file.")
  module = import_file(file)
  function = getattr(module, "sweep", None)
  if not callable(function):
    raise UserError(f"{file} defines no function sweep() that returns a Run of jaxspeed.launch.")
  run = guarded(function, file)
  if not isinstance(run, Run):
    kind = "nothing" if run is None else f"a value of type {type(run).__name__}"
    raise UserError(f"{file}: sweep() returned {kind}: it must return a Run of jaxspeed.launch.")
  return run
