"""Groups of runs beside each other: a table of what differs, parallel lines, tests of means.

Accuracies on other images cannot be compared: `image_sets` tells the groups apart by theirs.
"""

import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxspeed.errors import some
from jaxspeed.records.results import images_of
from jaxspeed.records.statistics import interval, p_value_of_equal_means
from jaxspeed.report.charts import COLOURS, Axes
from jaxspeed.report.data import Group, RunData
from jaxspeed.report.head import mean_duration
from jaxspeed.report.words import METRICS, Cell, Table, number, p_value, percent, points

# Sets of images that are named, and settings named of each.
_MOST_SETS, _MOST_NAMES = 4, 3
WIDTH, HEIGHT, SIDE, TOP = 900, 260, 60, 30
# Columns of the table and axes of the parallel lines; groups in the lines.
MOST_FIELDS, MOST_LINES = 12, 60


def verdict(first: Group, second: Group) -> str:
  """Whether the best group is better than the next by more than chance."""
  if first.mean is None or second.mean is None:
    return "Not enough runs have an accuracy to compare."
  words = f"{first.name} is {points(first.mean - second.mean)} above {second.name}"
  if len(first.finished) < 2 or len(second.finished) < 2:
    return f"{words}. With one seed each, chance may be the reason."
  p = p_value_of_equal_means(first.finished, second.finished)
  verdict = "seeds alone may explain it" if p > 0.05 else "seeds alone hardly explain it"
  return f"{words}: {verdict} ({p_value(p)}, Welch’s two-sided t-test of equal means)."


def table_of(groups: Sequence[Group], sets: Sequence[int]) -> Table:
  """A row for each group; p only on the images of the first one, by the numbers of the sets."""
  fields = [*groups[0].settings][:MOST_FIELDS]
  metric = METRICS[groups[0].metric]
  heads = ["", *["folder"] * bool(groups[0].folder), *fields, "seeds", metric, "95 % interval"]
  heads += ["p against the best", "training", "to the target"]
  rows = []
  for place, group in enumerate(groups):
    settings = [*[group.folder] * bool(group.folder), *(group.settings[name] for name in fields)]
    figures = [str(len(group.runs)), percent(group.mean), _width(group)]
    figures.append(_p(groups[0], group) if sets[place] == sets[0] else "–")
    seconds = [mean_duration(group, name) for name in ("train", "to_target")]
    key = Cell(str(place + 1), key=place % COLOURS)
    rows.append([key, *map(Cell, [*settings, *figures, *seconds])])
  return Table(heads, rows)


def _width(group: Group) -> str:
  if len(group.finished) > 1:
    return f"± {points(interval(group.finished)[2])}"
  unfinished = [run for run in group.runs if run.result is None]
  if not unfinished:
    return "–"
  return "stopped" if all(run.is_stopped for run in unfinished) else "running"


def _p(best: Group, group: Group) -> str:
  if group is best or min(len(best.finished), len(group.finished)) < 2:
    return "–"
  return p_value(p_value_of_equal_means(best.finished, group.finished)).removeprefix("p = ")


class Parallel(NamedTuple):
  """Groups as lines through their values to their accuracy.

  Attributes:
    values: each value's place from 0 to 1 on an axis for each field that differs, and for the
      accuracy.
    axes: the places in pixels.
    lines: the points of each group's line.
  """

  values: dict[str, dict[str, float]]
  axes: Axes
  lines: list[str]


def parallel(groups: Sequence[Group]) -> Parallel | None:
  """Groups with an accuracy as lines; None for fewer than three groups or two such fields."""
  fields = [*groups[0].settings][:MOST_FIELDS] if groups else []
  if len(groups) < 3 or len(fields) < 2:
    return None
  values = {name: _places([group.settings[name] for group in groups]) for name in fields}
  means = [group.mean or 0.0 for group in groups]
  low, high = min(means), max(means)
  axes = Axes((0, len(fields)), (0, 1), (SIDE, WIDTH - SIDE, TOP, HEIGHT - TOP))
  lines = []
  for group, mean in zip(groups, means, strict=True):
    ends = [values[name][group.settings[name]] for name in fields]
    ends.append((mean - low) / (high - low) if high > low else 0.5)
    lines.append(axes.points(range(len(ends)), ends))
  values[METRICS[groups[0].metric]] = {percent(low): 0.0, percent(high): 1.0}
  return Parallel(values, axes, lines)


