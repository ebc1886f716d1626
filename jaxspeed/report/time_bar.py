"""Where the seconds of a run's process went."""

import statistics
from collections.abc import Sequence

from jaxspeed.report.data import Group, RunData
from jaxspeed.report.words import Cell, Table, duration, percent

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


def times(group: Group) -> list[tuple[RunData, dict[str, float]]]:
  """The runs of a group whose clock is known, with their parts."""
  return [(run, parts) for run in group.runs if (parts := parts_of(run))]


def mean_table(runs: Sequence[dict[str, float]], head: str) -> Table:
  """The means over runs of each part that took a while in one of them, and their shares."""
  means = {name: statistics.fmean(parts[name] for parts in runs) for name in runs[0]}
  total = sum(means.values()) or 1.0
  rows = [
    [Cell(name, key=place), Cell(duration(mean)), Cell(percent(mean / total, 1))]
    for place, (name, mean) in enumerate(means.items())
    if any(parts[name] >= 0.05 for parts in runs)
  ]
  return Table(["part of the process", head, "share"], rows)
