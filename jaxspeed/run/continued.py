"""A run that begins with the weights, the optimizer and the averages of another: continue_from."""

import pathlib
from collections.abc import Collection, Sequence

from ml_collections import ConfigDict

from jaxspeed.config.stored import differences, listed
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.errors import UserError
from jaxspeed.files import expanded
from jaxspeed.run.checkpoint import restore, steps_of
from jaxspeed.run.restore import load_config
from jaxspeed.run.weights import as_decided
from jaxspeed.steps.state import Carry, TrainState

_FIELD = "config.continue_from"
# Fields that decide which arrays a checkpoint holds.
_ARRAYS = (
  "config.model.",
  "config.optimizer.name:",
  "config.average.kind:",
  "config.given.model:",
  "config.given.optimizer:",
)


def as_continued(config: ConfigDict, given: Collection[str]) -> ConfigDict:
  """The config of a run that begins, with the sizes of the run at `continue_from`.

  Raises:
    UserError: it is no run.
  """
  return as_decided(config, given, _source(config)[1])


def _source(config: ConfigDict) -> tuple[pathlib.Path, ConfigDict]:
  """The folder at `continue_from`, and the config of its run."""
  folder = expanded(config.continue_from, _FIELD)
  try:
    return folder, load_config(folder)
  except UserError as error:
    raise UserError(f"{_FIELD}: {error}") from None


def check_continued(config: ConfigDict, class_names: Sequence[str] = ()) -> None:
  """Makes sure that the run at `continue_from`, if any, has a checkpoint that fits a config.

  Args:
    config: the config, with what weights and data decide.
    class_names: the names of the data's classes; (): not known yet.

  Raises:
    UserError: it is no run, has no checkpoint, or is of another model, optimizer, average or other
      classes.
  """
  if not config.continue_from:
    return
  folder, stored = _source(config)
  if rows := [row for row in differences(stored, config) if row.startswith(_ARRAYS)]:
    raise UserError(
      f"{_FIELD}={folder} is a run of another model, optimizer or average ({listed(rows)}): set "
      "these fields as it has them, or take its weights only, with --config.pretrained.path."
    )
  if not steps_of(folder):
    raise UserError(f"{_FIELD}={folder} holds no whole checkpoint: train it first.")
  if class_names and stored_class_names(folder, stored.data.classes) != tuple(class_names):
    raise UserError(
      f"{_FIELD}={folder} is a run of other classes: take its weights with "
      "--config.pretrained.path in its place, and choose the same data set to train it longer."
    )


def continued(state: TrainState, config: ConfigDict, shapes: Carry) -> TrainState:
  """The first state of a run, with all but its step and its key from the run at `continue_from`.

  All processes must call it.

  Args:
    state: the state without `continue_from`.
    config: the run's config.
    shapes: shapes and shardings of its carry.

  Raises:
    UserError: the run has no sound checkpoint any more, or its optimizer has other arrays.
  """
  folder = expanded(config.continue_from, _FIELD)
  try:
    restored = restore(folder, shapes)
  except UserError as error:
    reason = str(error).partition("; ")[0]
    raise UserError(
      f"{_FIELD}={folder} cannot be continued ({reason}): set the fields of the optimizer as it "
      "has them, or take its weights only, with --config.pretrained.path."
    ) from error
  if restored is None:
    raise UserError(f"{_FIELD}={folder} holds no whole checkpoint: train it first.")
  return restored.tree.state.replace(step=state.step, key=state.key)
