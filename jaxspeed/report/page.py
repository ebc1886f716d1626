"""The whole page: one HTML file without any address outside itself, from the template page.html."""

import collections
import datetime
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from jaxspeed.errors import plural, printable
from jaxspeed.records.statistics import interval, interval_of_share, p_value_of_at_most
from jaxspeed.report import charts, classes, compare, head
from jaxspeed.report.curves import curves
from jaxspeed.report.data import Group
from jaxspeed.report.evaluated import evaluated_images, image_sets, named_sets
from jaxspeed.report.gaps import gaps
from jaxspeed.report.head import changed, published_of, state_of
from jaxspeed.report.images import images
from jaxspeed.report.time_bar import mean_table, times
from jaxspeed.report.words import METRICS, duration, number, p_value, percent, points


def page(groups: Sequence[Group], *, now: datetime.datetime, refresh: float = 0.0) -> str:
  """The HTML of a report.

  Args:
    groups: the groups of runs, the best first.
    now: when the report is made.
    refresh: seconds after which a browser loads the page again; 0: never.
  """
  best = groups[0]
  alike = len({*image_sets(groups)}) == 1
  recipe, published = published_of(best.runs[0])
  run = next((run for group in groups for run in group.runs if run.result), best.runs[0])
  sizes = dict.fromkeys((row.get("image_size"), row.get("batch_size")) for row in run.rows)
  lead = "The best" if alike else "The highest accuracy (not all on the same images)"
  return _template().render(
    name=str(best.runs[0].config.get("name", "run")),
    title=_title(groups),
    subtitle=_subtitle(groups, now),
    repeated=_repeated(groups),
    lead=f"{lead}: {best.name}" if len(groups) > 1 else "",
    best=best,
    groups=groups,
    curves=curves(groups),
    times=times(best),
    gaps=gaps(best),
    recipe=recipe,
    published=published,
    changed=changed(best.runs[0]),
    run=run,
    phases=[*sizes][:8],
    refresh=f"{refresh:g}" if refresh else "",
  )


@functools.cache
def _template() -> jinja2.Template:
  """The template, in which every value is escaped and no name may be missing."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_shown,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  functions = (evaluated_images, image_sets, images, named_sets, mean_table)
  tests = (interval, interval_of_share, p_value_of_at_most)
  words = (duration, number, p_value, percent, points)
  names: dict[str, Any] = {each.__name__: each for each in (*functions, *tests, *words)}
  names |= {"charts": charts, "classes": classes, "compare": compare, "head": head}
  names["METRICS"] = METRICS
  names["as_published"] = functools.partial(duration, as_published=True)
  return environment.get_template("page.html", globals=names)


def _shown(value: Any) -> Any:
  """A value as the page shows it: control characters as escapes, places to hundredths."""
  if isinstance(value, float):
    return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{value:.0f}"
  return value if isinstance(value, markupsafe.Markup | int) else printable(str(value))


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


def _repeated(groups: Sequence[Group]) -> str:
  """The folders of runs that are left out, as another one has their settings and seed."""
  left = [str(run.folder) for group in groups for run in group.repeated]
  return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")


def _made_with(result: dict[str, Any]) -> list[str]:
  """Device, version of JAX and commit in words."""
  commit, jax = result["commit"] or "", result["versions"].get("jax")
  short = commit[:10] + "-dirty" * commit.endswith("-dirty")
  return [result["device"], f"jax {jax}" if jax else "", f"commit {short}" if short else ""]
