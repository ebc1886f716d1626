"""What is said of all fields: the text of --help, and docs/fields.md.

python -c 'from jaxspeed.models import make; from jaxspeed.config import reference
print(reference.page(), end="")' > docs/fields.md
"""

import itertools
import sys
from collections.abc import Iterator

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import effects, fields
from jaxspeed.config.conditions import LEAVE_OUT, leaves
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import Declared, Mark


def help_text(command: str, all_fields: bool, config: ConfigDict | None) -> str:
  """The text of --help: the command's docstring, its flags, and the fields of a config.

  Args:
    command: "evaluate" or "predict" for the fields that they use; else all.
    all_fields: whether all of these are listed, or the common ones.
    config: the one whose values are shown; None: the defaults.
  """
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    if not module.startswith("absl"):
      own = [flag for flag in defined if not flag.name.startswith("config.")]
      lines += [f"  --{flag.name}: {flag.help}" for flag in own]
  if "config" not in flags.FLAGS:
    return "\n".join(lines)
  values = {} if config is None else dict(leaves(config))
  whose = f"with the values of {values.get('name') or 'the recipe'}" if values else "with defaults"
  which = "Fields of a config" if all_fields else "Common fields of a config (--help=all: all)"
  lines += ["", f"{which}, {whose}:", ""]
  for field in _listed(values.get("model.name"), command):
    if all_fields or Mark.COMMON in field.metadata:
      value = values.get(field.name, field.default)
      default = "" if value is ... else f"={value!r}"
      lines.append(f"  --config.{field.name}{default} ({field.accepted}): {field.meaning}")
  return "\n".join(lines)


def _listed(model: str | None, command: str) -> Iterator[Declared]:
  """The fields that a command uses: the shared ones, and those of one or of every family."""
  of = {name: fields.known(name) for name in ([model] if model else FAMILIES)}
  for field in fields.SHARED.values():
    if effects.is_used(field, command):
      yield field
  for family, known in of.items():
    for field in known.values():
      if field.name not in fields.SHARED:
        yield field._replace(meaning=f"{family}: {field.meaning}" if not model else field.meaning)


def page() -> str:
  """The text of docs/fields.md: every field with its default, values, meaning and condition."""
  lines = [
    "# The fields of a config",
    "",
    "Written by `jaxspeed/config/reference.py` from the declarations in `jaxspeed/config/`;",
    "`tests/config/test_config.py` compares them. `--config.FIELD=VALUE` changes a field.",
  ]
  for group, listed in itertools.groupby(_listed(None, ""), lambda f: f.name.rpartition(".")[0]):
    lines += ["", f"## {group or 'run'}", ""]
    lines += ["| field | default | values | meaning |", "|---|---|---|---|"]
    for field in listed:
      default = "" if field.default is ... else f"`{field.default!r}`"
      effect = "; ".join(w.otherwise for w in field.conditions if w.otherwise != LEAVE_OUT)
      meaning = f"{field.meaning}{f' (condition: {effect})' if effect else ''}"
      cells = (f"`{field.name}`", default, field.accepted, meaning)
      lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
  return "\n".join(lines) + "\n"
