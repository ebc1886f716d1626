"""The set-up of a run: data, resolved config, specification, feed and first weights."""

import dataclasses
import logging
import pathlib
import zlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Int
from ml_collections import ConfigDict
from rich.console import Console

from jaxspeed.cluster import processes
from jaxspeed.cluster.folder_lock import read_owner
from jaxspeed.config import checks
from jaxspeed.config import stored as stored_lib
from jaxspeed.data.disk.images import missing_tensorflow
from jaxspeed.data.formats.class_names import check_class_names
from jaxspeed.data.hold_out import TENTH, require_training_images
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.devices import precision
from jaxspeed.errors import UserError, printable, some
from jaxspeed.feeds.protocol import DataRequest, Feed, OpenData
from jaxspeed.feeds.resident import ResidentFeed
from jaxspeed.feeds.stream import StreamFeed
from jaxspeed.planning.make import make_plan
from jaxspeed.planning.plan import Phase, Plan
from jaxspeed.records.clock import Clock
from jaxspeed.records.console import silent_console
from jaxspeed.records.writer import read_metrics
from jaxspeed.run.folder import clear, is_untrained
from jaxspeed.run.initial import (
  decided,
  decided_by_weights,
  fitted,
  resumed,
  sized,
  trained_before,
)
from jaxspeed.run.run import NONE, Parts
from jaxspeed.steps.losses import has_top5
from jaxspeed.steps.spec import TrainSpec, make_train_spec

_log = logging.getLogger("jaxspeed")

# The feeds by `config.data.feed`.
FEEDS: dict[str, type[Feed]] = {
  "resident": ResidentFeed,
  "stream": StreamFeed,
}

# Classes that differ more than this in their numbers of training images are reported.
_UNEVEN = 10
# Fields that the data may decide unless the command line sets them: arrays of the user's own decide
# both, images on disk only the classes.
FOLLOWING = frozenset({"data.classes", "data.image_size"})


def spec_of(config: ConfigDict, data: OpenData, parts: Parts) -> TrainSpec:
  """The specification of training on all devices, with the plan that all runs share."""
  mesh = mesh_lib.make_mesh()
  plan = plan_of(config, data, devices=mesh.size, schedule=parts.schedule)
  given = {"model": parts.model, "optimizer": parts.optimizer}
  return make_train_spec(config, plan, mesh, class_counts=class_counts(data), **given)


def set_up(
  config: ConfigDict,
  folder: pathlib.Path,
  incarnation: int,
  *,
  clock: Clock,
  console: Console,
  given: Collection[str] = (),
  parts: Parts = NONE,
) -> tuple[ConfigDict, OpenData, Sequence[str]]:
  """Opens the data of a config and pins the config to its folder. All processes must call it.

  Args:
    config: the config, not yet resolved.
    folder: the run's folder, owned by process 0.
    incarnation: the number of this start of the run.
    clock, given, parts: as in `session.train`.
    console: the console that shows the progress of reading headers.

  Returns:
    The resolved config, which the folder stores; the data; and lines on what weights decide.

  Raises:
    UserError: as `open_data` and `pin_config`; or the processes do not see the same folder, or were
      not started alike.
  """
  require_training_images(config.data.hold_out)
  with processes.all_or_none("opening the data"), clock.measure("load"):
    _ensure_shared(folder, incarnation)
    lacking = missing_package(config) if parts.data is None else ""
    if lacking and not (folder / "result.json").exists():
      raise UserError(lacking)
    begins = not (folder / "config.json").exists() or is_untrained(folder)
    recipe = config
    if begins:
      config = sized(config, given)
    else:
      config = resumed(config, given, stored_lib.load(folder / "config.json"))
    follow = FOLLOWING - set(given)
    data = open_data(config, console, follow=follow, given=parts.data)
  resolved = resolve(config, data, parts)
  notes: Sequence[str] = ()
  with processes.all_or_none("the config"):
    if begins:
      resolved = fitted(resolved, given, data.class_names)
      notes = decided_by_weights(recipe, resolved) + trained_before(resolved, data.evaluated_on)
    if processes.is_primary():
      pin_config(folder, resolved)
      check_class_names(folder, data.class_names)
      read_metrics(folder)  # raises on damage, before programs take seconds to compile
    _ensure_same(resolved)
  return resolved, data, notes


