"""What is said of all fields: the text of --help, and docs/fields.md.

python -c 'from jaxspeed.models import make; from jaxspeed.config import reference
print(reference.page(), end="")' > docs/fields.md
"""

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from jaxspeed.config import fields
from jaxspeed.config.registry import FAMILIES
from jaxspeed.config.schema import Declared, Mark, leaves


def help_text(command: str, all_fields: bool, config: ConfigDict | None) -> str:
  """The text of --help: the command's docstring, its flags, and the fields of a config.

  Args:
    command: "evaluate" or "predict" for the fields that they use; else all.
    all_fields: whether all of these are listed, or the common ones.
    config: the one whose values are shown; None: the defaults.
  """
  lines = [(sys.modules["__main__"].__doc__ or "").strip(), ""]
  for module, defined in flags.FLAGS.flags_by_module_dict().items():
    own = [flag for flag in defined if not flag.name.startswith("config.")]
    lines += [f"  --{flag.name}: {flag.help}" for flag in own if not module.startswith("absl")]
  if "config" in flags.FLAGS:
    values = {} if config is None else dict(leaves(config))
    which = "Fields of a config" if all_fields else "Common fields of a config (--help=all: all)"
    whose = f"the values of {values.get('name') or 'the recipe'}" if values else "defaults"
    listed = [each for each in _listed(command) if all_fields or Mark.COMMON in each[1].metadata]
    lines += ["", f"{which}, with {whose}:", ""]
    for family, field in listed:
      if family in ("", values.get("model.name", family)):
        lines.append(f"  --config.{field.name}{_words(family, field, values)}")
  return "\n".join(lines)


def page() -> str:
  """The text of docs/fields.md: every field with its default, values, meaning and condition."""
  lines = [
    "# The fields of a config",
    "",
    "Written by `jaxspeed/config/reference.py` from the declarations in `jaxspeed/config/`;",
    "`tests/config/test_config.py` compares them. `--config.FIELD=VALUE` changes a field.",
  ]
  for group, listed in itertools.groupby(_listed(""), lambda each: each[1].name.rpartition(".")[0]):
    lines += ["", f"## {group or 'run'}", ""]
    lines += [f"- **{field.name}**{_words(family, field, {})}" for family, field in listed]
  return "\n".join(lines) + "\n"


def _listed(command: str) -> Iterator[tuple[str, Declared]]:
  """The fields that a command uses, each after its family of models; '': it is a shared one."""
  yield from (("", each) for each in fields.SHARED.values() if each.is_used(command))
  for family in FAMILIES:
    for name, field in fields.known(family).items():
      if name not in fields.SHARED:
        yield family, field


def _words(family: str, field: Declared, values: Mapping[str, Any]) -> str:
  """What is said of a field after its name."""
  value = values.get(field.name, field.default)
  effect = "; ".join(when.otherwise for when in field.conditions if when.command != "train")
  parts = (
    "" if value is ... else f"={value!r}",
    f" ({field.accepted}): ",
    family and f"{family}: ",
  )
  return f"{''.join(parts)}{field.meaning}{effect and f' (condition: {effect})'}"
