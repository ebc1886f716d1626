"""Results of runs: a run's row, result.json, and the mean pace of its epochs."""

import dataclasses
import pathlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from jaxspeed.files import dump_json, read_json, write_atomically
from jaxspeed.records.provenance import commit, describe_device, versions
from jaxspeed.records.statistics import result_of

FILE = "result.json"
# Images of the accuracies: the data set's evaluation images; images held out of a data set without
# any; or training images held out because of the config's `tune_on`.
EVALUATED_ON = ("test", "held-out", "validation")


def mean_pace(rows: Sequence[Mapping[str, Any]], *, examples: int) -> dict[str, float]:
  """The means of images_per_second, images_per_second_per_device and data_wait over epochs.

  Args:
    rows: consecutive rows of `Records.epoch`; a row without a pace, of an epoch that an earlier
      process finished, is skipped. The means are empty if no row has a pace.
    examples: the number of images seen before the first row.
  """
  images = seconds = device_seconds = waited = 0.0
  for before, row in zip([examples, *(row["examples"] for row in rows)], rows, strict=False):
    if row.get("images_per_second"):
      # An epoch in which the run resumed was timed in part: its pace counts for all of it.
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
  command: str | None = None,
) -> dict[str, Any]:
  """The result of one run, with the device, versions, commit and command that produced it.

  Args:
    config: the resolved config.
    evaluated_on: the images that top1 and top5 refer to, one of `EVALUATED_ON`.
    evaluated_weights: "average" or "live", as in `Plan.evaluated_weights`.
    top1: the top-1 accuracy as a fraction.
    top5: the top-5 accuracy as a fraction; None for five classes or fewer.
    seconds: `Clock.summary`, and to_target: DAWNBench's seconds to the end of the first epoch with
      at least config.target; None if the run did not reach it.
    seed: the run's seed.
    command: the command or call that trained; None: this process's command line.

  Raises:
    ValueError: `evaluated_on` is not in `EVALUATED_ON`.
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
    "command": command or _command_line(),
  }


def _command_line() -> str:
  """The command line of this process, without the folders of Python and of `jaxspeed`."""
  words = sys.orig_argv
  if pathlib.Path((*words, "")[1]).name == "jaxspeed":  # Python runs the console script
    words = words[1:]
  return shlex.join([pathlib.Path(words[0]).name, *words[1:]])


def write_result(
  workdir: pathlib.Path, rows: Sequence[Mapping[str, Any]], *, cost_per_hour: float = 0.0
) -> dict[str, Any]:
  """Writes `result_of` of the same arguments to result.json, atomically, and returns it.

  Args:
    workdir: an existing folder.
    rows: as in `result_of`.
    cost_per_hour: as in `result_of`.

  Raises:
    ValueError: as in `result_of`.
  """
  result = result_of(rows, cost_per_hour=cost_per_hour)
  text = _ROW_OF_NUMBERS.sub(_on_a_line, dump_json(result, indent=2))
  write_atomically(workdir / FILE, text + "\n")
  return result


# No string matches: JSON has no line breaks inside one.
_ROW_OF_NUMBERS = re.compile(r"\[\n[-+.\w\s,]+\]")


def _on_a_line(match: re.Match[str]) -> str:
  """A list of numbers in one line: so a confusion matrix has a line for each class."""
  return f"[{', '.join(match[0][1:-1].replace(',', ' ').split())}]"


_Share = Annotated[float, Field(ge=0, le=1)]
# The sum of larger numbers may not be finite.
_Time = Annotated[float, Field(ge=0, le=1e100)]
_Count = Annotated[int, Field(ge=0)]


def _square(matrix: list[list[int]]) -> list[list[int]]:
  if any(len(row) != len(matrix) for row in matrix):
    raise ValueError("it is no square matrix")
  return matrix


_Matrix = Annotated[list[list[_Count]], AfterValidator(_square)]


@dataclasses.dataclass
class _Seconds:
  train: _Time
  dawn: _Time
  process: _Time
  compile: dict[str, _Time | None]
  to_target: _Time | None


@dataclasses.dataclass
class _Skipped:
  number: float
  share: float


@dataclasses.dataclass
class _OfClass:
  top1: _Share | None
  images: _Count


@dataclasses.dataclass
class _Best:
  metric: str
  epoch: float
  step: Annotated[int, Field(ge=1)]
  top1: _Share | None = None
  top5: _Share | None = None
  macro_top1: _Share | None = None
  loss: float | None = None


@dataclasses.dataclass
class _Result:
  config: dict[str, Any]
  evaluated_on: Literal["test", "held-out", "validation"]
  top1: _Share
  top5: _Share | None
  seconds: _Seconds
  device: str
  versions: dict[str, str | None]
  seed: int
  commit: str | None
  command: str
  evaluated_weights: str | None = None
  skipped_steps: _Skipped | None = None
  best: _Best | None = None
  stopped_by: Literal["target", "patience"] | None = None
  cost_usd: dict[str, float | None] | None = None
  eval_images: _Count | None = None
  eval_images_skipped: _Count | None = None
  train_images_broken: _Count | None = None
  macro_top1: _Share | None = None
  ece: _Share | None = None
  per_class: dict[str, _OfClass] | None = None
  confusion: _Matrix | str | None = None


@dataclasses.dataclass
class _RunOfSeveral:
  seed: int
  top1: _Share
  top5: _Share | None
  seconds: _Seconds
  macro_top1: _Share | None = None
  ece: _Share | None = None


@dataclasses.dataclass
class _Several(_Result):
  """The result of several runs; its fields have no defaults, since all of them are printed."""

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
  """The content of a finished run's result.json; None if the run is not finished.

  Args:
    folder: the run's folder.
    several: whether the result is one of several runs.

  Raises:
    UserError: the file contains something else.
  """
  advice = "move it away, and the run's own command writes it again from the newest checkpoint"
  return read_json(folder / FILE, _Several if several else _Result, advice)