def feed_of(config: ConfigDict) -> type[Feed]:
  """The feed that `config.data.feed` names; a UserError if there is no such feed."""
  name = config.data.feed
  if name not in FEEDS:
    raise UserError(f"config.data.feed={name!r}: choose one of {', '.join(FEEDS)}.")
  return FEEDS[name]


def missing_package(config: ConfigDict) -> str:
  """A sentence on the package that reading a config's images needs and lacks; '' if none."""
  needed = config.data.feed == "stream" and not config.data.synthetic
  return missing_tensorflow() if needed else ""


def open_data(
  config: ConfigDict,
  console: Console | None = None,
  *,
  follow: Collection[str] = (),
  phases: Sequence[Phase] | None = None,
  given: Any = None,
) -> OpenData:
  """Opens the data set of a config, in memory or on disk; holds images out if the config tunes.

  Args:
    config: the config; uses `data`, `tune_on` and `phases`.
    console: shows the progress of reading headers.
    follow: those of `FOLLOWING` that the data may decide, whatever the config says (`resolve`).
    phases: the phases whose images a stream opens; None: all of the plan.
    given: arrays from Python in place of the config's data.

  Raises:
    UserError: as `feed_of`, and as the feed's `open_data`.
  """
  if given is None and (arrays := config.given.data) and not config.data.path:
    raise UserError(
      f"the run was trained on {arrays} from Python, which its folder does not hold: name a data "
      "set with --config.data.path, or call run.evaluate(images, labels) in Python."
    )
  asked = DataRequest(config, console or silent_console(), follow, phases, given)
  return _with_notes(config, feed_of(config).open_data(asked))


def as_data_decide(config: ConfigDict, data: OpenData) -> ConfigDict:
  """A checked copy of a config with the fields that the data decide (`FOLLOWING`)."""
  config = config.copy_and_resolve_references()
  config.data.update(data.decides)
  return checks.checked(config.to_dict())


def decided_by_data(config: ConfigDict, data: OpenData) -> list[str]:
  """A line on the fields of a recipe that the data override; none if they agree."""
  values = {f"data.{name}": value for name, value in data.decides.items()}
  return decided(data.decider, config, values)


def _with_notes(config: ConfigDict, data: Any) -> OpenData:
  """The data with lines on what they decide, and on fields that have no effect with them."""
  lines, classes = decided_by_data(config, data), len(data.class_names)
  if config.data.hold_out != TENTH and data.evaluated_on == "test":
    lines.append(
      f"data.hold_out={config.data.hold_out:g} has no effect: the data set has evaluation images; "
      "--config.tune_on=validation holds training images out"
    )
  if "top5" in (config.target_metric, config.checkpoint.keep_best) and not has_top5(classes):
    lines.append(
      f"there is no top-5 accuracy with {classes} classes, so that nothing follows it: "
      "--config.target_metric=top1 or --config.checkpoint.keep_best=top1 does"
    )
  return dataclasses.replace(data, notes=(*lines, *data.notes))


def class_counts(data: OpenData) -> Int[np.ndarray, "classes"]:
  """The number of training images of each class."""
  return np.bincount(data.train_labels, minlength=len(data.class_names))


