"""result.json: what a run, or several runs that differ in their seeds, came to."""

import pathlib
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from jaxspeed.files import dump_json, read_json, to_json, write_atomically
from jaxspeed.records.statistics import interval, p_value_of_at_most

FILE = "result.json"

_Share = Annotated[float, Field(ge=0, le=1)]
# The sum of larger numbers may not be finite.
_Time = Annotated[float, Field(ge=0, le=1e100)]
_Count = Annotated[int, Field(ge=0)]


class Seconds(BaseModel):
  """The clocks of a run (`Clock.summary`).

  Attributes:
    to_target: DAWNBench's seconds to the end of the first epoch with at least config.target; None
      if the run did not reach it.
  """

  train: _Time
  dawn: _Time
  process: _Time
  compile: dict[str, _Time | None]
  to_target: _Time | None


class Best(BaseModel):
  """A run's best evaluation by `metric`, with its figures."""

  metric: str
  epoch: float
  step: Annotated[int, Field(ge=1)]
  top1: _Share | None = None
  top5: _Share | None = None
  macro_top1: _Share | None = None
  loss: float | None = None


class _Figures(BaseModel):
  """What a result has, and each run in a result of several."""

  seed: int
  top1: _Share
  top5: _Share | None  # None for five classes or fewer
  seconds: Seconds
  # `class_figures`; an earlier version wrote none.
  macro_top1: _Share | None = None
  ece: _Share | None = None
  # Number and share of the steps that float16 skipped, as their gradients overflowed.
  skipped_steps: dict[str, float] | None = None
  best: Best | None = None  # with checkpoint.keep_best
  stopped_by: Literal["target", "patience"] | None = None  # before its last step


class Result(_Figures):
  """The result of a run, or of several: means over those that have a figure.

  Attributes:
    evaluated_on: the images of the accuracies: the data set's evaluation images; images held out of
      a data set without any; or training images held out because of the config's `tune_on`.
    evaluated_weights: "average" or "live"; earlier versions did not store it.
    commit: that of a checkout, with "-dirty" if it was changed; None elsewhere.
    cost_usd: DAWNBench's: of `seconds.dawn` and `seconds.to_target`, with config.cost_per_hour.
    eval_images, eval_images_skipped, train_images_broken: images evaluated, left out, replaced.
    per_class, confusion: up to 1,000 and 100 classes; a text is a file of an earlier version.
    n: the number of runs; this and what follows only of several.
    mean, sd: mean and standard deviation (n - 1) of the accuracy config.target_metric.
    ci95: half the width of the 95 % interval of the mean, by Student's t.
    target: config.target.
    p_value: of the one-sided t-test of "the true mean is at most the target": small if it is above.
    reached: the number of runs that reached the target.
    seconds_min: the least of each of the seconds.
    runs: each run's figures, and what differs between the runs; a run's folder has the rest.
  """

  config: dict[str, Any]
  evaluated_on: Literal["test", "held-out", "validation"]
  evaluated_weights: str | None = None
  device: str
  versions: dict[str, str | None]
  commit: str | None
  command: str
  cost_usd: dict[str, float | None] | None = None
  eval_images: _Count | None = None
  eval_images_skipped: _Count | None = None
  train_images_broken: _Count | None = None
  per_class: dict[str, dict[str, float | None]] | None = None
  confusion: list[list[_Count]] | str | None = None
  n: int | None = None
  mean: float | None = None
  sd: float | None = None
  ci95: float | None = None
  target: float | None = None
  p_value: float | None = None
  reached: int | None = None
  seconds_min: Seconds | None = None
  runs: list[_Figures] | None = None


def images_of(evaluated_on: str) -> str:
  """The words for the evaluated images, one of `Result.evaluated_on`."""
  return "test images" if evaluated_on == "test" else "held-out images"


# What the runs of several have in common, unless it differs.
_SHARED = (
  *("evaluated_weights", "device", "versions", "commit", "command"),
  *("eval_images", "eval_images_skipped", "train_images_broken"),
)
# Figures whose mean over the runs that have them is the result's.
_MEANS = ("top1", "top5", "macro_top1", "ece", "skipped_steps", "seconds")


def result_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """The content of result.json, a `Result`, given a result of each run on the same images."""
  plain = [to_json(row) for row in rows]
  result = plain[0] if len(plain) == 1 else _summary(plain)
  if price := result["config"].get("cost_per_hour"):
    seconds = {name: result["seconds"][name] for name in ("dawn", "to_target")}
    result["cost_usd"] = {
      name: None if value is None else value / 3600 * price for name, value in seconds.items()
    }
  return result


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """The result of several runs, whose configs contain `target` and `target_metric`."""
  first = rows[0]
  target, metric = (first["config"][name] for name in ("target", "target_metric"))
  accuracies = [row[metric] for row in rows]
  mean, sd, ci95 = interval(accuracies)
  differing = [key for key in _SHARED if any(row.get(key) != first.get(key) for row in rows)]
  own = [*_Figures.model_fields, *differing]
  means = [name for name in _MEANS if any(name in row for row in rows)]
  kept = {key: first[key] for key in ("config", "seed", "evaluated_on", *_SHARED) if key in first}
  result = kept | {
    "config": first["config"] | {"runs": len(rows)},
    **{name: _over(statistics.fmean, [row.get(name) for row in rows]) for name in means},
    "n": len(rows),
    "mean": mean,
    "sd": sd,
    "ci95": ci95,
    "target": target,
    "p_value": p_value_of_at_most(accuracies, target),
    "reached": sum(row["seconds"]["to_target"] is not None for row in rows),
    "seconds_min": _over(min, [row["seconds"] for row in rows]),
    "runs": [{key: row[key] for key in own if key in row} for row in rows],
  }
  if all(row.get("per_class") is not None for row in rows):
    # `mean` keeps the numbers of images, which are the same in all runs, whole.
    result["per_class"] = _over(statistics.mean, [row["per_class"] for row in rows])
  return result


def _over(figure: Callable[[list[float]], float], values: Sequence[Any]) -> Any:
  """`figure` of the values that are not None, or of each part of objects; None without any."""
  known = [value for value in values if value is not None]
  if known and isinstance(known[0], Mapping):
    return {key: _over(figure, [each.get(key) for each in known]) for key in known[0]}
  return figure(known) if known else None


def write_result(workdir: pathlib.Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Writes `result_of` of the rows to a folder's result.json, and returns it."""
  result = result_of(rows)
  Result.model_validate(result)
  # Numbers in one line: a confusion matrix has a line for each class. JSON has no line breaks
  # inside strings.
  text = re.sub(r"\[\n[-+.\w\s,]+\]", _on_a_line, dump_json(result, indent=2))
  write_atomically(workdir / FILE, text + "\n")
  return result


def _on_a_line(match: re.Match[str]) -> str:
  return f"[{', '.join(match[0][1:-1].replace(',', ' ').split())}]"


def read_result(folder: pathlib.Path) -> dict[str, Any] | None:
  """The content of a finished run's result.json; None if the run is not finished.

  Raises:
    UserError: the file contains something else.
  """
  advice = "move it away, and the run's own command writes it again from the newest checkpoint"
  return read_json(folder / FILE, Result, advice)
