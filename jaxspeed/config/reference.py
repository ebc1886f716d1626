"""What is said of all fields: the text of --help, and docs/fields.md.

python -c 'from jaxspeed.models import make; from jaxspeed.config import reference
print(reference.page(), end="")' > docs/fields.md
"""

import dataclasses
import sys
from collections.abc import Iterator

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import effects, names
from jaxspeed.config.conditions import leaves
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import LEAVE_OUT, Declared, Mark


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
  for field in _listed(str(values.get("model.name", "")), command):
    if all_fields or Mark.COMMON in field.marks:
      lines.append(f"  --config.{_line(field, values.get(field.name, field.default))}")
  return "\n".join(lines)


def _listed(model: str, command: str) -> Iterator[Declared]:
  """The fields that a command uses: the shared ones, and those of one or of every family."""
  for field in names.declared().values():
    if effects.is_used(field, command):
      yield field
  for family in [model] if model else FAMILIES:
    for field in FAMILIES[family].fields:
      if model:
        yield field
      elif field.name != "model.name":
        yield dataclasses.replace(field, meaning=f"{family}: {field.meaning}")


def _line(field: Declared, value: object) -> str:
  default = "" if value is ... else f"={value!r}"
  return f"{field.name}{default} ({field.accepted}): {field.meaning}"


def page() -> str:
  """The text of docs/fields.md: every field with its default, values, meaning and condition."""
  lines = [
    "# The fields of a config",
    "",
    "Written by `jaxspeed/config/reference.py` from the declarations in `jaxspeed/config/`;",
    "`tests/config/test_config.py` compares them. `--config.FIELD=VALUE` changes a field.",
  ]
  group = None
  for field in _listed("", ""):
    if (own := field.name.rpartition(".")[0] or "run") != group:
      group = own
      lines += [
        "",
        f"## {group}",
        "",
        "| field | default | values | meaning |",
        "|---|---|---|---|",
      ]
    default = "" if field.default is ... else f"`{field.default!r}`"
    effect = "".join(
      f"; {each.otherwise}" for each in field.conditions if each.otherwise != LEAVE_OUT
    )
    meaning = f"{field.meaning}{f' (condition: {effect[2:]})' if effect else ''}"
    cells = (f"`{field.name}`", default, field.accepted, meaning)
    lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
  return "\n".join(lines) + "\n"
