"""The commands by name: `jaxspeed train ...` is `python -m jaxspeed.train ...`.

jaxspeed COMMAND --help lists the flags of a command.
"""

import ast
import importlib.util
import pkgutil
import runpy
import sys

import jaxspeed
from jaxspeed.config.flags import finish
from jaxspeed.errors import UserError, did_you_mean


def commands() -> dict[str, str]:
  """The commands that there are, by name, each with the first sentence of its docstring."""
  found = {}
  for module in pkgutil.iter_modules(jaxspeed.__path__, "jaxspeed."):
    spec = importlib.util.find_spec(f"{module.name}.__main__" if module.ispkg else module.name)
    source = getattr(spec.loader, "get_source", lambda _: "")(spec.name) if spec else ""
    name = module.name.removeprefix("jaxspeed.")
    if name != "__main__" and 'if __name__ == "__main__":' in (source or ""):
      described = ast.get_docstring(ast.parse(source)) or ""
      found[name] = " ".join(described.partition("\n\n")[0].split())
  return found


def main() -> None:
  """Runs the command that the first argument names."""
  name, rest = (*sys.argv[1:2], "")[0], sys.argv[2:]
  found = commands()
  if name in found:
    sys.argv = [f"jaxspeed {name}", *rest]
    runpy.run_module(f"jaxspeed.{name}", run_name="__main__", alter_sys=True)
  else:
    finish(lambda: _without_command(name, found))


def _without_command(name: str, found: dict[str, str]) -> None:
  if name == "--version":
    print(jaxspeed.__version__)
  elif name in ("", "-h", "--help", "help"):
    width = max(map(len, found))
    lines = [f"  {each:<{width}}  {does}" for each, does in found.items()]
    print("usage: jaxspeed COMMAND [FLAGS]\n", *lines, sep="\n")
    print("\njaxspeed COMMAND --help lists its flags; help(jaxspeed) in Python is the library.")
  else:
    meant = did_you_mean(name, found) or f": choose one of {', '.join(found)}."
    raise UserError(f"there is no command {name!r}{meant}")


if __name__ == "__main__":
  main()
