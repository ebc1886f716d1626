"""The first screen: how good, how fast, how sure, and what is published."""

import shlex
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from jaxspeed.config.recipe import Published, published, shipped
from jaxspeed.config.stored import PLACES
from jaxspeed.errors import UserError, plural
from jaxspeed.records.statistics import interval, interval_of_share, p_value_of_at_most
from jaxspeed.report.data import Group, RunData
from jaxspeed.report.evaluated import evaluated_images
from jaxspeed.report.words import METRICS, duration, number, p_value, percent, points

# The parts of `seconds.compile` in words.
_COMPILE = {
  "wall": "waited {}",
  "cold": "{} summed over threads",
  "cached": "{} for programs from the cache",
}


class Tile(NamedTuple):
  """A box: its title, the figure to read first, and small lines below it."""

  title: str
  figure: str
  lines: list[str]


def tiles(group: Group) -> list[Tile]:
  """Boxes on a group of runs."""
  return [_how_good(group), _how_fast(group), _how_sure(group)]


def _tile(title: str, figure: str, *lines: str) -> Tile:
  return Tile(title, figure, [line for line in lines if line])


def _how_good(group: Group) -> Tile:
  run = group.runs[0]
  images = evaluated_images(run)
  on = f" of {images:,} {_split(run)} images" if images else ""
  mean = "mean " if len(group.values) > 1 else ""
  other = "top5" if group.metric == "top1" else "top1"
  others = [value for each in group.counted if (value := each.accuracy(other)) is not None]
  return _tile(
    "How good",
    percent(group.mean),
    f"{mean}{METRICS[group.metric]} accuracy{on}",
    f"{METRICS[other]} {percent(statistics.fmean(others))}" if others else "",
    _on_target(group),
    _still_running(group),
  )


def _split(run: RunData) -> str:
  """The evaluated images in a word."""
  return run.result["evaluated_on"] if run.result else "evaluation"


def _still_running(group: Group) -> str:
  running = [run for run in group.runs if run.result is None]
  if not running:
    return ""
  epochs = [run.rows[-1]["epoch"] if run.rows else 0 for run in running]
  of = number(running[0].config.get("epochs"))
  if len(group.runs) == 1:
    return f"{state_of(running[0])}: epoch {number(epochs[0])} of {of}"
  return f"{len(running)} of {len(group.runs)} runs have no result yet"


def state_of(run: RunData) -> str:
  """What a run without a result does, in words."""
  return "stopped without a result" if run.is_stopped else "still training"


def _on_target(group: Group) -> str:
  run = group.runs[0]
  if not run.target:
    return ""
  own = "" if run.metric == group.metric else f" {METRICS[run.metric]}"
  target, rows = percent(run.target) + own, [each.reached for each in group.counted]
  reached = [row for row in rows if row is not None]
  if not reached:
    return f"target {target}: not reached"
  if len(group.runs) > 1:
    mean = duration(statistics.fmean(row["dawn_seconds"] for row in reached))
    return f"target {target}: reached by {len(reached)} of {len(rows)}, after {mean} on average"
  row = reached[0]
  after = duration(row["dawn_seconds"])
  return f"target {target}: reached in epoch {number(row['epoch'])}, after {after}"


def _how_fast(group: Group) -> Tile:
  mean = "mean of the " if len(group.runs) > 1 else ""
  so_far = " so far" if any(run.result is None for run in group.counted) else ""
  return _tile(
    "How fast",
    mean_duration(group, "train"),
    f"{mean}training clock{so_far}: training and the last evaluation",
    f"DAWNBench's clock (without evaluation): {mean_duration(group, 'dawn')}",
    _compiling(group),
    f"whole run, from its start: {mean_duration(group, 'process')}",
    _cost(group),
  )


def mean_duration(group: Group, name: str) -> str:
  """The mean of one of the seconds in words, and of how many runs, if not of all."""
  return _mean_of([run.seconds.get(name) for run in group.counted])


