"""What a run needs before its first step: data, plan, resolved config, feed, first weights."""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.config import stored as stored_lib
from jaxspeed.data.disk.sets import ImageSets, open_sets
from jaxspeed.data.memory.arrays import Arrays, open_arrays
from jaxspeed.data.memory.statistics import channel_statistics
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.feeds.stream import StreamFeed
from jaxspeed.models.pretrained import load_pretrained
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.records.console import counting, silent_console
from jaxspeed.run.broken_images import check_headers
from jaxspeed.steps.losses import has_top5
from jaxspeed.steps.spec import Job
from jaxspeed.steps.state import TrainState

Feed = ResidentFeed | StreamFeed

# Fields that describe a recipe's own data set, where the command line does not set them: own
# arrays decide both, images on disk their classes.
FOLLOWING = frozenset({"data.classes", "data.image_size"})


def open_data(
  config: ConfigDict,
  console: Console | None = None,
  *,
  follow: Collection[str] = (),
  phases: Sequence[Phase] | None = None,
) -> Arrays | ImageSets:
  """The set of a config, in memory or on disk, with a hold-out for evaluation where it tunes.

  Args:
    config: of which `data` and `tune_on` count, and the phases.
    console: where the reading of a million headers is shown; None: nowhere.
    follow: which of `FOLLOWING` the data may decide, whatever the config says (`resolve`).
    phases: of a stream, those whose images are wanted; None: all of the plan.

  Raises:
    UserError: as `open_arrays`, `open_sets` and `check_headers`, or images in memory have another
      size than the config says.
  """
  data = config.data
  if data.feed == "stream":
    with counting(console or silent_console(), "reading headers") as show:
      wanted = make_plan(config).phases if phases is None else phases
      sets = open_sets(config, wanted, show, follow="data.classes" in follow)
    # Who asks for a phase evaluates.
    check_headers(sets, config, ("train", "eval") if phases is None else ("eval",))
    return dataclasses.replace(sets, notes=(*_followed(config, sets), *sets.notes))
  arrays = open_arrays(
    name=data.name,
    path=data.path,
    cache=data.cache,
    classes=data.classes,
    follow="data.classes" in follow,
    tune=config.tune_on == "validation",
  )
  height, width = arrays.train_images.shape[1:3]
  if height != width:
    raise UserError(
      f"the images of {data.path or data.name} have {height} x {width} pixels, and a recipe that "
      "trains from memory takes squares only: cut or resize them."
    )
  if height != data.image_size and not ("data.image_size" in follow and arrays.is_own):
    raise UserError(
      f"the images of {data.path or data.name} have {height} x {width} pixels but "
      f"config.data.image_size is {data.image_size}: set --config.data.image_size={height}."
    )
  return dataclasses.replace(arrays, notes=_followed(config, arrays))


def _facts(data: Arrays | ImageSets) -> dict[str, int]:
  """What the fields in `FOLLOWING` are for a set; images on disk have any size."""
  size = {"image_size": data.train_images.shape[1]} if isinstance(data, Arrays) else {}
  return size | {"classes": len(data.class_names)}


def as_data_decide(config: ConfigDict, data: Arrays | ImageSets) -> ConfigDict:
  """A copy of a config with the fields that the data decide (`FOLLOWING`)."""
  config = config.copy_and_resolve_references()
  config.data.update(_facts(data))
  return config


def decided(config: ConfigDict, data: Arrays | ImageSets) -> list[str]:
  """A line on the fields of a recipe that do not hold for the data."""
  rows = [
    f"data.{name}={value} in place of the recipe's {config.data[name]}"
    for name, value in _facts(data).items()
    if value != config.data[name]
  ]
  decider = "the arrays decide" if isinstance(data, Arrays) else "the data set decides"
  return [f"{decider}: {', '.join(rows)}"] if rows else []


def _followed(config: ConfigDict, data: Arrays | ImageSets) -> tuple[str, ...]:
  """Lines on what the data decide, and on what follows for the target."""
  lines, classes = decided(config, data), len(data.class_names)
  if config.target_metric == "top5" and not has_top5(classes):
    lines.append(
      f"there is no top-5 of {classes} classes, and no target is reached: "
      "--config.target_metric=top1 sets one of top-1"
    )
  return tuple(lines)


def plan_of(config: ConfigDict, data: Arrays | ImageSets, *, devices: int = 1) -> Plan:
  """The plan of a config with the images that there are."""
  if isinstance(data, Arrays):
    train, evaluated = len(data.train_labels), len(data.eval_labels)
    return make_plan(config, devices=devices, train_images=train, eval_images=evaluated)
  return make_plan(
    config, devices=devices, train_images=data.train_images, eval_images=data.eval_images
  )


def make_feed(data: Arrays | ImageSets, job: Job) -> Feed:
  """The feed of a set; its programs are compiled, or begun to be."""
  return ResidentFeed(data, job) if isinstance(data, Arrays) else StreamFeed(data, job)


def resolve(config: ConfigDict, data: Arrays | ImageSets) -> ConfigDict:
  """The config with what machine and data decide filled in, as the run's folder has it."""
  resolved = as_data_decide(config, data)
  resolved.precision = precision.resolve(config.precision, jax.devices()[0])
  plan = plan_of(resolved, data)
  resolved.data.train_images = plan.train_images
  resolved.data.eval_images = plan.eval_images
  if isinstance(data, Arrays) and not (len(config.data.mean) and len(config.data.std)):
    resolved.data.mean, resolved.data.std = channel_statistics(data.train_images)
  return resolved


def claim(folder: pathlib.Path, config: ConfigDict) -> None:
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


def with_pretrained(state: TrainState, job: Job) -> TrainState:
  """A first state with the weights of `config.pretrained`, where there are any."""
  variables = {"params": state.params, "batch_stats": state.batch_stats}
  loaded = load_pretrained(job.config, variables)
  if loaded is variables:
    return state

  def place() -> dict[str, Any]:
    # From memory of its own: a CPU takes an array of NumPy's as it is, and donates it.
    return mesh_lib.replicate(jax.tree.map(np.copy, loaded), job.mesh)

  return state.replace(
    **place(),
    average=state.average and place(),
    slow=state.slow and place(),
  )
