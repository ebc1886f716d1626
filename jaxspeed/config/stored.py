"""Configs as a run's folder stores them: JSON, leaves, and the differences between two."""

import functools
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks, fields
from jaxspeed.config.schema import Mark, shown
from jaxspeed.config.schema import leaves as leaves
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, read_json, to_json, write_atomically

# Stored in config.json and in checkpoints' manifests. Raise it when a version can no longer read
# what an earlier one wrote.
FORMAT = 2
# The largest number of differences listed in a message.
_LISTED = 5
# Fields that cannot change a run's result: where it reads and writes, and how it is watched.
PLACES = tuple(name for name, field in fields.SHARED.items() if Mark.PLACE in field.metadata)


def to_dict(config: ConfigDict) -> dict[str, Any]:
  """A config as JSON stores it: nested dicts, with tuples as lists.

  compile_cache is empty: a run's folder from somebody else could name programs to execute. `given`
  is left out where it is empty, as in every run of a command.
  """
  values = to_json(checks.to_plain(config))
  if "compile_cache" in values:
    values["compile_cache"] = ""
  if not given_in(values):
    values.pop("given", None)
  return values


def given_in(config: Mapping[str, Any]) -> dict[str, str]:
  """What `jaxspeed.fit` was given in place of fields of a config: argument and description."""
  return {name: str(value) for name, value in dict(config.get("given") or {}).items() if value}


def refusal(before: Mapping[str, str], now: Mapping[str, str], folder: object) -> str:
  """A sentence if a run in a folder was given other objects (`given_in`) than now; '' if not."""
  for name in {**before, **now}:
    if (was := before.get(name)) != (found := now.get(name)):
      held = f"jaxspeed.fit(..., {name}=...) with {was}" if was else f"no {name}= of jaxspeed.fit"
      remedy = f"pass the same {name}= to jaxspeed.fit" if was else f"leave {name}= out"
      return (
        f"{folder} holds a run of {held}{f', not of {found}' * bool(found)}: {remedy} to resume "
        "it, or choose another workdir."
      )
  return ""


def save(config: ConfigDict, path: pathlib.Path, *, sync: bool = True) -> None:
  """Writes a config and `FORMAT` as JSON, atomically; `sync` as in `write_atomically`."""
  text = dump_json({"format": FORMAT} | to_dict(config), indent=2)
  write_atomically(path, text + "\n", sync=sync)


def load(path: pathlib.Path) -> ConfigDict:
  """Reads and checks a config that `save` wrote.

  Fields that were added since take their default, which a line says; those that were renamed keep
  their values.

  Raises:
    UserError: the file is missing, is not JSON, has another format, or holds an invalid config.
  """
  restore = "restore the file that jaxspeed.train wrote, or train again in another --workdir"
  loaded = read_json(path, dict[str, Any], restore)
  if loaded is None:
    raise UserError(
      f"{path} is missing: name the folder of a run, the --workdir of a jaxspeed.train."
    )
  if repr(found := loaded.pop("format", None)) != repr(FORMAT):
    raise UserError(
      f"{path} is of format {shown(found)}, and this version of jaxspeed reads {FORMAT}: use the "
      f"version that trained the run, {restore}."
    )
  for name, field in fields.SHARED.items():
    group, _, last = name.rpartition(".")
    held = loaded.get(group) if group else loaded
    for old in field.also if isinstance(held, dict) else ():
      if old in held and last not in held:
        held[last] = held.pop(old)
  if isinstance(data := loaded.get("data"), dict):
    data.pop("on_error", None)  # gone since 2026-11-27: max_broken=0 ends a run as "raise" did
  config = checks.checked(loaded | {"compile_cache": ""}, source=str(path))
  there = {"compile_cache", *dict(leaves(loaded))}
  defaults = [
    f"config.{name}={value!r}"
    for name, value in leaves(config)
    if name not in there and not name.startswith("given.")
  ]
  if defaults:
    _warn(f"{path} is of an earlier version: the defaults hold for {listed(defaults)}.")
  return config


# Once a process, which may read a config several times.
_warn = functools.cache(logging.getLogger("jaxspeed").warning)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """Lines 'field: old -> new' for the fields that differ and may change a result."""
  before, after = dict(leaves(old)), dict(leaves(new))
  rows = []
  for name in sorted(before.keys() | after.keys()):
    if before.get(name, ...) != after.get(name, ...) and name not in PLACES:
      was, now = (shown(of[name]) if name in of else "absent" for of in (before, after))
      rows.append(f"config.{name}: {was} -> {now}")
  return rows


def listed(rows: list[str]) -> str:
  """The first few rows of `differences` and the number of the rest, for a message."""
  more = [f"and {len(rows) - _LISTED} more"] if len(rows) > _LISTED else []
  return "; ".join([*rows[:_LISTED], *more])
