"""A config as a run's folder stores it: JSON, its leaves, and the differences of two."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from jaxspeed.config import checks
from jaxspeed.errors import UserError
from jaxspeed.files import dump_json, load_json, parse_json, write_atomically

# config.json and the manifests of checkpoints hold it. It rises when a version can no longer use
# what an earlier one wrote.
FORMAT = 1
# Differences of two configs that a sentence lists.
_LISTED = 5
# Characters of a value in such a list.
_SHOWN = 80
# Fields that say where a run reads and writes and how it is watched, and cannot change its result.
PLACES = (
  "data.path",
  "data.copies",
  "data.cache",
  "data.max_broken",
  "data.read_threads",
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
  return parse_json(dump_json(_without_paths_to_code(config).to_dict()))


def save(config: ConfigDict, path: pathlib.Path) -> None:
  """Writes a config and `FORMAT` as JSON, whole or not at all."""
  write_atomically(path, dump_json({"format": FORMAT} | to_dict(config), indent=2) + "\n")


def load(path: pathlib.Path) -> ConfigDict:
  """Reads what `save` wrote, and checks it.

  Raises:
    UserError: the file is missing, is no JSON, is of another format, or holds no config that a run
      can have.
  """
  if os.path.exists(path) and not os.path.isfile(path):
    raise UserError(
      f"{path} is no file: --workdir must name the folder of a run of jaxspeed.train."
    )
  try:
    loaded = load_json(path)
  except FileNotFoundError:
    raise UserError(
      f"{path} is missing: --workdir must name the folder of a run of jaxspeed.train."
    ) from None
  except (OSError, ValueError) as error:
    raise UserError(f"{path} cannot be read as a config ({error}).") from None
  if not isinstance(loaded, dict):
    raise UserError(f"{path} holds no config: expected a JSON object.")
  known = "format" in loaded
  if known and (loaded["format"] != FORMAT or type(loaded["format"]) is not int):
    raise UserError(
      f"{path} is of format {ascii(loaded['format'])[:_SHOWN]}, and this version of jaxspeed reads "
      f"{FORMAT}: use the version that trained the run, or train again in another --workdir."
    )
  loaded.pop("format", None)
  values = {name: _tuples(value) for name, value in loaded.items()}
  checks.check(values, source=str(path))
  if not known:
    raise UserError(
      f"{path} has no format, which jaxspeed.train writes: restore the file that train wrote, or "
      "train again in another --workdir."
    )
  return _without_paths_to_code(ConfigDict(values))


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
      rows.append(f"config.{name}: {_short(a)} -> {_short(b)}")
  return rows


def _short(value: Any) -> str:
  """A value as text, of a long one its beginning."""
  text = str(value)
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def listed(rows: list[str]) -> str:
  """The first few of `differences` and the number of the rest, for a sentence."""
  more = f"; and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
  return "; ".join(rows[:_LISTED]) + more
