"""A run's folder as the report reads it, and the groups of runs that differ only in their seed."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from jaxspeed.cluster.folder_lock import run_has_ended
from jaxspeed.config import stored
from jaxspeed.config.stored import PLACES, leaves
from jaxspeed.data.formats.class_names import STORED, stored_class_names
from jaxspeed.errors import UserError
from jaxspeed.files import TEMPORARY, dump_json, read_json
from jaxspeed.models import make  # noqa: F401  registers the models that a config names
from jaxspeed.planning.make import make_plan
from jaxspeed.records.arrays import Predictions, Thumbnails
from jaxspeed.records.results import read_result
from jaxspeed.records.writer import FILE as METRICS
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.checkpoint import FOLDER as CHECKPOINTS
from jaxspeed.run.checkpoint import load_manifest, steps_of
from jaxspeed.run.folder import CONFIG

# Folders of folders of runs: ROOT/SWEEP/JOB/run_000.
_DEEPEST = 4
_NO_RUNS = {"checkpoints", "tensorboard", "loggers", "launch", "profile"}
# Fields that do not make two runs different: those of `PLACES` but the data's, and the seeds.
_NOT_COMPARED = tuple({*PLACES, "seed", "runs", "given", "format"} - {"data.path"})
# Steps whose learning rate is drawn; of a run with more steps only the rows are.
_RATES, _MOST_STEPS = 240, 10_000_000


class _Fields(BaseModel, extra="allow"):
  """Fields of a config."""


class _OfData(_Fields):
  classes: Annotated[int, Field(ge=1, le=10_000_000)]


class _OfRecords(_Fields):
  thumbnails: int = 1


class _Config(_Fields):
  """The fields of a config.json that the report computes with; it shows the others as text."""

  data: _OfData
  name: str = "run"
  epochs: float = 0.0
  seed: int = 0
  target: Annotated[float, Field(ge=0, le=1)] = 0.0
  target_metric: Literal["top1", "top5"] = "top1"
  cost_per_hour: float = 0.0
  records: _OfRecords = _OfRecords()


@dataclasses.dataclass(frozen=True, eq=False)
class RunData:
  """What a run's folder says.

  Attributes:
    folder: the run's folder.
    config: its config.json, with the defaults of `_Config`.
    rows: the rows of its epochs so far.
    result: result.json; None while it is not finished.
    clock: the seconds of the clock's names at its newest checkpoint; {} without one.
    class_names: the names of its classes, or their numbers.
    predictions: those of the last evaluation; None without them.
    thumbnails: the images that it left; None without them.
    is_stopped: whether it has no result and its process has surely ended (`run_has_ended`).
    notes: sentences on files without which the report shows less.
    rates: steps and their learning rates; () where only the rows have rates.
  """

  folder: pathlib.Path
  config: dict[str, Any]
  rows: list[dict[str, Any]]
  result: dict[str, Any] | None
  clock: dict[str, float]
  class_names: tuple[str, ...]
  predictions: Predictions | None
  thumbnails: Thumbnails | None
  is_stopped: bool
  notes: tuple[str, ...] = ()
  rates: tuple[tuple[int, float], ...] = ()

  @property
  def metric(self) -> str:
    """The accuracy that the config's target is about: top1 or top5."""
    return self.config["target_metric"]

  @property
  def target(self) -> float:
    """The accuracy to reach; 0: none."""
    return self.config["target"]

  @property
  def seed(self) -> int:
    """The seed of the run."""
    return (self.result or self.config)["seed"]

  def accuracy(self, metric: str = "") -> float | None:
    """An accuracy: of the result, or of the newest epoch that has one; `metric` as default."""
    metric = metric or self.metric
    if self.result is not None:
      return self.result.get(metric)
    found = (row.get(f"eval_{metric}") for row in reversed(self.rows))
    return next((value for value in found if value is not None), None)

  @property
  def reached(self) -> dict[str, Any] | None:
    """The row of the first epoch that reached the target; None: no such row."""
    rows = (row for row in self.rows if (row.get(f"eval_{self.metric}") or 0.0) >= self.target)
    return next(rows, None) if self.target else None

  @property
  def seconds(self) -> dict[str, Any]:
    """The seconds of the result, or those known so far."""
    if self.result is not None:
      return self.result["seconds"]
    last, first = (self.rows or [{}])[-1], self.reached
    return {
      "train": last.get("train_seconds"),
      "dawn": last.get("dawn_seconds"),
      "process": self.clock.get("process"),
      "compile": {"wall": self.clock.get("compile")},
      "to_target": first["dawn_seconds"] if first else None,
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
  """Runs whose configs differ only in their seed.

  Attributes:
    name: what the report calls it.
    settings: the fields in which groups differ, as text, by dotted name.
    runs: the runs, at least one, each of another seed.
    metric: the accuracy by which all groups are compared: top1 or top5.
    repeated: runs of a seed that is among `runs`; they count nowhere.
    folder: the end of its first run's path that no other group has; "" where all names differ.
  """

  name: str
  settings: dict[str, str]
  runs: tuple[RunData, ...]
  metric: str
  repeated: tuple[RunData, ...] = ()
  folder: str = ""

  @functools.cached_property
  def counted(self) -> tuple[RunData, ...]:
    """The finished runs, or all as long as none has finished: means do not mix the two."""
    return tuple(run for run in self.runs if run.result) or self.runs

  @functools.cached_property
  def values(self) -> list[float]:
    """The accuracy of each run of `counted` that has one."""
    return [value for run in self.counted if (value := run.accuracy(self.metric)) is not None]

  @functools.cached_property
  def finished(self) -> list[float]:
    """The accuracy of each finished run, for tests of significance."""
    return self.values if self.counted[0].result else []

  @property
  def mean(self) -> float | None:
    """The mean accuracy; None without any."""
    return self.mean_of(self.metric)

  def mean_of(self, metric: str) -> float | None:
    """The mean of another accuracy; None without any."""
    return mean_of_known([run.accuracy(metric) for run in self.counted])

  def mean_seconds(self, name: str) -> float | None:
    """The mean of one of the seconds over the runs that have it."""
    return mean_of_known([run.seconds.get(name) for run in self.counted])


def mean_of_known(values: Sequence[float | None]) -> float | None:
  """The mean of the values that are not None; None without any."""
  known = [value for value in values if value is not None]
  return statistics.fmean(known) if known else None


def find_runs(path: pathlib.Path) -> list[pathlib.Path]:
  """The folders of runs at or below a path; a run of several seeds is that of each seed.

  Raises:
    UserError: there is none, or a folder cannot be read.
  """
  if not os.path.isdir(path):
    raise UserError(f"{path} is no folder: name a run's folder, or one with runs in it.")
  found: list[pathlib.Path] = []
  for name, folders, files in os.walk(path, onerror=_refuse, followlinks=True):
    folder = pathlib.Path(name)
    if CONFIG in files:
      seeds = sorted(each for each in folder.glob("run_*") if os.path.isfile(each / CONFIG))
      found += seeds or [folder]
    is_end = CONFIG in files or len(folder.relative_to(path).parts) == _DEEPEST
    hidden = {each for each in folders if is_end or each.startswith((".", TEMPORARY))}
    folders[:] = sorted({*folders} - hidden - _NO_RUNS)
  if not found:
    raise UserError(f"{path} holds no run: name the folder that --workdir of a training named.")
  return found


def _refuse(error: OSError) -> None:
  raise UserError(
    f"{error.filename} cannot be read ({error.strerror or error}): make it readable, or name other "
    "folders."
  ) from None


def read_run(folder: pathlib.Path) -> RunData:
  """Reads a run's folder.

  Damaged thumbnails only lose their images.

  Raises:
    UserError: another file is damaged.
  """
  advice = "restore the file that train wrote, or leave the run out"
  config = read_json(folder / CONFIG, _Config, advice)
  if config is None:
    raise UserError(f"{folder / CONFIG} is missing: {advice}.")
  config = _Config.model_validate(config).model_dump()
  classes = config["data"]["classes"]
  is_named = os.path.lexists(folder / STORED)
  names = stored_class_names(folder, classes) if is_named else tuple(map(str, range(classes)))
  result = read_result(folder)
  predictions = Predictions.read(folder, classes) if result else None
  thumbnails, notes = None, []
  try:
    thumbnails = Thumbnails.read(folder, classes) if predictions else None
  except UserError as error:
    notes.append(str(error))
  if result is not None and not os.path.lexists(folder / METRICS):
    notes.append(f"{folder / METRICS} is missing: restore it, or the report goes without curves.")
  rows = read_metrics(folder)
  clock = {}
  with contextlib.suppress(IndexError, ValueError):  # there is no checkpoint, or a damaged one
    clock = load_manifest(folder / CHECKPOINTS / str(steps_of(folder)[-1]))["clock"]
  stopped = result is None and run_has_ended(folder)
  return RunData(
    folder,
    config,
    rows,
    result,
    clock,
    names,
    predictions,
    thumbnails,
    stopped,
    tuple(notes),
    _rates_of(folder, rows),
  )


def _rates_of(
  folder: pathlib.Path, rows: Sequence[Mapping[str, Any]]
) -> tuple[tuple[int, float], ...]:
  """Some steps and their learning rates in a run's plan, if the plan has the rates of its rows.

  It has not with a schedule of the user's own, or by another version's rules.
  """
  ends = {row["step"]: row["learning_rate"] for row in rows if row.get("learning_rate") is not None}
  try:
    plan = make_plan(stored.load(folder / CONFIG))
    if plan.total_steps > _MOST_STEPS:
      return ()
    rates = plan.table["learning_rate"]
    planned = [rates[step - 1] for step in ends]
  except (UserError, IndexError, TypeError):
    return ()
  if not ends or not np.allclose(planned, [*ends.values()], rtol=1e-9, atol=1e-12):
    return ()
  steps = np.unique(np.linspace(1, max(ends), _RATES, dtype=int)).tolist()
  return tuple((step, float(rates[step - 1])) for step in steps)


def groups_of(runs: Sequence[RunData]) -> list[Group]:
  """The groups of runs, the best mean accuracy first, those without any last.

  The accuracy is the first run's `metric`. Runs of other data or classes are no seeds of one group.
  """
  flat = [
    {name: value for name, value in leaves(run.config) if not name.startswith(_NOT_COMPARED)}
    | {"class names": run.class_names}
    for run in runs
  ]
  keys = [dump_json(each, sort_keys=True) for each in flat]
  names = sorted({name for each in flat for name in each})
  differing = [name for name in names if len({dump_json(each.get(name)) for each in flat}) > 1]
  found = []
  for key in dict.fromkeys(keys):
    members = tuple(run for run, own in zip(runs, keys, strict=True) if own == key)
    one = flat[keys.index(key)]
    settings = {name: _shown(one.get(name, "–")) for name in differing}
    once = _once(members)
    repeated = tuple(run for run in members if run not in once)
    name = _name_of(members, settings)
    found.append(Group(name, settings, once, runs[0].metric, repeated))
  if len({group.name for group in found}) < len(found):
    found = _with_folders(found)
  return sorted(found, key=lambda group: (group.mean is None, -(group.mean or 0.0)))


def _with_folders(groups: Sequence[Group]) -> list[Group]:
  """Groups with their folders in their names: the shortest ends of the paths that all differ."""
  paths = [pathlib.Path(os.path.realpath(group.runs[0].folder)).parts for group in groups]
  lengths = range(1, max(map(len, paths)) + 1)
  length = next(k for k in lengths if len({path[-k:] for path in paths}) == len(paths))
  folders = [str(pathlib.Path(*path[-length:])) for path in paths]
  return [
    dataclasses.replace(group, name=f"{group.name} ({folder})", folder=folder)
    for group, folder in zip(groups, folders, strict=True)
  ]


def _once(runs: Sequence[RunData]) -> tuple[RunData, ...]:
  """One run of each seed: a finished one if there is one, and the last of several."""
  by_seed = {run.seed: run for run in sorted(runs, key=lambda run: run.result is not None)}
  return tuple(run for run in runs if by_seed[run.seed] is run)


def _name_of(runs: Sequence[RunData], settings: Mapping[str, str]) -> str:
  """The fields that differ, the recipe's name first; that alone if none does.

  A field goes by its last word where no other one that differs has the same.
  """
  own = {name: value for name, value in settings.items() if name != "name"}
  last = [name.rpartition(".")[2] for name in own]
  short = {name: end if last.count(end) == 1 else name for name, end in zip(own, last, strict=True)}
  words = [f"{short[name]}={value}" for name, value in list(own.items())[:4]]
  recipe = runs[0].config["name"]
  return ", ".join([recipe] * ("name" in settings or not words) + words)


def _shown(value: Any) -> str:
  shown = value if isinstance(value, str) else dump_json(value, ensure_ascii=False)
  return shown if len(shown) <= 60 else f"{shown[:60]}..."
