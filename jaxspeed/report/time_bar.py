"""Where the seconds of a run's process went, as a bar."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from jaxspeed.report.data import Group, RunData
from jaxspeed.report.words import Cell, Table, duration, percent

_WIDTH = 1000
_MOST_BARS = 12
# Names of the clock, by what the report calls them. `compile_cold` and `compile_cached` are sums
# over threads inside `compile`.
_PARTS = {
  "load data": ("load",),
  "compile": ("compile",),
  "connect and wait for others": ("connect", "others"),
  "warm up, initialise, restore": ("warmup", "init", "restore"),
  "train": ("train",),
  "evaluate": ("validate", "final_validate"),
  "checkpoints": ("checkpoint",),
}
_REST = "start of Python, and the rest"


class Bar(NamedTuple):
  """A bar: its caption, itself in words, and the left end, width and words of each piece."""

  caption: str
  words: str
  pieces: list[tuple[float, float, str]]


class Times(NamedTuple):
  """Bars, which runs they are of if not of all, and a table of means."""

  some: str
  bars: list[Bar]
  table: Table


def parts_of(run: RunData) -> dict[str, float]:
  """The seconds of each part of a run's process, in order; {} if its clock is not known.

  Its checkpoint has them; what follows the checkpoint, and the imports before, are the rest.
  """
  if not run.clock:
    return {}
  named = {name: sum(run.clock.get(key, 0.0) for key in keys) for name, keys in _PARTS.items()}
  whole = run.result["seconds"]["process"] if run.result else run.clock["process"]
  # The clock of a resumed run has all its processes; its result counts them alike.
  rest = max(whole, run.clock["process"]) - sum(named.values())
  return {_REST: max(rest, 0.0), **named}


def time_bars(group: Group) -> Times | None:
  """A bar for each of the first runs of a group, with a table of the means over all of them."""
  known = {run: parts for run in group.runs if (parts := parts_of(run))}
  if not known:
    return None
  drawn = list(known.items())[:_MOST_BARS]
  most = max(sum(parts.values()) for _, parts in drawn)
  bars = [_bar(run, parts, most, several=len(known) > 1) for run, parts in drawn]
  first = f": the first {len(drawn)} of {len(known)} runs" if len(drawn) < len(known) else ""
  some = f" of {len(known)} of {len(group.runs)} runs" if len(known) < len(group.runs) else ""
  head = f"mean{some}" if len(group.runs) > 1 else "time"
  return Times(first, bars, _table(list(known.values()), head))


def _bar(run: RunData, parts: dict[str, float], most: float, *, several: bool) -> Bar:
  pieces, left = [], 0.0
  for name, seconds in parts.items():
    width = seconds / most * _WIDTH
    pieces.append((left, width, f"{name}: {duration(seconds)}"))
    left += width
  total = duration(sum(parts.values()))
  words = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items() if seconds)
  caption = f"seed {run.seed}, {total}" if several else total
  return Bar(caption, f"Seed {run.seed}, {total} in all: {words}.", pieces)


def _table(runs: Sequence[dict[str, float]], head: str) -> Table:
  """The means over runs of each part that took a while in one of them, and their shares."""
  means = {name: statistics.fmean(parts[name] for parts in runs) for name in runs[0]}
  total = sum(means.values()) or 1.0
  rows = [
    [Cell(name, key=place), Cell(duration(mean)), Cell(percent(mean / total, 1))]
    for place, (name, mean) in enumerate(means.items())
    if any(parts[name] >= 0.05 for parts in runs)
  ]
  return Table(["part of the process", head, "share"], rows)
