"""Configs as a run's folder stores them: JSON, leaves, and the differences between two."""

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks, fields
from jaxspeed.config.recipe import guarded
from jaxspeed.config.schema import Mark, shown
from jaxspeed.config.schema import leaves as leaves
from jaxspeed.errors import UserError, some
from jaxspeed.files import dump_json, read_json, to_json, write_atomically

_log = logging.getLogger("jaxspeed")
# Fields that are gone since 2026-11-27, with the value that holds now.
_GONE = {"data.on_error": "skip", "eval.multiple": 8, "command_buffers": False, "compile_cache": ""}
_GONE |= {"optimizer.lars_clip": []}
# Fields that cannot change a run's result: where it reads and writes, and how it is watched.
PLACES = tuple(name for name, field in fields.SHARED.items() if Mark.PLACE in field.metadata)


def to_dict(config: ConfigDict) -> dict[str, Any]:
  """A config as JSON stores it: nested dicts, with tuples as lists."""
  return to_json(checks.to_plain(config))


def save(config: ConfigDict, path: pathlib.Path, *, sync: bool = True) -> None:
  """Writes a config as JSON, atomically; `sync` as in `write_atomically`."""
  write_atomically(path, dump_json(to_dict(config), indent=2) + "\n", sync=sync)


def load(path: pathlib.Path) -> ConfigDict:
  """Reads and checks a config that `save` wrote.

  Fields that were added since take their default, which a line says; those that were renamed keep
  their values.

  Raises:
    UserError: the file is missing, is not JSON, or holds an invalid config.
  """
  restore = "restore the file that jaxspeed.train wrote, or train again in another --workdir"
  if (loaded := read_json(path, dict[str, Any], restore)) is None:
    raise UserError(f"{path} is missing: name the folder of a run, a --workdir of jaxspeed.train.")
  loaded.pop("format", None)  # of an earlier version
  for name in (*fields.SHARED, *_GONE):
    group, _, last = name.rpartition(".")
    if not isinstance(held := loaded.get(group) if group else loaded, dict):
      continue
    if name in _GONE and held.get(last) == _GONE[name]:
      del held[last]
    if (old := last.removesuffix("_factor")) in held and last not in held:
      held[last] = held.pop(old)  # factors did not say so in their names
  config = guarded(lambda: checks.checked(loaded), str(path))
  if added := sorted(fields.SHARED.keys() - dict(leaves(loaded)).keys()):
    _log.warning("%s is of an earlier version: defaults hold for %s", path, some(added, 5))
  return config


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """Lines 'field: old -> new' for the fields that differ and may change a result."""
  before, after = dict(leaves(old)), dict(leaves(new))
  rows = []
  for name in sorted(before.keys() | after.keys()):
    if before.get(name, ...) != after.get(name, ...) and name not in PLACES:
      was, now = (shown(of[name]) if name in of else "absent" for of in (before, after))
      rows.append(f"config.{name}: {was} -> {now}")
  return rows
