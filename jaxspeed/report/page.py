"""The whole page: one HTML file without any address outside itself."""

import collections
import datetime
import pathlib
from collections.abc import Sequence
from typing import Any

from jaxspeed.errors import plural
from jaxspeed.report.classes import classes
from jaxspeed.report.compare import comparison
from jaxspeed.report.curves import curves
from jaxspeed.report.data import Group
from jaxspeed.report.evaluated import image_sets
from jaxspeed.report.gaps import gaps
from jaxspeed.report.head import facts, state_of, tiles
from jaxspeed.report.images import images
from jaxspeed.report.markup import Html, element, join
from jaxspeed.report.time_bar import time_bars

# A browser loads nothing from anywhere, even if a name from a file were to become an element.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(groups: Sequence[Group], *, now: datetime.datetime, refresh: float = 0.0) -> str:
  """The HTML of a report.

  Args:
    groups: the groups of runs, the best first.
    now: when the report is made.
    refresh: seconds after which a browser loads the page again; 0: never.
  """
  best = groups[0]
  title = str(best.runs[0].config.get("name", "run"))
  several = len(groups) > 1
  alike = len({*image_sets(groups)}) == 1
  lead = "The best" if alike else "The highest accuracy (not all on the same images)"
  body = [
    element("h1", _title(groups)),
    element("p", _subtitle(groups, now), class_="quiet"),
    _repeated(groups),
    element("h2", f"{lead}: {best.name}") if several else "",
    tiles(best),
    comparison(groups),
    join([element("h2", "Curves"), drawn]) if (drawn := curves(groups)) else "",
    time_bars(best),
    images(best),
    classes(best),
    gaps(best),
    facts(groups),
    element("script", _file("page.js")),
  ]
  policy = element("meta", http_equiv="Content-Security-Policy", content=_POLICY)
  again = element("meta", http_equiv="refresh", content=f"{refresh:g}") if refresh else ""
  head = [
    element("meta", charset="utf-8"),
    policy,
    element("meta", name="viewport", content="width=device-width, initial-scale=1"),
    again,
    element("title", f"{title}: jaxspeed report"),
    element("style", _file("page.css")),
  ]
  content = join([element("head", *head), Html("\n"), element("body", *body)])
  return f"<!DOCTYPE html>\n{element('html', content, lang='en')}\n"


def _file(name: str) -> Html:
  """The text of a file beside this one."""
  return Html((pathlib.Path(__file__).parent / name).read_text(encoding="utf-8"))


def _title(groups: Sequence[Group]) -> str:
  names = dict.fromkeys(
    str(run.config.get("name", "run")) for group in groups for run in group.runs
  )
  runs = groups[0].runs
  if len(groups) > 1:
    return f"{', '.join([*names][:4])}: {len(groups)} settings"
  seeds = plural(len(runs), "seed") if len(runs) > 1 else f"seed {runs[0].seed}"
  return f"{', '.join(names)}, {seeds}"


def _subtitle(groups: Sequence[Group], now: datetime.datetime) -> str:
  runs = [run for group in groups for run in group.runs]
  result = next((run.result for run in runs if run.result), None)
  states = collections.Counter(state_of(run) for run in runs if run.result is None)
  parts = [
    *(f"{count} {state}" if len(runs) > 1 else state for state, count in states.items()),
    *(_made_with(result) if result else ()),
    plural(len(runs), "run") if len(runs) > 1 else "",
    f"report of {now:%Y-%m-%d %H:%M}",
  ]
  return " · ".join(part for part in parts if part)


def _repeated(groups: Sequence[Group]) -> Html:
  """A line on runs that are left out, as another one has their settings and seed; "" without."""
  left = [str(run.folder) for group in groups for run in group.repeated]
  if not left:
    return Html("")
  more = f" and {len(left) - 3} more" if len(left) > 3 else ""
  words = "A seed that was trained more than once with the same settings counts once; left out: "
  return element("p", f"{words}{', '.join(left[:3])}{more}.")


def _made_with(result: dict[str, Any]) -> list[str]:
  """Device, version of JAX and commit in words."""
  commit, jax = result["commit"] or "", result["versions"].get("jax")
  short = commit[:10] + "-dirty" * commit.endswith("-dirty")
  return [result["device"], f"jax {jax}" if jax else "", f"commit {short}" if short else ""]
