"""Sentences: how good, how fast, what is published, and what a report cannot show."""

import shlex
import statistics
from collections.abc import Sequence

from jaxspeed.config.recipe import Published, published_as
from jaxspeed.config.stored import PLACES
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.class_figures import MOST_CLASSES
from jaxspeed.report.data import Group, RunData, mean_of_known
from jaxspeed.report.words import METRICS, duration, number, percent, points

# The parts of `seconds.compile` in words.
_COMPILE = {
  "wall": "waited {}",
  "cold": "{} summed over threads",
  "cached": "{} for programs from the cache",
}


def still_running(group: Group) -> str:
  """How far runs without a result are, in words; "" if all have one."""
  running = [run for run in group.runs if run.result is None]
  if not running:
    return ""
  epochs = [run.rows[-1]["epoch"] if run.rows else 0 for run in running]
  of = number(running[0].config["epochs"])
  if len(group.runs) == 1:
    return f"{state_of(running[0])}: epoch {number(epochs[0])} of {of}"
  return f"{len(running)} of {len(group.runs)} runs have no result yet"


def state_of(run: RunData) -> str:
  """What a run without a result does, in words."""
  return "stopped without a result" if run.is_stopped else "still training"


def on_target(group: Group) -> str:
  """When the target was reached, in words; "" without one."""
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


def mean_duration(group: Group, name: str) -> str:
  """The mean of one of the seconds in words, and of how many runs, if not of all."""
  return _mean_of([run.seconds.get(name) for run in group.counted])


def _mean_of(seconds: Sequence[float | None]) -> str:
  known = len(seconds) - seconds.count(None)
  some = f" ({known} of {len(seconds)} runs)" if 0 < known < len(seconds) else ""
  return duration(mean_of_known(seconds)) + some


def compiling(group: Group) -> str:
  """The times of compilation in words, means over the runs that have them."""
  waits = [run.seconds.get("compile") or {} for run in group.counted]
  seconds = {key: [wait.get(key) for wait in waits] for key in _COMPILE}
  parts = [
    words.format(_mean_of(seconds[key]))
    for key, words in _COMPILE.items()
    if any(each is not None for each in seconds[key])
  ]
  return f"compiling: {', '.join(parts)}" if parts else ""


def cost(group: Group) -> str:
  """The mean cost of a run in words; "" without a price."""
  price, dawn = group.runs[0].config["cost_per_hour"], group.mean_seconds("dawn")
  if not price or dawn is None:
    return ""
  dollars, reached = dawn / 3600 * price, group.mean_seconds("to_target")
  to_target = "" if reached is None else f", ${reached / 3600 * price:.3g} to the target"
  each = " a run" if len(group.runs) > 1 else ""
  return f"cost{each}: ${dollars:.3g}{to_target} (${price:g} an hour)"


def calibration(group: Group) -> str:
  """The mean calibration error in words; "" if none is known."""
  errors = [run.result["ece"] for run in group.runs if run.result and run.result.get("ece")]
  return f"calibration error (ECE) {points(statistics.fmean(errors))}" if errors else ""


def published_of(run: RunData) -> tuple[str, Published]:
  """A run's recipe, and what is published of it: only of a shipped one."""
  name = run.config["name"]
  return name.replace("/", ":", 1), published_as(name)


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


def gaps(group: Group) -> list[str]:
  """What no run of a group has left."""
  by_run = [_of_run(run) for run in group.runs]
  return [line for line in by_run[0] if all(line in each for each in by_run)]


def _of_run(run: RunData) -> list[str]:
  images, predicted, ended = run.thumbnails, run.predictions, run.result is not None
  lacks = predicted is not None and images is None
  keeps = run.config["records"]["thumbnails"] > 0
  unnamed = keeps and not any(Thumbnails.FILE in note for note in run.notes)
  other = images is not None and predicted is not None and images.step != predicted.step
  found = {
    "Curves: metrics.jsonl has no whole row: no epoch has ended, or it was cut.": not run.rows,
    "Where the time went: the run has no checkpoint that can be read.": not run.clock,
    "Images and accuracy by class: they need result.json, written when a run ends.": not ended,
    f"Images and accuracy by class: {Predictions.FILE} is missing; older versions left none.": (
      ended and predicted is None
    ),
    "Images: config.records.thumbnails is 0.": lacks and not keeps,
    f"Images: {Thumbnails.FILE} is missing; older versions left none.": lacks and unnamed,
    f"Evaluated images: those in {Thumbnails.FILE} are of another evaluation.": other,
    f"Accuracy by class: it is shown up to {MOST_CLASSES:,} classes.": (
      predicted is not None and len(run.class_names) > MOST_CLASSES
    ),
  }
  return [*run.notes, *(line for line, is_so in found.items() if is_so)]
