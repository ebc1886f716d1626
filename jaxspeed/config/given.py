"""What a run was given in place of config fields: objects that only Python can pass.

`jaxspeed.fit` fills these fields with a description of each object, so that the run's folder says
what was trained, and a resume without the objects is refused. A command cannot set them.
`conditions.not_given` is the condition of the fields that they replace.
"""

from collections.abc import Mapping
from typing import Any

from jaxspeed.config import kinds
from jaxspeed.config.schema import Group


class Given(Group):
  """The arguments of `jaxspeed.fit` that replaced fields, each in words; '': none."""

  model: kinds.Text = ""
  optimizer: kinds.Text = ""
  schedule: kinds.Text = ""
  data: kinds.Text = ""


def given_in(config: Mapping[str, Any]) -> dict[str, str]:
  """What a config says that its run was given: argument and description."""
  return {name: str(value) for name, value in dict(config.get("given") or {}).items() if value}


def refusal(before: Mapping[str, str], now: Mapping[str, str], folder: object) -> str:
  """A sentence on a run that was given other objects than a later start of it; '' if the same.

  Args:
    before: what the run was given (`given_in`).
    now: what this start is given.
    folder: the run's folder.
  """
  for name in {**before, **now}:
    if (was := before.get(name)) != (found := now.get(name)):
      held = f"jaxspeed.fit(..., {name}=...) with {was}" if was else f"no {name}= of jaxspeed.fit"
      remedy = f"pass the same {name}= to jaxspeed.fit" if was else f"leave {name}= out"
      return (
        f"{folder} holds a run of {held}{f', not of {found}' * bool(found)}: {remedy} to resume "
        "it, or choose another workdir."
      )
  return ""