def uneven_classes(config: ConfigDict, data: OpenData) -> list[str]:
  """A line that names the field for classes of uneven sizes, if a run does nothing about them."""
  if config.data.synthetic or config.data.balance != "none":
    return []
  counts = class_counts(data)
  present = np.flatnonzero(counts)
  few, many = (int(present[pick(counts[present])]) for pick in (np.argmin, np.argmax))
  if counts[many] <= _UNEVEN * counts[few]:
    return []
  return [
    f"uneven classes: {printable(data.class_names[many])} has {counts[many]:,} training images and "
    f"{printable(data.class_names[few])} {counts[few]:,}; --config.data.balance=sampling shows "
    "every class equally often, --config.data.balance=weights weights the loss"
  ]


def plan_of(
  config: ConfigDict,
  data: OpenData | None,
  *,
  devices: int = 1,
  schedule: optax.Schedule | None = None,
) -> Plan:
  """The plan of a config, with the actual numbers of images if its data are open."""
  train, evaluated = data.counts if data is not None else (0, 0)
  return make_plan(
    config, devices=devices, train_images=train, eval_images=evaluated, schedule=schedule
  )


def resolve(config: ConfigDict, data: OpenData, parts: Parts = NONE) -> ConfigDict:
  """The config with the fields filled in that machine and data decide, as a folder stores it."""
  resolved = as_data_decide(config, data)
  resolved.precision = precision.resolve(config.precision, jax.devices()[0])
  plan = plan_of(resolved, data)
  resolved.data.update(train_images=plan.train_images, eval_images=plan.eval_images)
  if not (len(config.data.mean) and len(config.data.std)):
    resolved.data.mean, resolved.data.std = data.channel_statistics()
  return parts.with_schedule(resolved, plan.total_steps)


def pin_config(folder: pathlib.Path, config: ConfigDict) -> None:
  """Stores a resolved config in a folder, or makes sure that the stored one is the same.

  A run that ended before its first checkpoint has nothing to lose, and is replaced.

  Raises:
    UserError: the folder holds a run of another config; the message lists the differences.
  """
  path = folder / "config.json"
  if path.exists():
    loaded = stored_lib.load(path)
    before, now = (ConfigDict(stored_lib.to_dict(each)) for each in (loaded, config))
    if not (rows := stored_lib.differences(before, now)):
      return
    if not is_untrained(folder):
      raise _another_config(folder, rows)
    clear(folder)
    _log.warning(
      "%s held a run of another config without a checkpoint: this one replaces it", folder
    )
  stored_lib.save(config, path)


def _another_config(folder: pathlib.Path, rows: list[str]) -> UserError:
  of_images = ", in the images too," * any(row.startswith("config.data.") for row in rows)
  advice = f"choose another --workdir, or undo the changes{of_images} to resume that run"
  if (folder / "result.json").exists() and any(row.startswith("config.epochs: ") for row in rows):
    advice = (
      f"that run is finished; to train longer, add --config.continue_from={folder} and choose "
      "another --workdir, whose run takes config.epochs more epochs"
    )
  return UserError(f"{folder} holds a run of another config ({some(rows, 5)}): {advice}.")


def _ensure_shared(folder: pathlib.Path, incarnation: int) -> None:
  """Makes sure that this process sees the folder that process 0 owns."""
  owner = read_owner(folder)
  if owner is None or owner.incarnation != incarnation:
    raise UserError(
      f"{folder.absolute()} of {processes.whoami()} is not the folder of process 0: the "
      "--workdir of a run must lie on a disk that all its hosts share."
    )


def _ensure_same(resolved: ConfigDict) -> None:
  """Makes sure that all processes have the same config, version of jax and number of devices."""
  fields = [
    leaf for leaf in stored_lib.leaves(resolved) if not leaf[0].startswith(stored_lib.PLACES)
  ]
  own = repr((sorted(fields), jax.__version__, jax.local_device_count()))
  sums = processes.gather(zlib.crc32(own.encode()) >> 1)
  if others := [number for number, other in enumerate(sums) if other != sums[0]]:
    raise UserError(
      f"process {others[0]} of the run has another config, other data, another version of jax or "
      "another number of devices than process 0: start all alike."
    )
