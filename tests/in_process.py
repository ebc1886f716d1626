"""Runs a command's `main` in this process, with its flags, as often as one likes."""

import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from unittest import mock

from absl import flags


@contextlib.contextmanager
def fresh_flags() -> Iterator[None]:
  """absl's flags are global: only its own are there inside, and those from before come back."""
  module_of = flags.FLAGS.find_module_defining_flag
  own = {name for name in flags.FLAGS if str(module_of(name)).startswith("absl")}
  there = {name: flags.FLAGS[name] for name in set(flags.FLAGS) - own}
  before = {flag.name: flag for flag in there.values()}  # without short names: they come along
  for name in there:
    delattr(flags.FLAGS, name)
  try:
    yield
  finally:
    for name in set(flags.FLAGS) - own:
      delattr(flags.FLAGS, name)
    for name, flag in before.items():
      flags.FLAGS[name] = flag
    flags.FLAGS.unparse_flags()


def command(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
  """`python -m jaxspeed.MODULE ARGUMENTS`; what it raises but SystemExit is raised."""
  name = f"jaxspeed.{module}"
  is_folder = hasattr(importlib.import_module(name), "__path__")
  main = importlib.import_module(f"{name}.__main__" if is_folder else name).main
  return call(main, f"jaxspeed/{module}.py", *arguments)


def call(main: Callable[[], None], *argv: str) -> subprocess.CompletedProcess[str]:
  """A `main` with the words of a command line."""
  out, err, code = io.StringIO(), io.StringIO(), 0
  streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
  with fresh_flags(), mock.patch.object(sys, "argv", [*argv]), streams[0], streams[1]:
    try:
      main()
    except SystemExit as error:
      code = error.code if isinstance(error.code, int) else int(error.code is not None)
  return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def mistake(module: str, *arguments: str) -> str:
  """The one sentence of a command that ends with exit code 2, without its "jaxspeed: ".

  Before it stands nothing, or the last frame of a bug in the user's own code.
  """
  done = command(module, *arguments)
  assert (done.returncode, done.stdout) == (2, ""), done
  *frame, sentence = done.stderr.splitlines()
  assert not frame or frame[0].startswith(("Traceback (most recent", '  File "')), done.stderr
  assert sentence.startswith("jaxspeed: ") and done.stderr.endswith("\n"), done.stderr
  return sentence.removeprefix("jaxspeed: ")
