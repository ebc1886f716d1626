"""The result of a run: its row, result.json, and the pace of its epochs."""

import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jaxspeed.files import dump_json, read_json, write_atomically
from jaxspeed.records.provenance import commit, describe_device, versions
from jaxspeed.records.statistics import result_of

# Where the accuracies come from: the set's own evaluation images; a part that was held out of a set
# without such images; or, by the config's `tune_on`, training images that were held out.
EVALUATED_ON = ("test", "held-out", "validation")


def mean_pace(rows: Sequence[Mapping[str, Any]], *, examples: int) -> dict[str, float]:
  """images_per_second, images_per_second_per_device and data_wait of several epochs together.

  Args:
    rows: of epochs in a row, as `Records.epoch` takes them; those without a pace, whose last step
      an earlier start has made, are passed over.
    examples: seen before the first of them.

  Returns:
    Nothing where no row has a pace.
  """
  images = seconds = device_seconds = waited = 0.0
  for before, row in zip([examples, *(row["examples"] for row in rows)], rows, strict=False):
    if row.get("images_per_second"):
      # An epoch that was resumed within has been timed in part: its rate holds for all of it.
      took = (row["examples"] - before) / row["images_per_second"]
      images += row["examples"] - before
      seconds += took
      device_seconds += took * row["world"]
      waited += took * row["data_wait"]
  if not seconds:
    return {}
  return {
    "images_per_second": images / seconds,
    "images_per_second_per_device": images / device_seconds,
    "data_wait": waited / seconds,
  }


def result_row(
  *,
  config: Mapping[str, Any],
  evaluated_on: str,
  evaluated_weights: str,
  top1: float,
  top5: float | None,
  seconds: Mapping[str, Any],
  seed: int,
) -> dict[str, Any]:
  """The result of one run, with what was used to get it.

  Args:
    config: resolved.
    evaluated_on: the images that top1 and top5 are of, one of `EVALUATED_ON`.
    evaluated_weights: "average" or "live", as `Plan.evaluated_weights`.
    top1: fraction.
    top5: fraction; None for five classes or fewer.
    seconds: `Clock.summary`, and to_target: DAWNBench's seconds to the end of the first epoch with
      at least config.target; None for a run that did not reach it.
    seed: of the run.

  Raises:
    ValueError: `evaluated_on` is none of them.
  """
  if evaluated_on not in EVALUATED_ON:
    raise ValueError(f"evaluated_on is {evaluated_on!r}, not one of {EVALUATED_ON}")
  return {
    "config": config,
    "evaluated_on": evaluated_on,
    "evaluated_weights": evaluated_weights,
    "top1": top1,
    "top5": top5,
    "seconds": seconds,
    "device": describe_device(),
    "versions": versions(),
    "seed": seed,
    "commit": commit(),
    "command": shlex.join([pathlib.Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
  }


def write_result(
  workdir: pathlib.Path, rows: Sequence[Mapping[str, Any]], *, cost_per_hour: float = 0.0
) -> dict[str, Any]:
  """Writes result.json, atomically, and returns what it holds: `result_of` of the same arguments.

  Args:
    workdir: a folder that exists.
    rows: as `result_of`.
    cost_per_hour: as `result_of`.

  Raises:
    ValueError: as `result_of`.
  """
  result = result_of(rows, cost_per_hour=cost_per_hour)
  write_atomically(workdir / "result.json", dump_json(result, indent=2) + "\n")
  return result


@dataclasses.dataclass
class _Seconds:
  train: float
  dawn: float
  process: float
  compile: dict[str, float | None]
  to_target: float | None


@dataclasses.dataclass
class _Skipped:
  number: float
  share: float


@dataclasses.dataclass
class _Result:
  config: dict[str, Any]
  evaluated_on: Literal["test", "held-out", "validation"]
  top1: float
  top5: float | None
  seconds: _Seconds
  device: str
  versions: dict[str, str | None]
  seed: int
  commit: str | None
  command: str
  evaluated_weights: str | None = None
  skipped_steps: _Skipped | None = None
  cost_usd: dict[str, float | None] | None = None
  eval_images: int | None = None
  eval_images_skipped: int | None = None
  train_images_broken: int | None = None


@dataclasses.dataclass
class _RunOfSeveral:
  seed: int
  top1: float
  top5: float | None
  seconds: _Seconds


@dataclasses.dataclass
class _Several(_Result):
  """The result of several runs; its fields have no defaults, as all of them are printed."""

  n: int = dataclasses.field(kw_only=True)
  mean: float = dataclasses.field(kw_only=True)
  sd: float = dataclasses.field(kw_only=True)
  ci95: float = dataclasses.field(kw_only=True)
  target: float = dataclasses.field(kw_only=True)
  p_value: float = dataclasses.field(kw_only=True)
  reached: int = dataclasses.field(kw_only=True)
  seconds_min: _Seconds = dataclasses.field(kw_only=True)
  runs: list[_RunOfSeveral] = dataclasses.field(kw_only=True)


def read_result(folder: pathlib.Path, *, several: bool = False) -> dict[str, Any] | None:
  """What result.json of a finished run holds; None for one that is not finished.

  Args:
    folder: of the run.
    several: whether it is one of several runs.

  Raises:
    UserError: it holds something else.
  """
  advice = "move it away, and the same command writes it anew from the newest checkpoint"
  return read_json(folder / "result.json", _Several if several else _Result, advice)
