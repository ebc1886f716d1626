"""What a run was given in place of config fields: objects that only Python can pass.

`jaxspeed.fit` fills these fields with a description of each object, so that the run's folder says
what was trained, and a resume without the objects is refused. A command cannot set them.
"""

import fnmatch
from collections.abc import Collection, Mapping
from typing import Any

from jaxspeed.config import kinds
from jaxspeed.config.schema import Group
from jaxspeed.errors import UserError

# The fields that each argument replaces, as names with wildcards.
_REPLACED = {
  "model": ("model.*", "pretrained.*"),
  "optimizer": ("optimizer.*",),
  "schedule": ("schedule.*",),
  "data": ("data.path", "data.name", "data.cache"),
}
# Fields that apply to an optimizer of the caller's own too.
_KEPT = ("optimizer.clip_norm", "optimizer.layer_decay")


class Given(Group):
  """The arguments of `jaxspeed.fit` that replaced fields, each in words; '': none."""

  model: kinds.Text = ""
  optimizer: kinds.Text = ""
  schedule: kinds.Text = ""
  data: kinds.Text = ""


def given_in(config: Mapping[str, Any]) -> dict[str, str]:
  """What a config says that its run was given: argument and description."""
  return {name: str(value) for name, value in dict(config.get("given") or {}).items() if value}


def refuse_replaced(arguments: Collection[str], names: Collection[str]) -> None:
  """Refuses fields that an argument of `jaxspeed.fit` replaces.

  Args:
    arguments: the names of the arguments.
    names: dotted names of the fields that the caller sets.

  Raises:
    UserError: a field would have no effect.
  """
  for argument in arguments:
    for name in sorted(names):
      replaced = any(fnmatch.fnmatchcase(name, pattern) for pattern in _REPLACED[argument])
      if replaced and name not in _KEPT:
        raise UserError(
          f"config.{name} has no effect beside {argument}= of jaxspeed.fit: leave one of them out."
        )


def refusal(before: Mapping[str, str], now: Mapping[str, str], folder: object) -> str:
  """A sentence on a run that was given other objects than a later start of it; '' if the same.

  Args:
    before: what the run was given (`given_in`).
    now: what this start is given.
    folder: the run's folder.
  """
  for name, what in before.items():
    if now.get(name) != what:
      instead = f", not {now[name]}" if name in now else ""
      return (
        f"{folder} holds a run of jaxspeed.fit(..., {name}=...) with {what}: pass the same "
        f"{name}= to jaxspeed.fit to resume it{instead}, or choose another workdir."
      )
  for name, what in now.items():
    if name not in before:
      return (
        f"{folder} holds a run that was not given {name}= ({what}): leave it out to resume that "
        "run, or choose another workdir."
      )
  return ""
