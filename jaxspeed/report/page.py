"""The whole page: one HTML file without any address outside itself, from the template page.html."""

import collections
import datetime
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from jaxspeed.errors import printable
from jaxspeed.records.statistics import interval, interval_of_share, p_value_of_at_most
from jaxspeed.report import charts, classes, compare, head
from jaxspeed.report.compare import evaluated_images, image_sets, named_sets
from jaxspeed.report.curves import curves, mean_table, times
from jaxspeed.report.data import Group
from jaxspeed.report.head import changed, gaps, published_of
from jaxspeed.report.images import images
from jaxspeed.report.words import METRICS, duration, number, p_value, percent, points


def page(groups: Sequence[Group], *, now: datetime.datetime, refresh: float = 0.0) -> str:
  """The HTML of a report.

  Args:
    groups: the groups of runs, the best first.
    now: when the report is made.
    refresh: seconds after which a browser loads the page again; 0: never.
  """
  best, runs = groups[0], [run for group in groups for run in group.runs]
  alike = len({*image_sets(groups)}) == 1
  recipe, published = published_of(best.runs[0])
  run = next((run for run in runs if run.result), best.runs[0])
  sizes = dict.fromkeys((row.get("image_size"), row.get("batch_size")) for row in run.rows)
  lead = "The best" if alike else "The highest accuracy (not all on the same images)"
  return _template().render(
    name=str(best.runs[0].config.get("name", "run")),
    runs=runs,
    repeated=[run.folder for group in groups for run in group.repeated],
    states=collections.Counter(head.state_of(run) for run in runs if run.result is None),
    made=f"{now:%Y-%m-%d %H:%M}",
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
