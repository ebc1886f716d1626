"""Training from Python: `fit`."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from jaxspeed.cluster import processes
from jaxspeed.cluster.signals import Stopped
from jaxspeed.config import checks
from jaxspeed.config.registry import AnyModel
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import INTERRUPTED, UserError
from jaxspeed.library.arrays import Arrays, opened
from jaxspeed.library.calling import library_call, only_fit
from jaxspeed.library.loaded import Run, load
from jaxspeed.library.recipes import call_of, changed_in, recipe
from jaxspeed.models.own import check_module, describe_model
from jaxspeed.optim.own import check_transformation
from jaxspeed.records.console import Screen, silent_console
from jaxspeed.records.loggers import Logger, check_loggers
from jaxspeed.run.folder import run_folder
from jaxspeed.run.profile import Steps
from jaxspeed.run.run import Hooks, OnEpoch, Parts
from jaxspeed.run.session import train

# Fields that a run from Python does not use, and why.
_UNUSED = {
  "runs": "jaxspeed.fit trains one run: call it once for each seed",
  "watchdog_seconds": "nothing ends the caller's process",
  "heartbeat_seconds": "there is one process",
}


def fit(
  config: ConfigDict | str,
  data: Arrays | str | os.PathLike[str] | None = None,
  workdir: str | os.PathLike[str] | None = None,
  *,
  model: AnyModel | None = None,
  optimizer: optax.GradientTransformation | None = None,
  schedule: optax.Schedule | None = None,
  progress: bool = False,
  on_epoch: OnEpoch | None = None,
  profile: tuple[int, int] | None = None,
  loggers: Sequence[Logger] = (),
) -> Run:
  """Trains a recipe, or resumes the run in its folder, and returns the run.

  The command `jaxspeed train` does the same with flags, to the same bits. Ctrl-C, or an
  interrupted notebook cell, ends a run after its step: it is saved, so that the same call resumes
  it and `jaxspeed.load` has its model, and KeyboardInterrupt is raised.

  Args:
    config: the result of `jaxspeed.recipe`, or the name of a recipe.
    data: `jaxspeed.Arrays`, or the path of a data set (docs/data.md has the formats); None: the
      data of the config. Data decide the number of classes and, in memory, the image size, unless
      `jaxspeed.recipe` was given these fields.
    workdir: the run's folder; None: runs/NAME_OF_THE_RECIPE.
    model: a Flax module in place of `config.model`: `__call__(images [n, h, w, 3], *, train)`
      returns logits [n, classes] (docs/extending.md).
    optimizer: an Optax transformation in place of `config.optimizer`, without a learning rate, such
      as `optax.scale_by_adam()`: the plan's learning rate is applied, and so are
      `config.optimizer.clip_norm` and `layer_decay`.
    schedule: an Optax schedule in place of `config.schedule`: the learning rate by step, from 0.
    progress: whether to print what the command prints.
    on_epoch: called after each epoch with its row of `Run.history`, in this thread; if it returns
      True, the run is saved and stops, and can be resumed.
    profile: the first and the last step to trace, counted from 1; the trace is for TensorBoard and
      Perfetto, in the run's folder "profile".
    loggers: functions of a run that return a context manager, whose value is called with each row
      (`records.loggers`), besides those that `config.records.loggers` names.

  Returns:
    The run. `run.result` is {} if `on_epoch` stopped it before its end.

  Raises:
    UserError: a mistake in an argument, the config, the data or the folder; a loss that is not
      finite; a full disk; another process that took the folder over.
    KeyboardInterrupt: Ctrl-C; the run is saved, except by a second one.
  """
  with library_call(quiet=not progress), only_fit():
    config = recipe(config) if isinstance(config, str) else config
    if not isinstance(config, ConfigDict):
      raise UserError(
        f"config is of type {type(config).__name__}: pass the result of jaxspeed.recipe(NAME)."
      )
    call, changed = call_of(config), set(changed_in(config))
    config = checks.checked(config)
    folder = run_folder(workdir, config)
    parts = _parts(model, optimizer, schedule, data, config.data.hold_out)
    if data is not None and parts.data is None:
      config.data.path = _path(data)
      changed.add("data.path")
    elif parts.data is not None and config.data.path:
      raise UserError("data= and config.data.path both name data: leave one of them out.")
    _check(config, changed, parts)
    if on_epoch is not None and not callable(on_epoch):
      raise UserError("on_epoch= must be a function of an epoch's row, which is a dict.")
    loggers = check_loggers(loggers)
    hooks = Hooks(
      call=_words(call, data, folder, parts),
      make_screen=Screen if progress else lambda: Screen(silent_console()),
      on_epoch=on_epoch,
      profile=_steps(profile),
      loggers=loggers,
    )
    try:
      train(config, folder, given=changed, parts=parts, hooks=hooks)
    except Stopped as stopped:
      return _what_is_there(folder, model, stopped)
    return load(folder, model=model)


def _path(data: Any) -> str:
  if not isinstance(data, str | os.PathLike):
    raise UserError(
      f"data= is of type {type(data).__name__}: it must be jaxspeed.Arrays(x, y, x_val, y_val), or "
      "the path of a data set."
    )
  path = os.fspath(data)
  if not path:
    raise UserError("data= is empty: give the path of a data set, or leave data= out.")
  return path


def _parts(model: Any, optimizer: Any, schedule: Any, data: Any, share: float) -> Parts:
  """The objects that replace fields, checked."""
  if model is not None:
    check_module(model)
  if optimizer is not None:
    check_transformation(optimizer)
  if schedule is not None and not callable(schedule):
    raise UserError(
      f"schedule= is of type {type(schedule).__name__}: it must be a function from a step to its "
      "learning rate, such as optax.cosine_decay_schedule(0.1, 1000)."
    )
  arrays = opened(data, share) if isinstance(data, Arrays) else None
  return Parts(data=arrays, model=model, optimizer=optimizer, schedule=schedule)


def _check(config: ConfigDict, changed: set[str], parts: Parts) -> None:
  """Checks what the command `train` checks, and what only Python can get wrong."""
  for name, why in _UNUSED.items():
    if name in changed or (name == "runs" and config.runs > 1):
      raise UserError(f"config.{name}={config[name]} has no effect: {why}.")
  has_own = parts.data is not None and parts.data.evaluated_on == "test"
  if "data.hold_out" in changed and has_own and config.tune_on == "test":
    raise UserError(
      f"config.data.hold_out={config.data.hold_out:g} has no effect: x_val is evaluated."
    )
  recorded = parts.recorded(config)
  checks.checked(recorded)
  checks.check_effects(recorded, changed, command="train")
  mesh_lib.find_devices()
  if processes.several() or jax.process_count() > 1:
    raise UserError(
      "jaxspeed.fit trains in one process, and this one belongs to several (jax.distributed): "
      "start the command jaxspeed train in each of them."
    )


def _steps(profile: Any) -> Steps | None:
  """The steps to trace, checked."""
  if profile is None:
    return None
  steps = profile if isinstance(profile, tuple) and len(profile) == 2 else (0, 0)
  if not all(type(each) is int for each in steps) or not 1 <= steps[0] <= steps[1]:
    raise UserError(
      f"profile={profile!r}: it must be the first and the last step to trace, counted from 1, as "
      "in (20, 24)."
    )
  return steps


def _words(call: str, data: Any, folder: str, parts: Parts) -> str:
  """The call in words, for result.json."""
  words = [call or "config"]
  if data is not None:
    words.append("data=Arrays(...)" if parts.data is not None else f"data={_path(data)!r}")
  words.append(f"workdir={folder!r}")
  if parts.model is not None:
    words.append(f"model={describe_model(parts.model)}")
  given = [name for name in ("optimizer", "schedule") if getattr(parts, name) is not None]
  words += [f"{name}=..." for name in given]
  return f"jaxspeed.fit({', '.join(words)})"


def _what_is_there(folder: str, model: AnyModel | None, stopped: Stopped) -> Run:
  """The run that `on_epoch` stopped.

  Raises:
    KeyboardInterrupt: Ctrl-C stopped it: cells below must not go on with half a model.
    UserError: nothing of it could be saved.
  """
  if stopped.exit_code == INTERRUPTED:
    raise KeyboardInterrupt(f"{stopped} jaxspeed.load({folder!r}) has the model.") from None
  try:
    return load(folder, model=model)
  except UserError as error:
    raise UserError(f"{stopped} {error}") from error
