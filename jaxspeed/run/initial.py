"""What a run begins with: new weights, pretrained ones, or all that another run has learned."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from jaxspeed.config.stored import differences, leaves
from jaxspeed.data.formats.class_names import stored_class_names
from jaxspeed.devices import mesh as mesh_lib
from jaxspeed.errors import UserError, some
from jaxspeed.files import expanded
from jaxspeed.models import hub
from jaxspeed.models.exchange import SIZES, class_names_in, sizes_in
from jaxspeed.models.pretrained import check_fit, layout_of, load_pretrained
from jaxspeed.run.checkpoint import restore, steps_of
from jaxspeed.run.restore import load_config, with_file
from jaxspeed.steps.spec import TrainSpec
from jaxspeed.steps.state import Carry, TrainState

_FIELD = "config.continue_from"
# What follows where a data set has more or fewer images than the run was trained with.
HELD_OUT_TRAINED = "some that are held out may have been trained on, which flatters the accuracies"
# Fields that decide which arrays a checkpoint holds.
_ARRAYS = re.compile(
  r"config\.(model\.(?!layers:)|optimizer\.name:|average\.kind:|given\.(model|optimizer):)"
)


def sized(config: ConfigDict, given: Collection[str]) -> ConfigDict:
  """The config of a run that begins, with the sizes of the model that its weights have.

  The path of weights on the hub gets the commit that it has now.

  The fields that the command line sets, `given`, are not overridden.

  Raises:
    UserError: as `with_file` and `pretrained.layout_of`; there is no run at `continue_from`.
  """
  if config.continue_from:
    return resumed(config, given, _source(config)[1])
  if not config.pretrained.path:
    return config
  layout, path = layout_of(config), pathlib.Path(with_file(config).pretrained.path)
  config = _with_sizes(config, given, sizes_in(path, layout, config.model.to_dict()))
  if config.pretrained.path.startswith(hub.PREFIX):
    config.pretrained.path = hub.pinned(config.pretrained.path)
  return config


def resumed(config: ConfigDict, given: Collection[str], stored: ConfigDict) -> ConfigDict:
  """The config of a run that resumes, with what its weights, which may be gone, decided then.

  A run that continues another one needs no weights: those of `stored` are named where none are.
  """
  if not (config.continue_from or config.pretrained.path):
    return config
  sizes = {name: stored.model[name] for name in SIZES if name in stored.model}
  same = stored.model.name == config.model.name
  config = _with_sizes(config, given, sizes if same else {})
  path, then = config.pretrained.path, stored.pretrained.path
  unnamed = config.continue_from and "pretrained.path" not in given
  if unnamed or hub.without_revision(path) == hub.without_revision(then):
    config.pretrained.path = then
  if "pretrained.head" not in given:
    config.pretrained.head = stored.pretrained.head
  return config


def _with_sizes(config: ConfigDict, given: Collection[str], sizes: Mapping[str, Any]) -> ConfigDict:
  config = config.copy_and_resolve_references()
  config.model.update({name: n for name, n in sizes.items() if f"model.{name}" not in given})
  return config


def fitted(
  config: ConfigDict, given: Collection[str], class_names: Sequence[str] = ()
) -> ConfigDict:
  """The config of a run that begins, once what it begins with is known to fit it.

  It has head="keep" where pretrained weights are of just these classes, by their names; without
  names of the data's classes, these are not known yet.

  Raises:
    UserError: weights do not fit; or the run at `continue_from` has no checkpoint, or is of another
      model, optimizer, average or other classes.
  """
  if config.continue_from:
    _check_continued(config, class_names)
  elif config.pretrained.path:
    config, local = config.copy_and_resolve_references(), with_file(config)
    names = class_names_in(local.pretrained.path)
    if "pretrained.head" not in given and names and names == tuple(class_names):
      config.pretrained.head = local.pretrained.head = "keep"
    check_fit(local, with_head=bool(class_names))
  return config


def decided_by_weights(recipe: ConfigDict, config: ConfigDict) -> list[str]:
  """`decided` by weights; `config` is the recipe with what they decide."""
  names = [f"model.{name}" for name in SIZES if name in recipe.model] + ["pretrained.head"]
  now = dict(leaves(config))
  return decided("the weights decide", recipe, {name: now[name] for name in names})


def decided(decider: str, recipe: ConfigDict, values: Mapping[str, Any]) -> list[str]:
  """A line on the fields of a recipe that something else overrides; none if it agrees.

  `decider` is the line's subject and verb; `values` go by dotted names.
  """
  then = dict(leaves(recipe))
  rows = [
    f"{name}={value} in place of the recipe's {then[name]}"
    for name, value in values.items()
    if value != then[name]
  ]
  return [f"{decider}: {', '.join(rows)}"] if rows else []


def trained_before(config: ConfigDict, evaluated_on: str) -> list[str]:
  """A line if the run at `continue_from` may have trained on images that are now held out."""
  if not config.continue_from or evaluated_on == "test":
    return []
  before, images = _source(config)[1].data.train_images, config.data.train_images
  line = f"{before:,} images were trained on before and {images:,} are now: {HELD_OUT_TRAINED}"
  return [line] * (before != images)


def first_state(state: TrainState, spec: TrainSpec, shapes: Carry) -> TrainState:
  """The first state of a run, with the weights that it begins with. All processes must call it.

  `state` has new weights; `shapes` are the shapes and shardings of the run's carry.

  Raises:
    UserError: the checkpoint of the run at `continue_from` is damaged, or has other arrays.
  """
  config = spec.config
  if config.continue_from:
    return _continued(config, shapes).replace(step=state.step, key=state.key)
  if not config.pretrained.path:
    return state
  loaded = load_pretrained(with_file(config), state.variables())

  def place() -> dict[str, Any]:
    # Copied: on a CPU, JAX uses a NumPy array's own memory, and a step would donate it.
    return mesh_lib.replicate(jax.tree.map(np.copy, loaded), spec.mesh)

  ema, lookahead = state.ema and place(), state.lookahead and place()
  return state.replace(**place(), ema=ema, lookahead=lookahead)


def _source(config: ConfigDict) -> tuple[pathlib.Path, ConfigDict]:
  """The folder at `continue_from`, and the config of its run."""
  folder = expanded(config.continue_from, _FIELD)
  try:
    return folder, load_config(folder)
  except UserError as error:
    raise UserError(f"{_FIELD}: {error}") from None


def _check_continued(config: ConfigDict, class_names: Sequence[str]) -> None:
  """Makes sure that a run can begin with the one at `continue_from`; errors as in `fitted`."""
  folder, stored = _source(config)
  if rows := [row for row in differences(stored, config) if _ARRAYS.match(row)]:
    raise UserError(
      f"{_FIELD}={folder} is a run of another model, optimizer or average ({some(rows, 5)}): set "
      "these fields as it has them, or take its weights only, with --config.pretrained.path."
    )
  if not steps_of(folder):
    raise UserError(f"{_FIELD}={folder} holds no whole checkpoint: train it first.")
  if class_names and stored_class_names(folder, stored.data.classes) != tuple(class_names):
    raise UserError(
      f"{_FIELD}={folder} is a run of other classes: take its weights with "
      "--config.pretrained.path in its place, and choose the same data set to train it longer."
    )


def _continued(config: ConfigDict, shapes: Carry) -> TrainState:
  """The last state of the run at `continue_from`; errors as in `first_state`."""
  folder = expanded(config.continue_from, _FIELD)
  try:
    restored = restore(folder, shapes)
  except UserError as error:
    reason = str(error).partition("; ")[0]
    raise UserError(
      f"{_FIELD}={folder} cannot be continued ({reason}): set the fields of the optimizer as it "
      "has them, or take its weights only, with --config.pretrained.path."
    ) from error
  assert restored is not None
  return restored.tree.state
