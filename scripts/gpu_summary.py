"""The files of a day on a GPU (`gpu_day.py`): the summary, and the file of each part.

This file imports the standard library alone until it writes, so that --table needs no packages.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import gpu_parts
import gpu_tables
from gpu_machine import Mistake

WHAT = "What a GPU had to tell; written by scripts/gpu_day.sh."
# The fields of the machine and of each part that are read again, with their types.
_MACHINE = {"device": str, "gpu": (str, type(None)), "versions": dict, "commit": (str, type(None))}
_ENTRY = {
  "title": str,
  "script": str,
  "arguments": list,
  "how": dict,
  "state": str,
  "reason": str,
}


def write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes JSON so that a reader finds the old or the new."""
  from jaxspeed.files import write_atomically

  write_atomically(path, json.dumps(content, indent=1) + "\n")


def read(out: pathlib.Path) -> dict[str, Any]:
  """What earlier calls kept in a folder: its summary, or one made of the parts' files without it.

  Returns:
    `toy`, `machine` and `parts`; {} if there is nothing.

  Raises:
    Mistake: the summary cannot be read, or is missing and the parts' files are of two machines.
  """
  path = out / "gpu_day.json"
  try:
    found = _load(path)
  except FileNotFoundError:
    return _made_of_parts(out)
  except (OSError, ValueError) as error:
    lack = (error.strerror if isinstance(error, OSError) else "") or str(error)
  else:
    if not (lack := _lack(found)):
      return dict(found)
  raise Mistake(
    f"{path} cannot be read ({lack}): delete it, and the next call makes it of the parts' files; "
    "or name another --out."
  )


def _load(path: pathlib.Path) -> Any:
  """The content of a file of JSON.

  Raises:
    OSError: it cannot be read.
    ValueError: it is no JSON; says why.
  """
  try:
    return json.loads(path.read_text("utf-8"))
  except UnicodeDecodeError:
    raise ValueError("it is no text in UTF-8") from None
  except json.JSONDecodeError as error:
    where = f"it is no JSON from line {error.lineno}, column {error.colno}"
    raise ValueError(where if error.doc.strip() else "it is empty") from None
  except RecursionError:
    raise ValueError("it is nested too deeply") from None


def _lack(summary: Any) -> str:
  """What a summary lacks; "" if it is whole."""
  fields = {"toy": bool, "machine": dict, "parts": dict}
  if lack := _lacking(summary, "", fields) or _lacking(summary["machine"], "machine.", _MACHINE):
    return lack
  entries = summary["parts"].items()
  lacks = (_lack_of_entry(entry, f"parts.{name}.") for name, entry in entries)
  return next(filter(None, lacks), "")


def _lack_of_entry(entry: Any, at: str) -> str:
  if lack := _lacking(entry, at, _ENTRY):
    return lack
  peers = entry["how"].get("peers", [])
  if not (isinstance(peers, list) and all(isinstance(peer, str) for peer in peers)):
    return f"{at}how.peers is no list of names"
  optional = {name: str for name in ("file", "log") if name in entry}
  return _lacking(entry, at, optional)


def _lacking(found: Any, at: str, fields: Mapping[str, Any]) -> str:
  """The first of the `fields` that is missing or of another type; "" if none is."""
  if not isinstance(found, dict):
    return f"{at.rstrip('.') or 'it'} is no JSON object"
  for name, kind in fields.items():
    if name not in found:
      return f"{at}{name} is missing"
    if not isinstance(found[name], kind):
      return f"{at}{name} has another type than gpu_day.py writes"
  return ""


def _made_of_parts(out: pathlib.Path) -> dict[str, Any]:
  """A summary of the whole files of parts; {} if there is none.

  Raises:
    Mistake: they are of two machines, or some of toy size.
  """
  summary: dict[str, Any] = {}
  first = ""
  for part in gpu_parts.PARTS:
    name = f"gpu_day/{part.name}.json"
    try:
      entry = dict(_load(out / name)["gpu_day"])
      machine, toy = entry.pop("machine"), entry.pop("toy")
      made = {"what": WHAT, "toy": toy, "machine": machine, "parts": {part.name: entry}}
    except (OSError, ValueError, LookupError, TypeError):
      continue
    entry["file"] = name
    if _lack(made) or gpu_tables.damage(out, entry):
      continue
    if not summary:
      summary, first = made, name
    elif (toy, machine["device"]) != (summary["toy"], summary["machine"]["device"]):
      raise Mistake(
        f"{out} has no gpu_day.json, and {first} has figures of {summary['machine']['device']}, "
        f"{name} of {machine['device']}: move the files of one away, or name another --out."
      )
    summary["parts"][part.name] = entry
  return summary
