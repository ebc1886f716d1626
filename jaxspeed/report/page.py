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
from jaxspeed.records import statistics
from jaxspeed.report import charts, classes, compare, curves, head, images, words
from jaxspeed.report.data import Group


def page(groups: Sequence[Group], *, now: datetime.datetime, refresh: float = 0.0) -> str:
  """The HTML of a report.

  Args:
    groups: the groups of runs, the best first.
    now: when the report is made.
    refresh: seconds after which a browser loads the page again; 0: never.
  """
  best, runs = groups[0], [run for group in groups for run in group.runs]
  alike = len({*compare.image_sets(groups)}) == 1
  recipe, published = head.published_of(best.runs[0])
  run = next((run for run in runs if run.result), best.runs[0])
  sizes = dict.fromkeys((row.get("image_size"), row.get("batch_size")) for row in run.rows)
  lead = "The best" if alike else "The highest accuracy (not all on the same images)"
  return _template().render(
    name=best.runs[0].config["name"],
    runs=runs,
    repeated=[run.folder for group in groups for run in group.repeated],
    states=collections.Counter(head.state_of(run) for run in runs if run.result is None),
    made=f"{now:%Y-%m-%d %H:%M}",
    lead=f"{lead}: {best.name}" if len(groups) > 1 else "",
    best=best,
    groups=groups,
    curves=curves.curves(groups),
    times=curves.times(best),
    gaps=head.gaps(best),
    recipe=recipe,
    published=published,
    changed=head.changed(best.runs[0]),
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
  names = {**vars(words), "images": images.images, "mean_table": curves.mean_table}
  names |= {"charts": charts, "classes": classes, "compare": compare, "head": head}
  return environment.get_template("page.html", globals=names | {"statistics": statistics})


def _shown(value: Any) -> Any:
  """A value as the page shows it: control characters as escapes, places to hundredths."""
  if isinstance(value, float):
    return f"{round(value, 2):g}" if abs(value) < 1e5 else f"{value:.0f}"
  return value if isinstance(value, markupsafe.Markup | int) else printable(str(value))