def _mean_of(seconds: Sequence[float | None]) -> str:
  known = [each for each in seconds if each is not None]
  some = f" ({len(known)} of {len(seconds)} runs)" if 0 < len(known) < len(seconds) else ""
  return duration(statistics.fmean(known) if known else None) + some


def _compiling(group: Group) -> str:
  """The times of compilation in words, means over the runs that have them."""
  waits = [run.seconds.get("compile") or {} for run in group.counted]
  seconds = {key: [wait.get(key) for wait in waits] for key in _COMPILE}
  parts = [
    words.format(_mean_of(seconds[key]))
    for key, words in _COMPILE.items()
    if any(each is not None for each in seconds[key])
  ]
  return f"compiling: {', '.join(parts)}" if parts else ""


def _cost(group: Group) -> str:
  """The mean cost of a run in words; "" without a price."""
  price, dawn = group.runs[0].config.get("cost_per_hour", 0.0), group.mean_seconds("dawn")
  if not price or dawn is None:
    return ""
  cost, reached = dawn / 3600 * price, group.mean_seconds("to_target")
  to_target = "" if reached is None else f", ${reached / 3600 * price:.3g} to the target"
  each = " a run" if len(group.runs) > 1 else ""
  return f"cost{each}: ${cost:.3g}{to_target} (${price:g} an hour)"


def _how_sure(group: Group) -> Tile:
  values, run = group.finished, group.runs[0]
  if len(values) < 2:
    return _sure_of_one(group)
  mean, sd, width = interval(values)
  test = ""
  if run.target and run.metric == group.metric:
    p = p_value(p_value_of_at_most(values, run.target))
    test = f"{p} for “the true mean is at most {percent(run.target)}” (one-sided t-test)"
  images = evaluated_images(run)
  low, high = interval_of_share(mean, images) if images else (0.0, 0.0)
  return _tile(
    "How sure",
    f"± {points(width)}",
    f"95 % interval of the mean over {plural(len(values), 'seed')}: "
    f"{percent(max(mean - width, 0.0))} to {percent(min(mean + width, 1.0))}",
    f"on the same {images:,} images; other images: {percent(low, 1)} to {percent(high, 1)} (Wilson)"
    if images
    else "",
    f"standard deviation {points(sd)}; least {percent(min(values))}, most {percent(max(values))}",
    test,
    _calibration(group),
  )


def _sure_of_one(group: Group) -> Tile:
  """What one run says: how exact so many images are, and nothing on other seeds."""
  share, images = group.mean, evaluated_images(group.runs[0])
  if share is None or not images:
    return _tile("How sure", "–", "no accuracy yet")
  low, high = interval_of_share(share, images)
  return _tile(
    "How sure",
    f"{percent(low, 1)} – {percent(high, 1)}",
    f"95 % interval from {images:,} images (Wilson)",
    "one seed: how much seeds differ is unknown; --config.runs=5 trains five",
    _calibration(group),
  )


def _calibration(group: Group) -> str:
  errors = [run.result["ece"] for run in group.runs if run.result and run.result.get("ece")]
  return f"calibration error (ECE) {points(statistics.fmean(errors))}" if errors else ""


def published_of(run: RunData) -> tuple[str, Published]:
  """A run's recipe, and what is published of it: only of a shipped one.

  The name comes from a file, so it may select a recipe, but not a path.
  """
  name, _, variant = str(run.config.get("name", "")).partition("/")
  recipe = f"{name}:{variant}" if variant else name
  if name not in shipped():
    return recipe, Published()
  try:
    return recipe, published(name, variant or None)
  except UserError:
    return recipe, Published()


def changed(run: RunData) -> str:
  """The fields of the command line that may change a result, as what is published does not."""
  command = str(run.result["command"]) if run.result else ""
  try:
    words = shlex.split(command)
  except ValueError:  # of a call from Python, or changed by hand
    words = command.split()
  own = [word.removeprefix("--config.") for word in words if word.startswith("--config.")]
  kept = [each for each in own if not each.startswith((*PLACES, "runs=", "seed="))]
  return f"{', '.join(kept[:6])}{', ...' if len(kept) > 6 else ''}"
