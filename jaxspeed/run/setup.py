"""What a run is set up with: data, resolved config, specification, feed, first weights."""

import dataclasses
import functools
import pathlib
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import read_owner
from jaxspeed.config import stored as stored_lib
from jaxspeed.data.formats.class_names import check_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.feeds.protocol import Feed, OpenData
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.feeds.stream import StreamFeed
from jaxspeed.models.pretrained import load_pretrained
from jaxspeed.planning.make import lay_out, make_plan
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import silent_console
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.finish import finished_result
from jaxspeed.steps.losses import has_top5
from jaxspeed.steps.spec import TrainSpec, make_train_spec
from jaxspeed.steps.state import TrainState

# By `config.data.feed`.
FEEDS: dict[str, type[Feed]] = {
  "resident": ResidentFeed,
  "stream": StreamFeed,
}

# Fields that describe a recipe's own data set, where the command line does not set them: own
# arrays decide both, images on disk their classes.
FOLLOWING = frozenset({"data.classes", "data.image_size"})


@dataclasses.dataclass(frozen=True)
class Setup:
  """What the runs of a call of `train` are made from.

  Attributes:
    config: resolved, to which the run's folder is pinned.
    data: of the config, open.
    finished: what result.json holds, where no more steps are needed.
  """

  config: ConfigDict
  data: OpenData
  finished: dict[str, Any] | None

  @functools.cached_property
  def spec(self) -> TrainSpec:
    """What is trained on all devices, with the one plan of the runs."""
    mesh = mesh_lib.make_mesh()
    return make_train_spec(self.config, plan_of(self.config, self.data, devices=mesh.size), mesh)


def set_up(
  config: ConfigDict,
  folder: pathlib.Path,
  incarnation: int,
  *,
  clock: Clock,
  console: Console,
  given: Collection[str] = (),
) -> Setup:
  """Opens the data of a config and pins the run's folder to it. All processes must call it.

  Args:
    config: not yet resolved.
    folder: of the run, taken by process 0.
    incarnation: which start of the run this is.
    clock: of the run.
    console: where the reading of headers is shown.
    given: names of fields that the command line sets, which the data do not overrule.

  Raises:
    UserError: as `open_data`, `pin_config` and `finished_result`; the processes do not see the same
      folder, or were not started alike.
  """
  with processes.all_or_none("opening the data"), clock.measure("load"):
    _ensure_shared(folder, incarnation)
    data = open_data(config, console, follow=FOLLOWING - set(given))
  resolved = resolve(config, data)
  with processes.all_or_none("the config"):
    if processes.is_primary():
      pin_config(folder, resolved)
      check_class_names(folder, data.class_names)
      read_metrics(folder)  # its damages, before the seconds that programs take
    _ensure_same(resolved)
  return Setup(resolved, data, finished_result(folder, resolved))


def feed_of(config: ConfigDict) -> type[Feed]:
  """The feed that `config.data.feed` names.

  Raises:
    UserError: there is no such feed.
  """
  name = config.data.feed
  if name not in FEEDS:
    raise UserError(f"config.data.feed={name!r}: choose one of {', '.join(FEEDS)}.")
  return FEEDS[name]


def open_data(
  config: ConfigDict,
  console: Console | None = None,
  *,
  follow: Collection[str] = (),
  phases: Sequence[Phase] | None = None,
) -> OpenData:
  """The set of a config, in memory or on disk, with a hold-out for evaluation where it tunes.

  Args:
    config: of which `data` and `tune_on` count, and the phases.
    console: where the reading of a million headers is shown; None: nowhere.
    follow: which of `FOLLOWING` the data may decide, whatever the config says (`resolve`).
    phases: of a stream, those whose images are wanted; None: all of the plan.

  Raises:
    UserError: as `feed_of`, and as the feed's `open_data`.
  """
  console = console or silent_console()
  data = feed_of(config).open_data(config, console, follow=follow, phases=phases)
  return dataclasses.replace(data, notes=(*_followed(config, data), *data.notes))


def as_data_decide(config: ConfigDict, data: OpenData) -> ConfigDict:
  """A copy of a config with the fields that the data decide (`FOLLOWING`)."""
  config = config.copy_and_resolve_references()
  config.data.update(data.decides)
  return config


