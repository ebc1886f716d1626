"""Where the seconds of a run's process went, as a bar."""

import statistics
from collections.abc import Sequence

from jaxspeed.report.data import Group, RunData
from jaxspeed.report.markup import Html, element, join, table
from jaxspeed.report.words import duration, percent

_WIDTH, _HEIGHT = 1000, 40
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


def time_bars(group: Group) -> Html:
  """A bar for each of the first runs of a group, with a table of the means over all of them."""
  known = {run: parts for run in group.runs if (parts := parts_of(run))}
  if not known:
    return Html("")
  drawn = list(known.items())[:_MOST_BARS]
  most = max(sum(parts.values()) for _, parts in drawn)
  bars = [_bar(run, parts, most, several=len(known) > 1) for run, parts in drawn]
  first = f": the first {len(drawn)} of {len(known)} runs" if len(drawn) < len(known) else ""
  some = f" of {len(known)} of {len(group.runs)} runs" if len(known) < len(group.runs) else ""
  return join(
    [
      element("h2", f"Where the time went{first}"),
      element("div", *bars),
      _table(list(known.values()), f"mean{some}" if len(group.runs) > 1 else "time"),
    ]
  )


def _bar(run: RunData, parts: dict[str, float], most: float, *, several: bool) -> Html:
  pieces, left = [], 0.0
  for number, (name, seconds) in enumerate(parts.items()):
    width = seconds / most * _WIDTH
    words = f"{name}: {duration(seconds)}"
    box = dict(x=left, y=0, width=width, height=_HEIGHT, class_=f"piece c{number}")
    pieces.append(element("rect", element("title", words), **box))
    left += width
  total = sum(parts.values())
  words = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items() if seconds)
  words = f"Seed {run.seed}, {duration(total)} in all: {words}."
  size = f"0 0 {_WIDTH} {_HEIGHT}"
  style = dict(viewBox=size, preserveAspectRatio="none", role="img", aria_label=words)
  bar = element("svg", element("title", words), *pieces, **style)
  name = f"seed {run.seed}, " if several else ""
  return element("figure", element("figcaption", f"{name}{duration(total)}"), bar, class_="bar")


def _table(runs: Sequence[dict[str, float]], head: str) -> Html:
  """The means over runs of each part that took a while in one of them, and their shares."""
  means = {name: statistics.fmean(parts[name] for parts in runs) for name in runs[0]}
  total, places = sum(means.values()), [*means]
  shown = [name for name in means if any(parts[name] >= 0.05 for parts in runs)]
  rows = [
    (
      join([element("i", class_=f"key c{places.index(name)}"), name]),
      duration(means[name]),
      percent(means[name] / total if total else 0.0, 1),
    )
    for name in shown
  ]
  heads = ("part of the process", head, "share")
  return element("div", table(heads, rows, class_="numbers"), class_="wide")