def _places(values: Sequence[str]) -> dict[str, float]:
  """Each value's place on an axis from 0 to 1: numbers in their order, evenly spaced."""
  distinct = sorted(set(values), key=lambda text: (_number(text) is None, _number(text) or 0, text))
  return {text: i / max(len(distinct) - 1, 1) for i, text in enumerate(distinct)}


def _number(text: str) -> float | None:
  try:
    return float(text)
  except ValueError:
    return None


def labels(places: dict[str, float]) -> list[tuple[str, float]]:
  """The labels of an axis, and their places on it."""
  ends = [(text, share) for text, share in places.items() if len(places) <= 8 or share in (0, 1)]
  shown = [text if _number(text) is None else number(_number(text)) for text, _ in ends]
  short = [text if len(text) <= 16 else f"{text[:15]}…" for text in shown]
  return [(text, share) for text, (_, share) in zip(short, ends, strict=True)]


def image_sets(groups: Sequence[Group]) -> list[int]:
  """The number of each group's evaluation set, from 0; the same one where no known fact differs."""
  sets: list[dict[str, Any]] = []
  numbers = []
  for group in groups:
    own = _facts(group.counted[0])
    fits = (
      n for n, one in enumerate(sets) if all(one.get(key, own[key]) == own[key] for key in own)
    )
    place = next(fits, len(sets))
    if place == len(sets):
      sets.append({})
    sets[place] |= own
    numbers.append(place)
  return numbers


def named_sets(groups: Sequence[Group], numbers: Sequence[int]) -> str:
  """The sets in words, if there are several of them; "" otherwise."""
  if len({*numbers}) < 2:
    return ""
  parts = []
  for place in range(min(max(numbers) + 1, _MOST_SETS)):
    members = [group for group, own in zip(groups, numbers, strict=True) if own == place]
    names = some([group.name for group in members], _MOST_NAMES)
    parts.append(f"{names}: {_in_words(members[0].counted[0])}")
  parts += ["..."] * (max(numbers) >= _MOST_SETS)
  return "; ".join(parts)


def evaluated_images(run: RunData) -> int:
  """The number of images in a run's accuracies; 0 if unknown."""
  if run.predictions is not None:
    return len(run.predictions.label)
  rows = [row["eval_images"] for row in run.rows if row.get("eval_images")]
  return rows[-1] if rows else 0


def _facts(run: RunData) -> dict[str, Any]:
  """What is known of the images that a run was evaluated on."""
  facts: dict[str, Any] = {"class names": run.class_names}
  if images := evaluated_images(run):
    facts["images"] = images
  if run.result is not None:
    facts["split"] = run.result["evaluated_on"]
  if run.predictions is not None:
    facts["labels"] = zlib.crc32(run.predictions.label.tobytes())
    names = run.predictions.names
    # Resized copies have other endings, and their shards other places.
    if names and ", byte " not in names[0]:
      stems = "\0".join(os.path.splitext(name)[0] for name in names)
      facts["names"] = zlib.crc32(os.fsencode(stems))
  return facts


def _in_words(run: RunData) -> str:
  images, data = evaluated_images(run), run.config["data"]
  kind = images_of(run.result["evaluated_on"]) if run.result else "evaluation images"
  count = f"{images:,} " if images else ""
  where = data.get("path") or data.get("name")
  of = f" of {where}" if where else ""
  return f"{count}{kind}{of}, {len(run.class_names):,} classes"
