"""Configs as a run's folder stores them: JSON, leaves, and the differences between two."""

import functools
import logging
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks, fields, names, output
from jaxspeed.config.conditions import leaves as leaves
from jaxspeed.config.given import given_in
from jaxspeed.config.schema import Mark
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json, parse_json, write_atomically

_log = logging.getLogger("jaxspeed")
# Stored in config.json and in checkpoints' manifests. Raise it when a version can no longer read
# what an earlier one wrote.
FORMAT = 2
# The largest number of differences listed in a message.
_LISTED = 5
# Longest value in such a list, in characters.
_SHOWN = 80
# Fields that cannot change a run's result: where it reads and writes, and how it is watched.
PLACES = tuple(name for name, field in names.declared().items() if Mark.PLACE in field.marks)

# Fields that are neither stored nor read from a config.json: a run's folder from somebody else
# could name programs to execute. They come from the command line or the environment.
NOT_STORED = ("compile_cache",)


def to_dict(config: ConfigDict) -> dict[str, Any]:
  """A config as JSON stores it: nested dicts, with tuples as lists, without `NOT_STORED`.

  `given` is left out where it is empty, as in every run of a command.
  """
  values = parse_json(dump_json(_without_paths_to_code(config).to_dict()))
  if not given_in(values):
    values.pop("given", None)
  return values


def save(config: ConfigDict, path: pathlib.Path, *, sync: bool = True) -> None:
  """Writes a config and `FORMAT` as JSON, atomically; `sync` as in `write_atomically`."""
  text = dump_json({"format": FORMAT} | to_dict(config), indent=2)
  write_atomically(path, text + "\n", sync=sync)


def load(path: pathlib.Path) -> ConfigDict:
  """Reads and checks a config that `save` wrote.

  Fields that it lacks were added since, and take their default; a note says so.

  Raises:
    UserError: the file is missing, is not JSON, has another format, or holds an invalid config.
  """
  loaded = _read_object(path)
  found = loaded.pop("format", None)
  if found != FORMAT or type(found) is not int:
    raise UserError(
      f"{path} is of format {ascii(found)[:_SHOWN]}, and this version of jaxspeed reads {FORMAT}: "
      "restore the file that jaxspeed.train wrote, use the version that trained the run, or train "
      "again in another --workdir."
    )
  values = _tuples(loaded)
  added = _add_defaults(values, fields.base())
  checks.check(values, source=str(path))
  if added:
    listed = ", ".join(f"config.{name}={value!r}" for name, value in added[:_LISTED])
    more = f" and {len(added) - _LISTED} more" if len(added) > _LISTED else ""
    _note(f"{path} is of an earlier version: the defaults hold for {listed}{more}.")
  return _without_paths_to_code(ConfigDict(values))


@functools.cache  # once a process, which may read a config several times
def _note(sentence: str) -> None:
  # From Python, nothing is printed unasked.
  (output.note if output.is_guarded() else _log.warning)(sentence)


def _add_defaults(values: Any, base: ConfigDict, prefix: str = "") -> list[tuple[str, Any]]:
  """Adds the fields of `base` that a stored config lacks, and returns their names and values."""
  added: list[tuple[str, Any]] = []
  for name, default in base.items():
    if isinstance(default, ConfigDict) and isinstance(found := values.setdefault(name, {}), dict):
      added += _add_defaults(found, default, f"{prefix}{name}.")
    elif name not in values:
      values[name] = default
      added.append((f"{prefix}{name}", default))
  return [(name, value) for name, value in added if not name.startswith("given.")]


def _read_object(path: pathlib.Path) -> dict[str, Any]:
  """The JSON object in a run's config.json, or a UserError that says why there is none."""
  if os.path.exists(path) and not os.path.isfile(path):
    raise UserError(
      f"{path} is not a file: name the folder of a run, the --workdir of a jaxspeed.train."
    )
  try:
    loaded = load_json(path)
  except FileNotFoundError:
    raise UserError(
      f"{path} is missing: name the folder of a run, the --workdir of a jaxspeed.train."
    ) from None
  except (OSError, ValueError) as error:
    raise UserError(f"{path} cannot be read as a config ({error}).") from None
  if not isinstance(loaded, dict):
    raise UserError(f"{path} holds no config: expected a JSON object.")
  return loaded


def _without_paths_to_code(config: ConfigDict) -> ConfigDict:
  """A copy in which the fields of `NOT_STORED` are empty."""
  config = config.copy_and_resolve_references()
  for name in NOT_STORED:
    if name in config:
      config[name] = ""
  return config


def _tuples(value: Any) -> Any:
  if isinstance(value, dict):
    return {k: _tuples(v) for k, v in value.items()}
  return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def differences(old: ConfigDict, new: ConfigDict) -> list[str]:
  """Lines 'field: old -> new' for the fields that differ and may change a result."""
  before, after = dict(leaves(old)), dict(leaves(new))
  rows = []
  for name in sorted(before.keys() | after.keys()):
    if name.startswith(PLACES):
      continue
    a, b = before.get(name, "absent"), after.get(name, "absent")
    if a != b:
      rows.append(f"config.{name}: {_short(a)} -> {_short(b)}")
  return rows


def _short(value: Any) -> str:
  """A value as text, cut short if long."""
  text = str(value)
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def listed(rows: list[str]) -> str:
  """The first few rows of `differences` and the number of the rest, for a message."""
  more = f"; and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
  return "; ".join(rows[:_LISTED]) + more
