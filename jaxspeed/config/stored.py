"""A config as a run's folder stores it: JSON, its leaves, and the differences of two."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.errors import UserError
from jaxspeed.files import write_atomically

# Fields that say where a run reads and writes and how it is watched, and cannot change its result.
PLACES = (
  "data.path",
  "data.copies",
  "data.cache",
  "compile_cache",
  "checkpoint",
  "allreduce.group_mb",
  "watchdog_seconds",
  "heartbeat_seconds",
  "records",
  "cost_per_hour",
)

# Fields that are not stored, and not believed where a config.json holds them: who gives somebody a
# run's folder could name programs to run. They come from the command line or the environment.
NOT_STORED = ("compile_cache",)


def leaves(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Pairs of dotted field name and value, depth first, names sorted."""
  for name in sorted(config):
    value = config[name]
    if isinstance(value, ConfigDict):
      yield from leaves(value, f"{prefix}{name}.")
    else:
      yield prefix + name, value


def to_dict(config: ConfigDict) -> dict[str, Any]:
  """A config as JSON stores it: nested dicts, tuples as lists, without `NOT_STORED`."""
  return json.loads(json.dumps(_without_paths_to_code(config).to_dict()))


def save(config: ConfigDict, path: pathlib.Path) -> None:
  """Writes a config as JSON, whole or not at all."""
  write_atomically(path, json.dumps(to_dict(config), indent=2) + "\n")


def load(path: pathlib.Path) -> ConfigDict:
  """Reads what `save` wrote.

  Raises:
    UserError: the file is missing or no JSON object.
  """
  try:
    loaded = json.loads(path.read_text())
  except FileNotFoundError:
    raise UserError(
      f"{path} is missing: --workdir must name the folder of a run of jaxspeed.train."
    ) from None
  except (OSError, ValueError) as error:
    raise UserError(f"{path} cannot be read as a config ({error}).") from None
  if not isinstance(loaded, dict):
    raise UserError(f"{path} holds no config: expected a JSON object.")
  return _without_paths_to_code(ConfigDict({k: _tuples(v) for k, v in loaded.items()}))


def _without_paths_to_code(config: ConfigDict) -> ConfigDict:
  """A copy with the fields that are not stored empty."""
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
  """Lines 'field: old -> new' for every field that may change a result and differs."""
  before, after = dict(leaves(old)), dict(leaves(new))
  rows = []
  for name in sorted(before.keys() | after.keys()):
    if name.startswith(PLACES):
      continue
    a, b = before.get(name, "absent"), after.get(name, "absent")
    if a != b:
      rows.append(f"config.{name}: {a} -> {b}")
  return rows
