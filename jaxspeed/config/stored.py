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
# Fields that are gone since 2026-11-27, with the value that holds now.
_GONE = {"data.on_error": "skip", "eval.multiple": 8, "command_buffers": False, "compile_cache": ""}
# Fields that cannot change a run's result: where it reads and writes, and how it is watched.
PLACES = tuple(name for name, field in fields.SHARED.items() if Mark.PLACE in field.metadata)


def to_dict(config: ConfigDict) -> dict[str, Any]:
  """A config as JSON stores it: nested dicts, with tuples as lists."""
  return to_json(checks.to_plain(config))


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
  if (loaded := read_json(path, dict[str, Any], restore)) is None:
    raise UserError(
      f"{path} is missing: name the folder of a run, the --workdir of a jaxspeed.train."
    )
  if repr(found := loaded.pop("format", None)) != repr(FORMAT):
    raise UserError(
      f"{path} is of format {shown(found)}, and this version of jaxspeed reads {FORMAT}: use the "
      f"version that trained the run, {restore}."
    )
  for name in (*fields.SHARED, *_GONE):
    group, _, last = name.rpartition(".")
    if not isinstance(held := loaded.get(group) if group else loaded, dict):
      continue
    if name in _GONE and held.get(last) == _GONE[name]:
      del held[last]
    for old in fields.SHARED[name].also if name in fields.SHARED else ():
      if old in held and last not in held:
        held[last] = held.pop(old)
  config, there = checks.checked(loaded, source=str(path)), dict(leaves(loaded))
  added = {name: value for name, value in leaves(config) if name not in there}
  if rows := [f"config.{n}={v!r}" for n, v in added.items() if not n.startswith("given.")]:
    _warn(f"{path} is of an earlier version: the defaults hold for {listed(rows)}.")
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
