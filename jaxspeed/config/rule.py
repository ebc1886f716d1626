"""A rule: the condition under which fields of a config have an effect."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict


class Rule(NamedTuple):
  """A condition under which some fields have an effect.

  Attributes:
    fields: the fields' names with wildcards, separated by spaces.
    beside: the deciding fields, in the same form.
    works: whether the fields have an effect in a config.
    instead: the reason or the remedy, as the end of a sentence.
  """

  fields: str
  beside: str
  works: Callable[[ConfigDict], bool]
  instead: str


def only(fields: str, beside: str, value: str) -> Rule:
  """The rule that fields have an effect only with one value of another field."""
  group, _, name = beside.partition(".")
  return Rule(fields, beside, lambda c: c[group][name] == value, f"it applies to {value} only")


def column(config: ConfigDict, name: str) -> tuple:
  """A field's values by phase; () if all phases use the value of the whole run."""
  return tuple(config.phases[name]) if config.phases.first_epoch else ()


def streams(config: ConfigDict) -> bool:
  return config.data.feed == "stream"


def model_of(config: ConfigDict) -> dict[str, Any]:
  return config.model.to_dict() if "model" in config else {"name": ""}