def decided(config: ConfigDict, data: OpenData) -> list[str]:
  """A line on the fields of a recipe that do not hold for the data."""
  rows = [
    f"data.{name}={value} in place of the recipe's {config.data[name]}"
    for name, value in data.decides.items()
    if value != config.data[name]
  ]
  return [f"{data.decider}: {', '.join(rows)}"] if rows else []


def _followed(config: ConfigDict, data: OpenData) -> tuple[str, ...]:
  """Lines on what the data decide, and on what follows for the target."""
  lines, classes = decided(config, data), len(data.class_names)
  if config.target_metric == "top5" and not has_top5(classes):
    lines.append(
      f"there is no top-5 of {classes} classes, and no target is reached: "
      "--config.target_metric=top1 sets one of top-1"
    )
  return tuple(lines)


def plan_of(config: ConfigDict, data: OpenData, *, devices: int = 1) -> Plan:
  """The plan of a config with the images that there are."""
  train, evaluated = data.counts
  return make_plan(config, devices=devices, train_images=train, eval_images=evaluated)


def make_feed(data: OpenData, spec: TrainSpec) -> Feed:
  """The feed of a set; its programs are compiled, or begun to be."""
  return feed_of(spec.config)(data, spec)


def resolve(config: ConfigDict, data: OpenData) -> ConfigDict:
  """The config with what machine and data decide filled in, as the run's folder has it."""
  resolved = as_data_decide(config, data)
  resolved.precision = precision.resolve(config.precision, jax.devices()[0])
  train, evaluated = data.counts
  layout = lay_out(resolved, train_images=train, eval_images=evaluated)
  resolved.data.train_images = layout.train_images
  resolved.data.eval_images = layout.eval_images
  if not (len(config.data.mean) and len(config.data.std)):
    resolved.data.mean, resolved.data.std = data.channel_statistics()
  return resolved


def pin_config(folder: pathlib.Path, config: ConfigDict) -> None:
  """Takes a folder for a resolved config, or makes sure that it was taken for this one.

  Raises:
    UserError: the folder holds a run of another config; the message lists the differences.
  """
  path = folder / "config.json"
  if not path.exists():
    stored_lib.save(config, path)
    return
  stored = ConfigDict(stored_lib.to_dict(stored_lib.load(path)))
  rows = stored_lib.differences(stored, ConfigDict(stored_lib.to_dict(config)))
  if rows:
    raise UserError(
      f"{folder} holds a run of another config ({stored_lib.listed(rows)}): "
      f"choose another --workdir, or undo the changes to go on with that run."
    )


def _ensure_shared(folder: pathlib.Path, incarnation: int) -> None:
  """Makes sure that this process sees the folder that process 0 has taken."""
  owner = read_owner(folder)
  if owner is None or owner.incarnation != incarnation:
    raise UserError(
      f"{folder.absolute()} of {processes.whoami()} is not the folder of process 0: the "
      "--workdir of a run must lie on a disk that all its hosts share."
    )


def _ensure_same(resolved: ConfigDict) -> None:
  """Makes sure that all processes were started alike, on as many devices each."""
  fields = {
    name: value
    for name, value in stored_lib.leaves(resolved)
    if not name.startswith(stored_lib.PLACES)
  }
  for what, value in (
    ("another config or other data", zlib.crc32(repr(sorted(fields.items())).encode()) >> 1),
    ("another version of jax", zlib.crc32(jax.__version__.encode()) >> 1),
    ("another number of devices", jax.local_device_count()),
  ):
    values = processes.gather(value)
    if others := [number for number, other in enumerate(values) if other != values[0]]:
      raise UserError(f"process {others[0]} of the run has {what} than process 0: start all alike.")


def with_pretrained(state: TrainState, spec: TrainSpec) -> TrainState:
  """A first state with the weights of `config.pretrained`, where there are any."""
  variables = {"params": state.params, "batch_stats": state.batch_stats}
  loaded = load_pretrained(spec.config, variables)
  if loaded is variables:
    return state

  def place() -> dict[str, Any]:
    # From memory of its own: a CPU takes an array of NumPy's as it is, and donates it.
    return mesh_lib.replicate(jax.tree.map(np.copy, loaded), spec.mesh)

  return state.replace(
    **place(),
    average=state.average and place(),
    slow=state.slow and place(),
  )
